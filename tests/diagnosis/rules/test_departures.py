"""Ranks that are gone: which ended first, which were a consequence, and which were no fault."""

import msgspec
import pytest

from ddtop.wire.records import FailedSave, HelperEnd, Loader, StackFrame, WorkerEnd
from tests.diagnosis.rules.departures import RESET
from tests.jobs import FakeJob, place, trained, unix_ns
from tests.mpi_jobs import MpiJob

# -- rank-crashed


def test_the_first_exception_is_named_and_the_connection_errors_are_folded():
    """Four tracebacks are interleaved; three of them are "connection closed by peer"."""
    job = trained()
    job.ranks[1].raises("ValueError", "bad sample 7")
    job.ranks[1].ends(1, later_s=0.2)
    job.passes(0.5)
    for number in (0, 2, 3):
        job.ranks[number].raises("RuntimeError", RESET)
        job.ranks[number].ends(1, later_s=0.3)
    finding = job.passes(3).finds("critical", "rank-crashed", 1)

    assert finding.summary.startswith("rank 1 raised ValueError: bad sample 7 at data.py:40 load")
    assert job.snapshot().ended.first_rank == 1


def all_raise(
    *apart_s, lines=(40, 40, 40, 40), text="mat1 and mat2 shapes cannot be multiplied (4x9 and 8x8)"
):
    job = trained()
    for rank, later_s, line in zip(job.ranks, apart_s, lines, strict=True):
        rank.raises("RuntimeError", text, ago_s=-later_s, line=line)
        rank.ends(1, later_s=later_s + 0.2)
    return job.passes(6)


def test_ranks_that_raise_the_same_at_once_are_all_named():
    """Every rank makes the same mistake of the user, so rank 0 did not cause the other ends."""
    job = all_raise(0.0, 0.1, 0.3, 0.2)
    finding = job.finds("critical", "rank-crashed", 0, 1, 2, 3)

    assert finding.victims == ()
    assert finding.summary.startswith(
        "all ranks raised RuntimeError: mat1 and mat2 shapes cannot be"
    )
    assert "ended after it" not in finding.summary
    assert "rank 0" not in finding.advice
    assert job.snapshot().ended.reason == "all ranks raised RuntimeError"


def test_when_mpirun_is_killed_no_rank_is_the_first():
    """Ranks of Open MPI end themselves when their launcher's socket closes."""
    job = MpiJob(3).passes(3)
    for rank in job.ranks:
        rank.ends(195, later_s=0.02 * rank.number)
    finding = job.passes(3).finding()

    assert (finding.ranks, finding.victims) == ((0, 1, 2), ())
    assert finding.summary == "ranks 0-2 ended with exit code 195: their launcher is gone"
    assert "who killed mpirun" in finding.advice
    assert job.snapshot().ended.reason == "the ranks lost their launcher"


def test_that_exit_code_without_mpi_is_the_program_s_own():
    job = trained(3)
    for rank in job.ranks:
        rank.ends(195, later_s=0.02 * rank.number)

    assert job.passes(3).finding().ranks == (0,)


def test_ranks_that_raise_the_same_seconds_apart_are_not_one_mistake():
    assert all_raise(0.0, 3.0, 3.1, 3.2).finding().ranks == (0,)


def test_ranks_that_raise_at_other_lines_are_not_one_mistake():
    assert all_raise(0.0, 0.1, 0.1, 0.1, lines=(40, 50, 51, 52)).finding().ranks == (0,)


def test_connection_errors_at_one_line_are_consequences_and_no_mistake_of_all():
    job = all_raise(0.0, 0.1, 0.1, 0.1, text=RESET)

    assert all(not finding.summary.startswith("all ranks") for finding in job.verdict().findings)


def test_a_crash_is_one_finding_before_and_after_others_wait_for_the_rank():
    """The exception is reported before the others reach the collective."""
    job = trained()
    job.ranks[1].raises("ValueError", "bad sample 7")
    job.passes(2)
    job.others_wait(1)
    seen = []
    for _ in range(8):
        job.passes(0.5)
        seen.append([finding.kind for finding in job.verdict().findings])

    assert job.finding().group is not None
    assert seen == [["rank-crashed"]] * 8


def test_a_long_text_is_cut_with_an_ellipsis():
    job = trained()
    job.ranks[1].raises("ValueError", "x" * 150)
    job.ranks[1].ends(1, later_s=0.2)
    job.passes(3)

    assert f"raised ValueError: {'x' * 99}… at" in job.finding().summary
    assert f"{'x' * 79}…" in job.finding().evidence[0]


