"""When a relay asks for stacks by itself."""

from __future__ import annotations

from ddtop.relay.dump_trigger import EVERY_S, KEYS_KEPT, STANDS_S, Automatic


def stands(automatic, key, since, until, every=0.5):
    """The keys that were due while agents said so from one moment to another."""
    found, now = [], since
    while now <= until:
        automatic.saw(key, now)
        found.append(automatic.due(now))
        now += every
    return [one for one in found if one]


def test_what_stands_is_asked_for_once():
    automatic = Automatic(enabled=True)

    assert stands(automatic, "default_pg|12|0", 0.0, 120.0) == ["default_pg|12|0"]


def test_what_stands_only_shortly_is_not_asked_for():
    """Each step of a slow job waits a second and a half in another collective."""
    automatic = Automatic(enabled=True)
    found = [stands(automatic, f"default_pg|{step}|0", 2.0 * step, 2.0 * step + STANDS_S - 0.5) for step in range(100)]

    assert found == [[]] * 100


def test_a_second_standstill_waits_for_the_rate_limit_and_is_not_forgotten():
    automatic = Automatic(enabled=True)
    stands(automatic, "a|1|0", 0.0, 5.0)

    before = stands(automatic, "a|2|0", 6.0, EVERY_S - 1)
    after = stands(automatic, "a|2|0", EVERY_S - 0.5, EVERY_S + 5)

    assert (before, after) == ([], ["a|2|0"])


def test_a_key_that_went_away_is_not_asked_for():
    automatic = Automatic(enabled=True)
    automatic.saw("a|1|0", 0.0)

    assert automatic.due(10.0) is None


def test_switched_off_it_never_asks():
    assert stands(Automatic(enabled=False), "a|1|0", 0.0, 60.0) == []


def test_invented_keys_do_not_make_it_grow():
    automatic = Automatic(enabled=True)
    for number in range(10 * KEYS_KEPT):
        automatic.saw(f"{number}", 0.0)

    assert len(automatic._seen) == KEYS_KEPT
