"""When a relay requests stacks by itself."""

from ddtop.relay.triggers import (
    AUTO_DUMP_EVERY_S,
    AUTO_DUMP_FRESH_S,
    AUTO_DUMP_STUCK_S,
    KEYS_KEPT,
    DumpTrigger,
)


def stands(trigger, key, since, until, every=0.5):
    """The keys that were due while agents reported this from one moment to another."""
    found, now = [], since
    while now <= until:
        trigger.note_stuck(key, now)
        found.append(trigger.due(now))
        now += every
    return [one for one in found if one]


def test_what_stands_is_asked_for_once():
    trigger = DumpTrigger(enabled=True)

    assert stands(trigger, "default_pg|12|0", 0.0, 120.0) == ["default_pg|12|0"]


def test_it_is_asked_for_as_soon_as_it_has_stood_for_the_limit():
    trigger = DumpTrigger(enabled=True)
    stood_s = AUTO_DUMP_STUCK_S

    assert stands(trigger, "default_pg|12|0", 0.0, stood_s, every=stood_s / 2) == [
        "default_pg|12|0"
    ]


def test_what_stands_only_shortly_is_not_asked_for():
    """Each step of a slow job waits a second and a half, each time in another collective."""
    trigger = DumpTrigger(enabled=True)
    found = [
        stands(trigger, f"default_pg|{step}|0", 2.0 * step, 2.0 * step + AUTO_DUMP_STUCK_S - 0.5)
        for step in range(100)
    ]

    assert found == [[]] * 100


def test_a_second_standstill_waits_for_the_rate_limit_and_is_not_forgotten():
    trigger = DumpTrigger(enabled=True)
    stands(trigger, "a|1|0", 0.0, 5.0)

    before = stands(trigger, "a|2|0", 6.0, AUTO_DUMP_EVERY_S - 1)
    after = stands(trigger, "a|2|0", AUTO_DUMP_EVERY_S - 0.5, AUTO_DUMP_EVERY_S + 5)

    assert (before, after) == ([], ["a|2|0"])


def test_a_key_that_went_away_is_not_asked_for():
    trigger = DumpTrigger(enabled=True)
    stands(trigger, "a|1|0", 0.0, 5.0)
    stands(trigger, "a|2|0", 6.0, 10.0)

    assert trigger.due(AUTO_DUMP_EVERY_S + 10.0) is None


def test_a_key_that_is_reported_now_and_then_has_not_stood_meanwhile():
    trigger = DumpTrigger(enabled=True)

    assert stands(trigger, "a|1|0", 0.0, 60.0, every=AUTO_DUMP_FRESH_S + 0.5) == []


def test_switched_off_it_never_asks():
    assert stands(DumpTrigger(enabled=False), "a|1|0", 0.0, 60.0) == []


def test_invented_keys_do_not_make_it_grow():
    trigger = DumpTrigger(enabled=True)
    for number in range(10 * KEYS_KEPT):
        trigger.note_stuck(f"{number}", 0.0)

    assert len(trigger._seen) == KEYS_KEPT