def test_a_consequence_is_never_first_though_its_clock_says_so():
    """The peers' clock was ahead: by time alone, rank 0's connection reset came first."""
    job = trained()
    job.ranks[0].raises("RuntimeError", RESET, ago_s=0.02)
    job.ranks[1].raises("ValueError", "bad sample 7")
    for number in (0, 1):
        job.ranks[number].ends(1, later_s=0.2)

    assert job.passes(2).finding().ranks == (1,)


@pytest.mark.parametrize(
    "text",
    [
        "DataLoader worker (pid 5123) is killed by signal: Killed. ",
        "DataLoader worker (pid(s) 5123, 5124) exited unexpectedly",
    ],
)
def test_a_dataloader_worker_that_died_before_its_rank_is_in_the_advice(text):
    """The rank's own traceback ends in the DataLoader, where there is nothing to fix."""
    job = trained()
    job.ranks[2].raises("RuntimeError", text)
    job.ranks[2].ends(1)
    finding = job.passes(3).finds("critical", "rank-crashed", 2)

    assert finding.advice.startswith("its DataLoader worker died first: dmesg")


GONE = "DataLoader worker (pid(s) 5123) exited unexpectedly"


@pytest.mark.parametrize(
    ("worker", "advice"),
    [
        (
            WorkerEnd(5123, 1, "forkserver", reruns=True),
            "its DataLoader worker (pid 5123) ran the script again, as workers started by"
            " forkserver do",
        ),
        (
            WorkerEnd(5123, 3, "spawn"),
            "its DataLoader worker (pid 5123) ended itself with exit code 3",
        ),
        (WorkerEnd(5123, -9, "fork"), "its DataLoader worker died first: dmesg"),
        (WorkerEnd(5123, -9, "forkserver", reruns=True), "its DataLoader worker died first: dmesg"),
    ],
)
def test_how_its_dataloader_worker_ended_says_what_to_do(worker, advice):
    """A script without a guard was told to look for the out-of-memory killer."""
    job = trained()
    job.ranks[2].raises("RuntimeError", GONE)
    job.ranks[2].exception = msgspec.structs.replace(job.ranks[2].exception, worker=worker)
    job.ranks[2].ends(1)

    assert job.passes(3).finding().advice.startswith(advice)


def test_a_child_that_runs_the_script_again_is_told_about_the_guard():
    job = trained()
    job.ranks[2].raises(
        "RuntimeError",
        "An attempt has been made to start a new process before the current process has finished"
        " its bootstrapping phase.",
    )
    job.ranks[2].ends(1)

    assert "__main__" in job.passes(3).finding().advice


@pytest.mark.parametrize(
    ("kind", "text", "advice"),
    [
        ("MemoryError", "", "rank 2 asked for more memory than it may have"),
        ("OutOfMemoryError", "CUDA out of memory", "the rank itself uses the memory"),
        ("OSError", "[Errno 28] No space left on device", "rank 2 found its disk full"),
        ("OSError", "[Errno 27] File too large", "rank 2 wrote a larger file than it may"),
        ("OSError", "[Errno 24] Too many open files: 'a.pt'", "rank 2 has more files open"),
        (
            "RuntimeError",
            "Expected to have finished reduction in the prior iteration before starting a new one.",
            "some parameters had no part in the loss of rank 2",
        ),
        ("RuntimeError", "stack expects each tensor to be equal size, but got [3]", "the samples"),
    ],
)
def test_a_rank_that_lacks_something_is_told_what(kind, text, advice):
    job = trained()
    job.ranks[2].raises(kind, text)
    job.ranks[2].ends(1)

    assert job.passes(3).finding().advice.startswith(advice)


TORCHS = "[enforce fail at inline_container.cc:863] . PytorchStreamWriter failed writing file"
MIB = 1 << 20


def saves_and_ends(kind=None, text=TORCHS, free_bytes=0, ago_s=1.0, code=1):
    """torch.save of rank 2 fails; then the rank raises that exception, or leaves without one."""
    job = trained()
    rank = job.ranks[2]
    rank.says["failed_save"] = FailedSave(
        "torch.save",
        "/ckpt/e7.pt",
        f"RuntimeError: {TORCHS}",
        unix_ns(job.now - ago_s),
        free_bytes,
        64 * MIB,
    )
    if kind is not None:
        rank.raises(kind, text)
    job.say(rank.state(), rank)
    rank.ends(code)
    return job.passes(3)


