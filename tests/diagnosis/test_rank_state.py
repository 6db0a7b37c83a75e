"""One function decides the state of a rank on the screen, in filters, on the map and in JSON."""

from dataclasses import replace

import msgspec
import pytest

from ddtop.diagnosis.finding import CRITICAL, WARNING, Finding
from ddtop.diagnosis.judge import Judge
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.rank_state import OWN_WORD, culprits, with_states
from ddtop.model.facts import State
from ddtop.present.documents import status_json
from ddtop.present.filter import BY_VERDICT, Rows, parse_filter
from ddtop.present.map import AT_FAULT, HEALTHY, class_of, codes_of
from ddtop.say.told import look
from ddtop.sim.incidents import SCENARIOS, Incident
from tests.jobs import BASE, trained, unix_ns
from tests.sim.watching import Watcher, simulated


def looked_at(job):
    """The state that a viewer shows after looks every half second for three seconds."""
    model, judge = job.model(), Judge(job.policy)
    for back in range(6, -1, -1):
        found = look(judge, model.snapshot(unix_ns(job.now - back / 2)))
    return found


def states(job):
    return [rank.state.value for rank in looked_at(job)[0].ranks]


def filtered(snapshot, verdict, text):
    return sorted(Rows().of(snapshot, verdict, BY_VERDICT, False, parse_filter(text)))


def test_both_ranks_of_a_mismatch_are_distinguished():
    job = trained()
    for rank in job.ranks:
        rank.waits_in(op="broadcast" if rank.number == 2 else "all_reduce")
    job.passes(12)

    assert states(job) == ["blocked", "blocked", "culprit", "blocked"]


def test_victims_are_blocked_however_short_each_of_their_waits_is():
    finding = Finding(Kind.WAIT_CYCLE, CRITICAL, (0, 1), (2, 3), BASE, "0 and 1 wait")
    snapshot = trained().snapshot()

    shown = with_states(snapshot, (finding,))

    assert [rank.state.value for rank in shown.ranks] == [
        "culprit", "culprit", "blocked", "blocked",
    ]  # fmt: skip


def test_who_waits_for_a_straggler_moves_and_is_not_blocked():
    finding = Finding(Kind.STRAGGLER, CRITICAL, (0,), (1, 2, 3), BASE, "0 is slow")

    shown = with_states(trained().snapshot(), (finding,))

    assert [rank.state.value for rank in shown.ranks] == [
        "culprit", "running", "running", "running",
    ]  # fmt: skip


@pytest.mark.parametrize("state", sorted(OWN_WORD))
def test_what_became_of_a_rank_is_not_replaced_by_what_it_is_blamed_for(state):
    snapshot = trained().snapshot()
    ranks = (
        snapshot.ranks[0],
        msgspec.structs.replace(snapshot.ranks[1], state=state),
        *snapshot.ranks[2:],
    )
    finding = Finding(Kind.RANK_STOPPED, CRITICAL, (1,), (0, 2, 3), BASE, "rank 1 has stopped")

    shown = with_states(replace(snapshot, ranks=ranks), (finding,))

    assert shown.ranks[1].state is state


def test_a_warning_marks_the_ranks_that_it_singles_out_and_not_the_whole_job():
    snapshot = trained().snapshot()
    one = Finding(Kind.GPU_THROTTLED, WARNING, (3,), (), BASE, "the GPU of rank 3 is throttled")
    every = replace(one, kind=Kind.INPUT_BOUND, ranks=(0, 1, 2, 3))

    assert [rank.state.value for rank in with_states(snapshot, (one,)).ranks] == [
        "running", "running", "running", "warning",
    ]  # fmt: skip
    assert with_states(snapshot, (every,)) is snapshot


def test_a_finding_that_names_all_ranks_because_it_can_blame_none_makes_no_culprits():
    finding = Finding(Kind.NO_PROGRESS, CRITICAL, (0, 1, 2, 3), (), BASE, "no progress for 90 s")
    snapshot = trained().snapshot()

    assert with_states(snapshot, (finding,)) is snapshot


def test_a_rank_that_others_wait_for_is_no_culprit_before_a_finding_says_so():
    """They may wait for a rank that waits for requests: an idle job."""
    job = trained()
    job.ranks[2].works_at("validate", "eval.py", 31)
    job.others_wait(2)
    snapshot = job.passes(12).snapshot()

    assert any(blame.due for blame in snapshot.blames)
    assert snapshot.ranks[2].state is State.RUNNING
    assert states(job)[2] in ("culprit", "warning")


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_screen_filter_map_and_json_agree_on_every_simulated_fault(name):
    incidents = SCENARIOS[name].incidents[:1]
    began = any(one.begin_s for one in incidents)
    if began:
        incidents = tuple(replace(one, begin_s=3, end_s=None, rank=5) for one in incidents)
    snapshot, verdict = Watcher(simulated(16, *incidents)).until(20.0)
    blamed, json = culprits(verdict), status_json(snapshot, verdict)
    codes = codes_of(snapshot, blamed)

    for rank in snapshot.ranks:
        assert (rank.state is State.CULPRIT or rank.state in OWN_WORD) == (rank.rank in blamed)
        assert json["ranks"][rank.rank]["state"] == rank.state.value
        assert json["ranks"][rank.rank]["blamed"] == (rank.rank in blamed)
        assert (codes[rank.rank] >= AT_FAULT) == (rank.rank in blamed)
        if codes[rank.rank] != HEALTHY and rank.state is not State.JOINING:
            # Who waits for those that wait is blocked too.
            word = class_of(codes[rank.rank]).word.replace("behind", "blocked")
            assert word == rank.state.value
    assert filtered(snapshot, verdict, "state:culprit") == sorted(blamed)
    singled = {rank for one in verdict.findings for rank in one.ranks if len(one.ranks) < 16}
    assert filtered(snapshot, verdict, "state:culprit,straggler,warning") == sorted(singled)


def test_a_throttled_gpu_is_seen_in_the_table_and_on_the_map():
    watcher = Watcher(simulated(8, Incident("gpu-throttled", 40.0, rank=5)))

    snapshot, verdict = watcher.until(75.0)

    assert [one.kind for one in verdict.findings] == ["gpu-throttled"]
    assert "it/s instead of" in verdict.findings[0].evidence[0]
    assert [rank.rank for rank in snapshot.ranks if rank.state is State.WARNING] == [5]
    assert class_of(codes_of(snapshot, culprits(verdict))[5]).word == "warning"
