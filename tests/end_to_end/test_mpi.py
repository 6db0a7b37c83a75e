"""Real ranks under mpirun, in a program without any knowledge of ddtop: what they wait in, and
which rank is at fault.

A rank that waits in MPI uses a core for that: two ranks at a time, and the program ends by itself.
"""

import sys

import pytest

from tests.end_to_end.mpi_programs import ANY_HOST, MPIRUN, PROGRAM

pytest.importorskip("mpi4py")
pytestmark = pytest.mark.skipif(MPIRUN is None, reason="mpirun is not here")


def start(world, what, *wrapper):
    """The program under mpirun, as a person starts it. `wrapper`: what each rank starts first."""
    # Killed ranks leave their shared memory behind. It must be in the test's folder, not in the
    # machine's.
    environment = ANY_HOST | {"OMPI_MCA_btl_sm_backing_directory": world.folder}
    # The launcher has sockets of its own, whose paths have a limit.
    environment["TMPDIR"] = world.home.runtime
    return world.start_command(
        [MPIRUN, "-n", "2", *wrapper, sys.executable, str(PROGRAM), what], **environment
    )


def criticals(diagnosis):
    return [
        (one["kind"], one["ranks"])
        for one in diagnosis["findings"]
        if one["severity"] == "critical"
    ]


def test_a_healthy_simulation_counts_its_iterations_and_nothing_is_wrong(world):
    start(world, "goes_on")

    moving = world.moving(iterations=60)
    ranks = world.status()

    assert criticals(moving) == []
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert criticals(world.diagnose(3.0)) == []


@pytest.mark.smoke
def test_a_receive_with_a_tag_that_nobody_sends_is_named_with_the_counts(world):
    start(world, "take_wrong_tag")

    finding = world.finding("unmatched-p2p")

    assert (finding["severity"], finding["ranks"], finding["victims"]) == ("critical", [1], [0])
    assert "recv from rank 0, tag 99" in finding["summary"]
    assert (
        "rank 0 has sent to rank 1: 1 with tag 7 (receives begun: 0), none with tag 99"
        in finding["evidence"]
    )


def test_a_call_that_silences_the_agent_is_read_from_its_page(world):
    start(world, "reduce_on_new")

    finding = world.finding("not-in-collective")

    assert finding["ranks"] == [1]
    assert finding["victims"] == [0]
    assert finding["op"] == "allreduce"
    assert finding["seq"] == 1
    assert "Dup #81" in finding["summary"]


def test_the_rank_that_raised_is_named_while_its_process_hangs_in_finalize(world):
    start(world, "raise_alone")

    finding = world.finding("rank-crashed")

    assert finding["ranks"] == [1]
    assert "ValueError: the mesh has a hole" in finding["summary"]
    assert "its process is still alive" in finding["summary"]


WAITS_AS_RANK_1 = '[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 ] || sleep infinity; exec "$@"'


def test_a_rank_whose_wrapper_waits_is_named_while_the_other_is_in_mpi_init(world):
    """MPI_Init holds the GIL: a rank that went in before its relay listened was not seen at all."""
    start(world, "goes_on", "sh", "-c", WAITS_AS_RANK_1, "sh")

    finding = world.finding("late-to-init")

    assert (finding["severity"], finding["ranks"], finding["victims"]) == ("critical", [1], [0])
    assert "rank 1 has not entered MPI_Init: process" in finding["summary"]
    assert "(rank 1, started by the launcher)" in finding["summary"]