@pytest.mark.parametrize("kind", ["RuntimeError", None], ids=["raised", "caught, then sys.exit"])
def test_a_rank_that_could_not_save_on_a_full_disk_names_file_and_disk(kind):
    """torch says where in its C++ it failed, and hydra.main prints that and exits with 1."""
    finding = saves_and_ends(kind).finds("critical", "rank-crashed", 2)

    assert finding.summary.partition("; ranks")[0].endswith(
        "; torch.save to /ckpt/e7.pt had failed: its disk is full (0 KiB of 64.0 MiB left)"
    )
    assert finding.evidence[0].startswith("torch.save to /ckpt/e7.pt: RuntimeError: [enforce fail")
    assert finding.advice.startswith("free some space")


def test_a_save_that_failed_for_another_reason_is_named_without_the_disk():
    finding = saves_and_ends(free_bytes=32 * MIB).finding()

    assert "torch.save to /ckpt/e7.pt had failed" in finding.summary
    assert "full" not in finding.summary + finding.advice


@pytest.mark.parametrize(
    "case",
    [{"kind": "ValueError", "text": "bad sample 7"}, {"ago_s": 9.0}],
    ids=["another exception", "long before"],
)
def test_a_save_that_failed_and_was_survived_is_not_why_the_rank_ended(case):
    assert "torch.save" not in saves_and_ends(**case).finding().summary


def left_with(code):
    """Rank 2 has ended with that exit code, without an exception, and the others wait for it."""
    job = trained()
    job.ranks[2].ends(code, exiting=False)
    job.others_wait(2)
    job.passes(3)
    return job.finding()


def test_an_exit_code_without_an_exception_is_said_as_such():
    """os._exit(7) in a library."""
    finding = left_with(7)

    assert (finding.kind, finding.ranks) == ("rank-crashed", (2,))
    assert finding.summary.startswith("rank 2 ended with exit code 7")


def test_a_rank_of_mpi_may_have_called_abort():
    job = MpiJob(3).passes(10)
    job.ranks[1].ends(7, exiting=False)
    job.passes(3)

    assert "it ended itself with MPI's Abort, sys.exit or os._exit" in job.finding().advice


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (137, "after signal 9: find out who sent SIGKILL"),
        (139, "native code crashed"),
        (7, "it ended itself"),
        (128, "it ended itself"),
    ],
)
def test_the_exit_code_of_a_shell_around_a_killed_process_is_read_as_that_signal(code, advice):
    """`bash -c "python train.py; exit $?"`: the rank is the shell."""
    assert advice in left_with(code).advice


# -- rank-killed


def test_a_killed_rank_is_named_with_its_signal():
    job = trained()
    job.ranks[3].ends(signal=9)
    job.others_wait(3)
    finding = job.passes(3).finds("critical", "rank-killed", 3)

    assert finding.victims == (0, 1, 2)
    assert finding.summary.startswith("rank 3 (pid 4803) was killed by SIGKILL in iteration 100")


@pytest.mark.parametrize(
    ("ending", "ours"),
    [
        ({"signal": 11, "walking": True}, True),
        ({"signal": 6, "walking": True}, True),
        ({"signal": 11}, False),
        # Somebody else ended it in that moment.
        ({"signal": 9, "walking": True}, False),
        ({"signal": 15, "walking": True}, False),
    ],
)
def test_a_rank_that_dies_while_ddtop_reads_its_frames_was_crashed_by_ddtop(ending, ours):
    job = trained()
    job.ranks[3].ends(**ending)
    job.others_wait(3)
    finding = job.passes(3).finds("critical", "rank-killed", 3)

    assert finding.summary.startswith("ddtop's own thread crashed rank 3 (pid 4803): SIG") is ours
    assert finding.summary.startswith("rank 3 (pid 4803) was killed by SIG") is not ours
    assert ("DDTOP_FRAMES=off" in finding.advice) is ours


def test_an_oom_kill_is_distinguished_and_has_the_kernels_own_line():
    """The exit code is -9 and the log is empty: the most common question of all."""
    job = trained()
    line = "Memory cgroup out of memory: Killed process 4801 (python) total-vm:9000kB"
    job.ranks[1].ends(signal=9, oom=True, oom_line=line)
    job.others_wait(1)
    finding = job.passes(4).finding()

    assert "was killed by SIGKILL (out of memory)" in finding.summary
    assert finding.evidence[0] == f"kernel log: {line}"
    assert "ran out of memory" in finding.advice


