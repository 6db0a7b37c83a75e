"""Which rows are shown, and in which order."""

import pytest

from ddtop.diagnosis.finding import Verdict
from ddtop.model.facts import State
from ddtop.present.filter import (
    BY_VERDICT,
    Rows,
    by_column,
    by_verdict,
    culprits,
    describe_filter,
    parse_filter,
)
from tests.ui import builders
from tests.ui.changed import replace


def passing(text, snapshot):
    found = parse_filter(text)
    return [rank.rank for rank in snapshot.ranks if found.passes(rank)]


def test_without_a_finding_ranks_stand_in_their_order_whatever_their_state():
    """A rank that is blocked for a moment must not make the table jump."""
    snapshot = builders.hang()[0]

    assert by_verdict(snapshot, Verdict("ok", (), "ok")) == list(range(8))


def test_in_a_hang_the_culprit_comes_first_then_the_blocked_then_the_others():
    snapshot, verdict = builders.hang()
    ranks = [
        replace(rank, state=State.RUNNING) if rank.rank == 1 else rank for rank in snapshot.ranks
    ]

    assert by_verdict(replace(snapshot, ranks=tuple(ranks)), verdict) == [5, 0, 2, 3, 4, 6, 7, 1]


def test_a_straggler_comes_first_and_nobody_else_moves():
    snapshot, verdict = builders.hang()
    warning = replace(verdict.findings[0], severity="warning")

    assert by_verdict(snapshot, Verdict("warning", (warning,), "")) == [5, 0, 1, 2, 3, 4, 6, 7]


def test_ranks_without_a_value_come_last_in_either_direction():
    snapshot = builders.healthy(4)
    ranks = (replace(snapshot.ranks[0], progress={"step_ms": None}), *snapshot.ranks[1:])
    snapshot = replace(snapshot, ranks=ranks)

    assert by_column(snapshot, "step", descending=True) == [3, 2, 1, 0]
    assert by_column(snapshot, "step", descending=False) == [1, 2, 3, 0]


@pytest.mark.parametrize(
    "key",
    [
        "rank",
        "state",
        "host",
        "iteration",
        "step",
        "now",
        "for",
        "comm",
        "phases",
        "loader",
        "cpu",
        "rss",
        "gpu",
        "vram",
        "nccl",
        "pid",
        "heard",
    ],
)
def test_every_column_can_be_sorted_by_on_any_picture(key):
    for snapshot in (builders.healthy(), builders.starting_up()[0], builders.ended()[0]):
        assert sorted(by_column(snapshot, key, descending=True)) == list(range(len(snapshot.ranks)))


def test_a_filter_takes_states_hosts_ranks_and_words():
    snapshot, _ = builders.hang(16)

    assert passing("", snapshot) == list(range(16))
    assert passing("state:culprit", snapshot) == [5]
    assert passing("state:culprit,blocked rank:3-6", snapshot) == [3, 4, 5, 6]
    assert passing("host:node001 rank:0-8,15", snapshot) == [8, 15]
    assert passing("data.py", snapshot) == [5]
    assert passing("DATALOADER", snapshot) == [5]
    assert passing("4805", snapshot) == [5]


def test_a_filter_that_is_being_typed_already_works():
    snapshot, _ = builders.hang()

    assert passing("state:", snapshot) == list(range(8))
    assert passing("state:cul", snapshot) == [5]
    assert passing("rank:3-", snapshot) == [3]


def test_a_filter_that_makes_no_sense_says_so_and_hides_nothing_by_mistake():
    assert parse_filter("rank:x").problem == "not a list of ranks: 'x'"
    assert parse_filter("rank:x").empty
    assert parse_filter("state:bocked").problem.startswith(
        "unknown state 'bocked'; states: starting"
    )
    assert (
        describe_filter(parse_filter("rank:x"), 8, 8)
        == "filter rank:x (not a list of ranks: 'x'), 8 of 8 ranks"
    )


def test_a_range_of_ten_million_ranks_costs_nothing():
    assert parse_filter("rank:0-9999999").ranks == (range(10_000_000),)


def test_a_warning_that_names_most_ranks_moves_nobody_and_paints_no_row():
    """Four ranks that wait for data are not culprits: if the job makes progress, it is shown as
    calm.
    """
    snapshot, verdict = builders.hang()
    everyone = replace(verdict.findings[0], severity="warning", ranks=tuple(range(8)))
    found = Verdict("warning", (everyone,), "")

    assert by_verdict(snapshot, found) == list(range(8))
    assert culprits(found) == ()


def test_rows_are_those_that_pass_in_the_order_that_was_asked_for():
    snapshot, verdict = builders.hang()
    rows, everyone, some = Rows(), parse_filter(""), parse_filter("rank:3-7")

    assert rows.of(snapshot, verdict, BY_VERDICT, False, everyone) == by_verdict(snapshot, verdict)
    assert rows.of(snapshot, verdict, BY_VERDICT, False, some) == [5, 3, 4, 6, 7]
    assert rows.of(snapshot, verdict, "rank", True, some) == [7, 6, 5, 4, 3]


def test_rows_are_worked_out_anew_only_for_something_new():
    """A screen is refreshed twice a second, and the model looks at ten thousand ranks every two
    seconds.
    """
    snapshot, verdict = builders.hang()
    rows, some = Rows(), parse_filter("rank:3-7")
    first = rows.of(snapshot, verdict, "now", False, some)

    assert rows.of(snapshot, verdict, "now", False, some) is first
    assert rows.of(replace(snapshot), verdict, "now", False, some) is not first


def test_a_filter_takes_places_in_parallel_groups():
    snapshot = builders.hang()[0]
    ranks = tuple(
        replace(rank, comm={"coordinates": (("pp", rank.rank // 4, 2), ("tp", rank.rank % 4, 4))})
        for rank in snapshot.ranks
    )
    snapshot = replace(snapshot, ranks=ranks)

    assert passing("tp:3", snapshot) == [3, 7]
    assert passing("tp:2-3 pp:1", snapshot) == [6, 7]
    assert passing("tensor_parallel:0,1 pp:0", snapshot) == [0, 1]
    assert passing("dp:0", snapshot) == []
    assert passing("tp:", snapshot) == list(range(8))
    assert parse_filter("tp:3").problem == ""


def test_a_place_is_not_taken_for_a_word_and_a_word_not_for_a_place():
    assert parse_filter("train.py:31").words == ("train.py:31",)
    assert parse_filter("http://x").words == ("http://x",)
    assert parse_filter("tp:3").words == ()


def test_numbers_are_compared_in_the_units_of_the_table():
    snapshot = builders.healthy(8)
    steps = {rank.rank: rank.progress.step_ms for rank in snapshot.ranks}
    limit = sorted(steps.values())[4]

    assert passing(f"step>{limit}", snapshot) == [one for one in steps if steps[one] > limit]
    assert passing(f"step<={limit}", snapshot) == [one for one in steps if steps[one] <= limit]
    assert passing("comm<1000 rank:3", snapshot) == [3]
    assert passing("gpu<20", snapshot) == []
    assert passing("step>", snapshot) == list(range(8))


@pytest.mark.parametrize("text", ["foo:bar", "stat:blocked", "foo>3"])
def test_an_unknown_key_is_refused_with_the_list_of_those_there_are(text):
    found = parse_filter(text)

    assert found.empty
    assert "state: host: rank:" in found.problem
    assert "step" in found.problem


def test_a_file_and_its_line_are_words():
    assert parse_filter("data.py:40").words == ("data.py:40",)
