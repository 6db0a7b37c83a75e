"""A probe that is off is reported on the screen and in JSON."""

from ddtop.diagnosis.judge import Judge
from ddtop.model import progress
from ddtop.policy import POLICY
from ddtop.present.documents import diagnose_json, status_json
from ddtop.present.plain import diagnose_text, status_text
from ddtop.say.told import look
from tests.jobs import FakeJob


def looked(off):
    job = FakeJob(6)
    for number, reasons in off.items():
        job.ranks[number].probes_off = reasons
    job.trains(3)
    return job.snapshot()


def test_a_part_that_is_off_is_on_the_screen_and_in_json():
    snapshot = looked({1: ("cuda: OSError: no: such file",)})
    verdict = look(Judge(POLICY), snapshot)[1]
    rows = [{"rank": 1, "probe": "cuda", "why": "OSError: no: such file"}]

    assert snapshot.notes == ("the agent's probe 'cuda' is off on rank 1: OSError: no: such file",)
    assert "note: the agent's probe 'cuda' is off on rank 1" in status_text(snapshot, verdict, 120)
    assert ("note: the agent's probe 'cuda' is off on rank 1") in diagnose_text(
        snapshot, verdict, 120
    )
    assert status_json(snapshot, verdict)["probes_off"] == rows
    assert diagnose_json(snapshot, verdict)["probes_off"] == rows


def test_where_nothing_is_off_nothing_is_reported():
    snapshot = looked({})

    assert snapshot.notes == ()
    assert status_json(snapshot)["probes_off"] == []


def test_the_same_on_many_ranks_is_one_note():
    snapshot = looked(
        {number: ("place: x", "mpi: y") if number else ("place: x",) for number in range(6)}
    )

    assert snapshot.notes == (
        "the agent's probe 'place' is off on 6 ranks (0, 1, 2, 3, ...): x",
        "the agent's probe 'mpi' is off on 5 ranks (1, 2, 3, 4, ...): y",
    )
    assert len(list(progress.probes_off(snapshot.ranks))) == 11