def test_the_launchers_sigterm_after_a_first_death_is_a_consequence():
    """Three ranks "killed by SIGTERM" hide the one that was killed by SIGKILL."""
    job = trained()
    job.ranks[2].ends(signal=9)
    job.passes(0.5)
    for number in (0, 1, 3):
        job.ranks[number].ends(signal=15, later_s=0.01 * number)
    job.passes(4)

    assert job.ever() == [("critical", "rank-killed", (2,))]
    assert job.snapshot().ended.reason == "rank 2 went first: SIGKILL"


@pytest.mark.parametrize(
    ("later_s", "kind"), [(0.5, "helper-crashed"), (4.0, "comm-error")], ids=["soon", "later"]
)
def test_a_process_that_fails_well_after_the_first_rank_has_not_ended_it(later_s, kind):
    """Both failed for one reason: a file store of an earlier run. One of them was no rank yet."""
    job = trained(3)
    job.ranks[0].raises("RuntimeError", RESET)
    job.passes(later_s)
    job.ranks[0].ends(1)
    job.host_says = {"helpers": (HelperEnd(4990, unix_ns(job.now), 1),)}
    job.passes(5)

    assert job.finding().kind == kind
    assert all(found in (kind, "comm-error") for _, found, _ in job.ever())


def test_one_sigterm_before_the_others_follow_later_is_a_kill():
    """A person typed kill PID for one rank. A second later torchrun ended the others."""
    job = trained()
    job.ranks[2].ends(signal=15)
    job.passes(1)
    for number in (0, 1, 3):
        job.ranks[number].ends(signal=15)

    assert job.passes(4).ever() == [("critical", "rank-killed", (2,))]


def test_orphans_that_hold_its_sockets_are_named():
    """Its DataLoader workers lived on, so its peers waited without a disconnect."""
    job = trained()
    job.ranks[1].loader = Loader(workers=2)
    job.passes(1)
    job.ranks[1].ends(signal=9, orphans=(5001, 5002), orphan_sockets=5)
    job.others_wait(1)
    finding = job.passes(4).finding()

    assert finding.summary.endswith("; 2 DataLoader workers outlived it and hold its 5 sockets")
    assert any(
        "(pids 5001 5002): as long as they live, its peers see no disconnect" in line
        for line in finding.evidence
    )
    assert finding.advice.endswith("end these processes: kill 5001 5002")


def test_an_orphan_without_sockets_is_named_and_nothing_is_claimed_of_sockets():
    """Only its shell script for the logs lives on: peers see the disconnect as always."""
    job = trained()
    job.ranks[1].ends(signal=9, orphans=(5001,), orphan_sockets=0)
    job.others_wait(1)
    finding = job.passes(4).finding()

    assert finding.summary.endswith("; 1 child outlived it")
    assert not any("disconnect" in line for line in finding.evidence)
    assert finding.advice.endswith("end these processes: kill 5001")


def test_an_end_that_nobody_could_tell_is_said_as_unknown():
    job = trained()
    job.ranks[1].ends(None, how="unknown", exiting=False)
    job.others_wait(1)

    assert (
        job.passes(3)
        .finding()
        .summary.startswith("rank 1 (pid 4801) is gone, and it is not known how it ended")
    )


# -- left-early


def test_a_rank_that_finished_while_others_wait_left_early():
    job = trained()
    job.ranks[3].ends(0)
    for number in (0, 1, 2):
        job.ranks[number].waits_in()
        job.ranks[number].activity = "backward"
    finding = job.passes(3).finds("critical", "left-early", 3)

    assert finding.victims == (0, 1, 2)
    assert "drop_last" in finding.advice


SAVE = place("save", "/home/ada/checkpoint.py", 149, waits_on="collective")


def saves_alone(job):
    """Rank 0 gathers a sharded model for its checkpoint; the others have ended."""
    job.ranks[1].ends(0)
    job.ranks[0].waits_in("all_gather_into_tensor")
    job.ranks[0].place = SAVE
    job.passes(3)
    return job.finding()


def test_the_call_that_only_one_rank_makes_is_named_with_its_line():
    """All have made as many iterations, so the inputs are even."""
    finding = saves_alone(trained(2))

    assert (finding.kind, finding.ranks, finding.victims) == ("left-early", (1,), (0,))
    assert finding.summary == (
        "rank 1 finished and ended with exit code 0 while rank 0 still needed it: it stopped after"
        " iteration 100; rank 0 waits for it in all_gather_into_tensor #101 of default_pg at"
        " checkpoint.py:149 save"
    )
    assert finding.advice.startswith("make that call on every rank or on none")


def test_a_waiting_rank_that_has_counted_fewer_iterations_has_no_uneven_inputs():
    """Its last report is older than the last words of the rank that has left."""
    job = trained(2)
    job.ranks[0].iteration -= 1

    assert saves_alone(job).advice.startswith("make that call on every rank or on none")


