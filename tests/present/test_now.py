"""The NOW column: one rank, and the one fact that matters most about it."""

import pytest

from ddtop.model.facts import State, Wait
from ddtop.present.groups import hosts_of, starting
from ddtop.present.now import now_age_s, now_text
from ddtop.present.numbers import BY_KEY, LANE, CellContext, cell_text, rank_table
from ddtop.wire.records import (
    Exit,
    Group,
    GroupProgress,
    LastException,
    OpenCall,
    Place,
    ProcessState,
)
from tests.ui import builders
from tests.ui.builders import NOW, SECOND
from tests.ui.changed import replace

HEALTHY = builders.healthy_rank(0)
IN_COLLECTIVE = builders.healthy_rank(1)
EVAL = Place("validate", "/home/ada/eval.py", 31, None, NOW - 40 * SECOND)


def gone(code=None, number=None, oom=None, exception=None):
    return replace(
        HEALTHY, process={"exit": Exit(0, 1, code, number, oom, 0, "pidfd", exception=exception)}
    )


def in_state(letter, **more):
    """Its process is what the sentence speaks of, whatever its agent reported last."""
    return replace(HEALTHY, process={"report": ProcessState(0, 1, letter, **more)})


@pytest.mark.parametrize(
    ("rank", "text"),
    [
        (HEALTHY, "backward"),
        (IN_COLLECTIVE, "all_reduce #74892"),
        (replace(HEALTHY, reported={"activity": "other"}), "train_step train.py:88"),
        (replace(HEALTHY, reported={"activity": "other", "place": None}), "running"),
        (replace(HEALTHY, reported={"activity": "cuda_sync", "place": None}), "GPU wait"),
        (replace(HEALTHY, state=State.CULPRIT, reported={"place": EVAL}), "validate eval.py:31"),
        (
            replace(IN_COLLECTIVE, state=State.CULPRIT, reported={"place": EVAL}),
            "validate eval.py:31",
        ),
        (replace(HEALTHY, comm={"open_calls": (OpenCall("recv", NOW, 0, 7),)}), "recv from rank 0"),
        (replace(HEALTHY, comm={"open_calls": (OpenCall("send", NOW, 1),)}), "send to rank 1"),
        (
            replace(HEALTHY, comm={"open_calls": (OpenCall("init_process_group", NOW),)}),
            "init_process_group",
        ),
        (replace(HEALTHY, state=State.MISSING), "never seen"),
        (in_state("T"), "stopped"),
        (in_state("t"), "held by a debugger"),
        (in_state("S", frozen=True), "frozen by its cgroup"),
        (in_state("S", exiting=True), "exiting the interpreter"),
        (
            replace(
                HEALTHY, state=State.SILENT, process={"report": ProcessState(0, 1, "D", "nfs_wait")}
            ),
            "silent, process D nfs_wait",
        ),
        (replace(HEALTHY, state=State.SILENT, process={"report": None}), "agent silent"),
        (gone(code=1), "exit code 1"),
        (
            gone(code=1, exception=LastException("ValueError", "bad", NOW)),
            "exit code 1: ValueError",
        ),
        (gone(number=9), "SIGKILL"),
        (gone(number=9, oom=True), "SIGKILL (out of memory)"),
        (gone(), "exit code unknown"),
    ],
)
def test_what_a_rank_does_is_reported_in_a_few_words(rank, text):
    assert now_text(rank) == text


def test_a_rank_at_fault_says_where_it_is_and_what_it_waits_on():
    snapshot, _ = builders.hang()

    assert now_text(snapshot.rank(5)) == "DataLoader data.py:40"
    assert now_age_s(snapshot.rank(5), snapshot.time_unix_ns) == 31.0


def test_a_line_of_a_function_that_is_never_left_is_as_old_as_the_last_progress():
    rank = replace(
        HEALTHY,
        reported={"activity": "other", "place": EVAL},
        progress={"last_unix_ns": NOW - 3 * SECOND},
    )

    assert now_text(rank).endswith("eval.py:31")
    assert now_age_s(rank, NOW) == 3.0
    assert now_age_s(replace(rank, progress={"last_unix_ns": None}), NOW) == 40.0


def test_a_wait_of_which_only_the_number_is_known_is_a_collective():
    """With the flight recorder off, only the group's sequence numbers are available."""
    rank = replace(
        IN_COLLECTIVE, comm={"collective": None}, wait=Wait(1, "0", 99, NOW - 5 * SECOND, (0,))
    )

    assert now_text(rank) == "collective #99"
    assert now_age_s(rank, NOW) == 5.0


def test_a_culprit_that_waits_itself_shows_its_own_wait():
    """In a cycle across groups every rank is at fault and every rank waits."""
    held = builders.collective(99)
    rank = replace(
        IN_COLLECTIVE,
        state=State.CULPRIT,
        comm={"collective": held},
        wait=Wait(1, "0", 99, NOW - 5 * SECOND, (0,)),
    )

    assert now_text(rank) == "all_reduce #99"


def test_a_job_is_starting_until_somebody_is_past_the_start_up():
    assert starting(builders.starting_up()[0])
    assert not starting(builders.healthy())


def test_hosts_are_counted_from_the_ranks_where_no_relay_has_spoken():
    assert hosts_of(replace(builders.healthy(16), hosts=())) == 2


def test_a_rank_in_several_groups_says_in_which_one_it_waits():
    """All groups count from one: a number without its group does not say which ranks are behind."""
    snapshot, _ = builders.hang()
    part = Group("1", "tp_0", (0, 1), "nccl")
    waits = replace(
        snapshot.rank(0),
        wait=Wait(0, "1", 74_893, NOW - SECOND, (1,), "nccl:all_reduce"),
        comm={"groups": (GroupProgress("0", 9, 9), GroupProgress("1", 74_893, 74_892))},
    )
    context = CellContext(NOW, groups=(*snapshot.groups, part))

    assert cell_text(BY_KEY["now"], waits, context, 30) == "all_reduce tp_0 #74893"
    assert cell_text(BY_KEY["now"], waits, context, 19) == "all_red… tp_0 #…893"
    alone = replace(waits, comm={"groups": (GroupProgress("1", 74_893, 74_892),)})
    assert cell_text(BY_KEY["now"], alone, context, 30) == "all_reduce #74893"


def test_eighty_columns_show_the_host_where_there_are_several():
    def keys(several):
        table = rank_table(80, 64, 7, ("gpu", "vram", LANE), several_hosts=several)
        return [column.key for column in table.fields]

    assert "host" in keys(True)
    assert "host" not in keys(False)
    assert {"cpu", "heard"} <= set(keys(False))