def test_a_rank_that_has_taken_more_batches_has_uneven_inputs_after_as_many_iterations():
    """It is in its 101st iteration, which has not ended."""
    job = trained(2)
    for rank in job.ranks:
        rank.trains = False
        dry = unix_ns(job.now) if rank.number else None
        rank.loader = Loader(0, batches=101 - rank.number, exhausted_unix_ns=dry)
    job.passes(0.5)
    finding = saves_alone(job)

    assert finding.advice.startswith("uneven inputs")


@pytest.mark.parametrize(("before_s", "kind"), [(1, "left-early"), (4, "not-in-collective")])
def test_a_rank_whose_loader_ended_just_before_its_last_progress_has_uneven_inputs(before_s, kind):
    job = trained()
    for rank in job.ranks:
        rank.loader = Loader(0, batches=90)
    dry = unix_ns(job.now - before_s)
    last = job.ranks[2]
    last.loader = Loader(0, batches=50, exhausted=1, exhausted_unix_ns=dry)
    last.stands_at("main", line=99)
    job.others_wait(2)

    assert (job.passes(8).finding().kind, job.finding().ranks) == (kind, (2,))


def test_an_error_in_backward_is_one_of_uneven_inputs():
    job = trained(2)
    job.ranks[1].ends(0)
    job.ranks[0].raises("RuntimeError", RESET)
    frames = (StackFrame("_engine_run_backward", "/lib/torch/autograd/graph.py", 800),)
    job.ranks[0].exception = msgspec.structs.replace(job.ranks[0].exception, frames=frames)
    job.ranks[0].ends(1, later_s=0.3)

    assert job.passes(3).finding().advice.startswith("uneven inputs")


def test_errors_of_the_others_after_a_rank_finished_are_its_consequence():
    """Rank 3 ran out of data, and people read three "connection closed by peer"."""
    job = trained()
    job.ranks[3].ends(0)
    for number in (0, 1, 2):
        job.ranks[number].raises("RuntimeError", RESET)
        job.ranks[number].ends(1, later_s=0.3)

    assert job.passes(3).kinds() == [("critical", "left-early", (3,))]


def test_ranks_that_finish_some_seconds_apart_are_healthy():
    """Rank 0 writes the final checkpoint; the ranks need nothing more from each other."""
    job = trained()
    for number in (1, 2, 3):
        job.ranks[number].ends(0, later_s=0.2 * number)
    job.ranks[0].works_at("save_final")
    job.passes(20)
    assert job.ever() == []
    job.ranks[0].ends(0)
    job.passes(2)

    assert job.ever() == []
    assert (job.verdict().health, job.verdict().calm) == ("ok", "ok: all ranks finished")


def test_an_early_finisher_whose_peers_need_nothing_more_is_silent():
    job = trained()
    job.ranks[3].ends(0)
    job.trains(10)

    assert job.ever() == []
    assert job.verdict().calm == "ok: 3/4 moving, rank 3 finished, watched 20 s"


# -- elastic restart


def test_after_a_restart_the_last_attempts_death_is_history():
    job = FakeJob(4)
    job.launcher_alive = True
    job.trains(10)
    job.ranks[1].ends(signal=9)
    job.passes(3)
    assert job.kinds() == [("critical", "rank-killed", (1,))]
    for number in (0, 2, 3):
        job.ranks[number].ends(signal=15)
    job.passes(2)

    job.restarts()
    job.trains(10)

    assert job.kinds() == []
    assert job.verdict().calm.startswith("ok: 4/4 moving")


def test_between_two_attempts_the_job_has_not_ended():
    job = FakeJob(4)
    job.launcher_alive = True
    job.trains(10)
    for rank in job.ranks:
        rank.ends(1)

    assert job.passes(3).snapshot().ended is None


# -- exceptions of the thread that trained


def test_an_exception_that_all_ranks_raise_for_one_of_them_is_that_one_s():
    """A checkpoint of torch raises on all ranks what one has raised."""
    job = trained()
    for rank in job.ranks:
        rank.raises("CheckpointException", "ranks:dict_keys([1]) (RANK 1) TypeError: cannot pickle")
        rank.ends(1, exiting=False)
    finding = job.passes(3).finding()

    assert (finding.kind, finding.ranks, finding.victims) == ("rank-crashed", (1,), (0, 2, 3))
    assert finding.summary.startswith("rank 1 raised CheckpointException: TypeError: cannot pickle")
    assert "fix that exception on rank 1" in finding.advice
