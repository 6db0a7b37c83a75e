"""Others wait for a rank: which is blamed, how severely, and which ranks are not."""

from __future__ import annotations

import pytest

from ddtop.wire.names import OF_MEMBERS_ONLY
from ddtop.wire.records import Asked, Handling, Loader, OpenCall
from tests.diagnosis.rules.late import loads_in_turn, polling, sleeping_again
from tests.diagnosis.rules.not_in_collective import hang
from tests.jobs import WORLD, FakeJob, place, trained, unix_ns


def test_a_rank_that_stands_elsewhere_while_all_others_wait_is_named_with_its_place():
    """Rank 2 waited for a license server, and NCCL's timeout named the other three."""
    finding = hang().passes(8).finds("critical", "not-in-collective", 2)

    assert finding.victims == (0, 1, 3)
    assert finding.summary == (
        "rank 2 has been in wait_for_licence (train.py:53) for 8 s; ranks 0,1,3 wait for it in"
        " all_reduce #101 of default_pg"
    )
    assert (finding.group, finding.op, finding.seq) == (WORLD, "all_reduce", 101)
    assert "the process group times out in 29 min" in finding.advice
    assert "rank 2 has enqueued #100, ranks 0,1,3 wait in #101" in finding.evidence


def test_it_is_named_within_ten_seconds_of_the_fault():
    job = hang().passes(8)

    first = next(
        index for index, verdict in enumerate(job.verdicts()) if verdict.health == "critical"
    )

    assert 15.0 < first * 0.5 <= 18.0


def test_just_under_the_limit_nothing_is_reported():
    assert hang().passes(5).ever() == []


def test_a_wait_that_ends_before_the_limit_leaves_no_trace():
    """One slow step: the garbage collector, a page-cache miss, a slow file open."""
    job = hang().passes(4.5)
    job.goes_on()

    assert job.trains(10).ever() == []


def test_a_rank_in_one_sleep_of_less_than_a_minute_is_a_warning():
    """`time.sleep(10 * rank)` after init_process_group: models are loaded one after the other."""
    job = loads_in_turn(40).passes(8)
    finding = job.finding()

    assert job.ever() == [("warning", "not-in-collective", (2,))]
    assert finding.summary == (
        "rank 2 has been asleep in load_in_turn (train.py:3) for 8 s, and its sleep ends in"
        " 32 s; ranks 0,1,3 wait for it in all_reduce #2 of default_pg"
    )
    assert finding.advice.startswith("let it finish")


@pytest.mark.parametrize(
    "more",
    [
        {"ends_s": 3600},
        # A loop that polls: there is always a sleep that ends soon.
        {"ends_s": 9, "began_s": 5.5},
    ],
)
def test_a_sleep_is_no_pause_if_it_is_long_or_repeated(more):
    assert loads_in_turn(**more).passes(8).ever() == [("critical", "not-in-collective", (2,))]


def test_a_rank_that_visibly_works_is_a_warning_first():
    """Rank 0 validates while the others wait in a barrier. Many jobs do that, once an epoch."""
    job = trained()
    job.ranks[0].works_at("validate", "/home/ada/eval.py", 31)
    job.others_wait(0, op="barrier", sizes=())
    finding = job.passes(40).finding()

    assert job.ever() == [("warning", "not-in-collective", (0,))]
    assert finding.summary == (
        "rank 0 is still working, in validate (eval.py:31), 40 s; ranks 1-3 wait for it in"
        " barrier #101 of default_pg"
    )


@pytest.mark.parametrize(
    ("moves", "seconds", "severity"),
    [(True, 50, "warning"), (True, 200, "warning"), (False, 8, "critical")],
    ids=["a restore in pieces", "a long one", "no file moves"],
)
def test_a_rank_that_moves_on_in_a_file_works(moves, seconds, severity):
    """8 KB five times a second is less than a rank that works reads, and its CPU time is none."""
    job = trained()
    rank = job.ranks[1]
    rank.stands_at("restore", line=28)
    rank.wchan, rank.wakes_per_s = "hrtimer_nanosleep", 0.0
    if moves:
        rank.says = {"moves_since_unix_ns": unix_ns(job.now)}
    job.others_wait(1)

    assert job.passes(seconds).finding().severity == severity
    if severity == "warning":
        assert job.finding().summary.startswith(
            "rank 1 is still working, in restore (train.py:28), "
        )


def test_a_file_for_which_a_rank_polls_is_named():
    finding = polling(10.0)

    assert finding.summary.startswith(
        "rank 1 has been polling for out/step_5/STABLE in wait_for_weights (train.py:28) for"
    )
    assert finding.advice.startswith(
        "find out which process should have made, opened or removed out/step_5/STABLE"
    )


def test_a_lock_file_that_it_cannot_make_may_be_stale():
    handling = Handling("FileExistsError", "[Errno 17] File exists", place("take", line=9))
    job = trained()
    job.ranks[1].stands_at("take", line=28, polls="cache/7.lock")
    job.ranks[1].wchan, job.ranks[1].wakes_per_s = "hrtimer_nanosleep", 10.0
    job.ranks[1].says = {"handling": handling}
    job.others_wait(1)

    assert (
        job.passes(20)
        .finding()
        .advice.startswith(
            "find out which process has made cache/7.lock; if that one has ended, the file is"
            " stale: rm 'cache/7.lock'"
        )
    )


@pytest.mark.parametrize(("idle", "severity"), [(True, "critical"), (False, "warning")])
def test_a_rank_that_waits_for_an_actor_of_ray_names_it(idle, severity):
    """An actor that works for its answer is no fault: a rollout takes minutes."""
    job = trained()
    asked = Asked("RolloutWorker", 4711, "generate", others=2, here=True, idle=idle)
    job.ranks[1].stands_at("fetch", line=42, waits_on="ray.get", asked=asked)
    job.others_wait(1)
    finding = job.passes(20).finding()

    assert (finding.severity, finding.ranks) == (severity, (1,))
    assert finding.summary.startswith(
        "rank 1 has been in ray.get, waiting for RolloutWorker (pid 4711) in generate and 2 more"
        " (train.py:42 fetch) for 20 s; rank"
    )


def test_a_rank_that_sleeps_once_polls_for_nothing():
    finding = polling(0.0)

    assert "has been asleep in wait_for_weights (train.py:28)" in finding.summary
    assert "STABLE" not in finding.summary + finding.advice


def test_a_rank_that_sleeps_a_little_again_and_again_may_work_in_between_for_a_while():
    """Of a healthy program that paces its samples, ddtop said "critical" after five seconds."""
    job = sleeping_again()
    warning = job.passes(8).finds("warning", "not-in-collective", 1)

    assert warning.summary.startswith(
        "rank 1 has been sleeping again and again in write_sample (train.py:28) for 8 s: it polls,"
        " or works in short steps; ranks"
    )
    assert warning.advice.startswith("find out what it waits for at train.py:28: ddtop stacks")
    critical = job.passes(55).finds("critical", "not-in-collective", 1)
    assert "in write_sample (train.py:28) for 63 s; ranks" in critical.summary


def test_a_rank_that_has_just_woken_from_a_short_sleep_is_still_a_warning():
    """At that look a healthy program was critical."""
    job = sleeping_again().passes(8)
    job.ranks[1].letter, job.ranks[1].wchan = "R", "0"

    job.passes(1).finds("warning", "not-in-collective", 1)


def test_a_master_that_comes_to_its_collective_at_last_is_not_blamed_for_the_wait_before():
    """It has taken nine seconds, and its collective is not enqueued yet when the relay looks."""
    job = trained()
    job.ranks[0].works_at("next_order", line=31)
    job.others_wait(0)
    job.passes(9)
    job.ranks[0].stands_at("give", line=37, callee="broadcast_object_list", waits_on="collective")
    job.passes(2)

    assert {severity for severity, *_ in job.ever()} == {"warning"}
    job.passes(6).finds("critical", "not-in-collective", 0)


def test_a_rank_that_falls_silent_just_after_it_came_to_a_collective_is_blamed():
    """Its last report says that it has been there for a moment, and no report follows."""
    job = trained()
    job.ranks[0].stands_at("reduce", line=37, callee="all_reduce", waits_on="collective")
    job.passes(0.5)
    job.ranks[0].reports = False
    job.others_wait(0)

    job.passes(9).finds("critical", "interpreter-frozen", 0)


def test_of_two_ranks_at_fault_that_are_not_alike_it_is_not_said_that_both_poll():
    finding = sleeping_again(2).passes(12).finds("warning", "not-in-collective", 1, 2)

    assert "sleeping again and again" in finding.summary
    assert "poll" not in finding.summary


def test_a_rank_that_sleeps_between_tries_after_an_error_does_no_work():
    handling = Handling("ConnectionRefusedError", "refused", place("connect", line=27))

    sleeping_again(handling=handling).passes(8).finds("critical", "not-in-collective", 1)


@pytest.mark.parametrize(("seconds", "severity"), [(20, "warning"), (63, "critical")])
def test_a_rank_that_does_not_leave_one_call_may_be_in_a_loop_that_never_ends(seconds, severity):
    """`while at < n: at += size`, and size was 0. "Let it finish" is what nobody should do."""
    job = trained()
    job.ranks[1].works_at("chunks", "/home/ada/batch.py", 16, since_unix_ns=unix_ns(job.now))
    job.others_wait(1)
    finding = job.passes(seconds).finds(severity, "not-in-collective", 1)

    assert finding.advice.startswith(
        "check whether the loop in chunks (batch.py:16) ends: ddtop stacks"
    )


@pytest.mark.parametrize("more", [{"since_unix_ns": unix_ns(17)}, {}])
def test_a_rank_that_goes_from_call_to_call_is_given_time(more):
    job = trained()
    job.ranks[1].works_at("validate", "/home/ada/eval.py", 31, **more)
    job.others_wait(1)

    assert job.passes(20).finding().advice.startswith("let it finish")


def test_a_rank_that_works_without_end_becomes_critical():
    """`while True: pass` on one rank burns a core for ever: that is a hang too."""
    job = trained()
    job.ranks[1].works_at("spin")
    job.others_wait(1)

    assert job.passes(63).ever() == [
        ("warning", "not-in-collective", (1,)),
        ("critical", "not-in-collective", (1,)),
    ]


@pytest.mark.parametrize(
    ("cores", "io_per_s", "seconds", "severity"),
    [
        (0.02, 1e5, 120, "warning"),
        (0.02, 1e5, 310, "critical"),
        (1.0, 1e5, 120, "critical"),
        (1.0, 5e6, 120, "warning"),
        (1.0, 5e6, 310, "critical"),
    ],
)
def test_a_rank_that_transfers_has_minutes_and_a_loop_that_logs_has_one(
    cores, io_per_s, seconds, severity
):
    """A download with little CPU, and a checkpoint that is pickled with a core, were critical after
    a minute, like an endless loop."""
    job = trained()
    job.ranks[0].works_at("fetch")
    job.ranks[0].cores, job.ranks[0].io_per_s = cores, io_per_s
    job.others_wait(0)

    assert job.passes(seconds).kinds() == [(severity, "not-in-collective", (0,))]


def test_half_of_the_group_timeout_is_the_latest_moment_for_critical():
    job = trained()
    job.ranks[0].works_at("validate")
    job.others_wait(0, timeout_ms=40_000)

    assert job.passes(22).kinds() == [("critical", "not-in-collective", (0,))]


def test_a_rank_that_reads_a_file_is_working_though_its_cpu_sleeps():
    """A checkpoint of 40 GB goes over NFS, with no CPU time but a steady stream of bytes."""
    job = trained()
    job.ranks[0].stands_at("save_checkpoint", waits_on="file")
    job.ranks[0].io_per_s = 50e6
    job.others_wait(0)

    assert job.passes(30).ever() == [("warning", "not-in-collective", (0,))]


@pytest.mark.parametrize(
    ("waits_on", "wakes_per_s", "severity"),
    [("socket", 30.0, "warning"), ("socket", 1.0, "critical"), (None, 10.0, "critical")],
)
def test_a_download_is_work_a_stuck_read_and_a_polling_loop_are_not(
    waits_on, wakes_per_s, severity
):
    """A download uses hardly any CPU time, but each chunk wakes the process."""
    job = trained()
    job.ranks[0].stands_at("fetch", "/home/ada/hub.py", 88, waits_on=waits_on)
    job.ranks[0].wakes_per_s = wakes_per_s
    job.others_wait(0)

    assert job.passes(12).kinds() == [(severity, "not-in-collective", (0,))]


def test_io_below_the_policy_rate_is_not_work():
    """The agent's own reports and a heartbeat in user code always move some bytes."""
    job = hang()
    job.ranks[2].io_per_s = 900.0

    assert job.passes(8).kinds() == [("critical", "not-in-collective", (2,))]


def test_the_waiters_polling_at_full_cpu_do_not_hide_the_hang():
    """gloo and MPI poll: a waiter at 100 % CPU is still a waiter."""
    job = hang()
    for number in (0, 1, 3):
        job.ranks[number].cores = 1.0

    assert job.passes(8).kinds() == [("critical", "not-in-collective", (2,))]


def test_two_culprits_are_one_finding():
    """Half of the ranks took the other branch."""
    job = trained()
    job.ranks[1].stands_at("evaluate")
    job.ranks[3].stands_at("evaluate")
    job.others_wait(1, 3)
    finding = job.passes(8).finds("critical", "not-in-collective", 1, 3)

    assert finding.victims == (0, 2)
    assert finding.summary.startswith(
        "ranks 1,3 have been in evaluate (train.py:40) for 8 s; ranks 0,2 wait for them"
    )


def test_a_chain_of_groups_ends_at_the_one_that_waits_for_nobody():
    """Rank 0 waits for 1 in one group, and 1 for 2 in another. Only 2 is to blame."""
    job = FakeJob(4)
    job.new_group("tp", 0, 1)
    job.new_group("dp", 1, 2)
    job.trains(10)
    job.ranks[2].stands_at("fetch")
    job.ranks[1].waits_in(group="dp")
    job.ranks[0].waits_in(group="tp")
    job.ranks[3].waits_in()
    finding = job.passes(8).finds("critical", "not-in-collective", 2)

    assert finding.victims == (0, 1, 3)
    assert finding.group in ("dp", WORLD)


def test_members_of_another_group_are_not_blamed_for_not_being_in_it():
    job = FakeJob(4)
    job.new_group("1", 0, 1)
    job.trains(10)
    job.ranks[1].stands_at("fetch")
    job.ranks[0].waits_in(group="1")

    assert job.passes(8).kinds() == [("critical", "not-in-collective", (1,))]


def test_send_and_recv_do_not_make_a_rank_look_ahead_of_the_others():
    """gloo counts p2p too: #1203 and #400 were both collective 100."""
    job = FakeJob(2)
    job.ranks[0].standings[WORLD].offset = 800
    job.ranks[0].standings[WORLD].enqueued = job.ranks[0].standings[WORLD].completed = 800
    job.trains(10)
    for rank in job.ranks:
        rank.waits_in()
    job.passes(3)

    assert [wait.behind for wait in job.snapshot().waits] == [(), ()]
    assert [wait.seq for wait in job.snapshot().waits] == [101, 101]


def test_a_rank_inside_point_to_point_is_not_called_the_end_of_the_chain():
    """A pipeline stage in recv waits too. Sequence numbers do not show which rank is at fault."""
    job = trained(2)
    job.ranks[0].stands_at("forward_backward", callee="recv", waits_on="p2p", activity="collective")
    job.ranks[1].waits_in()

    assert job.passes(30).ever() == [("warning", "no-progress", (0, 1))]


def test_an_asynchronous_collective_while_computing_holds_nobody_up():
    """DDP's buckets are open for most of every healthy backward."""
    job = trained()
    job.ranks[0].works_at("train_step", activity="forward")
    for number in (1, 2, 3):
        job.ranks[number].waits_in(computing=True)

    assert job.passes(30).ever() == []


def test_a_rank_whose_agent_never_spoke_is_not_blamed():
    """One node has no ddtop installed, so nothing is known about its ranks."""
    job = FakeJob(4, absent=[3]).trains(10)
    for number in (0, 1, 2):
        job.ranks[number].waits_in()
    job.passes(30)

    assert job.ever() == []
    assert job.verdict().calm == "starting: 3/4 ranks seen, not yet 3"


def test_start_up_of_minutes_is_a_warning_at_most():
    """Importing torch from a cold NFS, then a rendezvous where the last node comes late."""
    job = FakeJob(4)
    for rank in job.ranks:
        rank.trains, rank.phase, rank.standings, rank.iteration = False, "starting", {}, None
        rank.works_at("<module>")
    job.passes(60)
    for rank in job.ranks[:3]:
        rank.is_in_init()

    assert job.passes(120).ever() == [("warning", "late-to-init", (3,))]
    assert (
        job.verdict().calm
        == "starting: 4/4 ranks not in a process group yet, 3 in init_process_group"
    )


def test_a_healthy_job_is_silent_and_says_so():
    job = FakeJob(4).trains(60)

    assert job.ever() == []
    assert (job.verdict().health, job.verdict().headline) == ("ok", "ok: 4/4 moving, watched 60 s")


def test_a_job_that_stands_at_one_place_says_so_in_its_calm_sentence():
    job = trained(2)
    for rank in job.ranks:
        rank.stands_at("<module>")

    assert job.passes(30).verdict().calm == (
        "quiet: no rank has moved for 30 s, and none waits for another in a collective; ranks"
        " 0,1 are in <module> (train.py:40)"
    )


def test_of_idle_ranks_at_several_places_none_is_reported():
    job = trained(2)
    job.ranks[0].stands_at("<module>")
    job.ranks[1].stands_at("serve", line=7)

    assert (
        job.passes(30).verdict().calm
        == "quiet: no rank has moved for 30 s, and none waits for another in a collective"
    )


def test_the_last_rank_of_a_job_that_does_not_end_says_what_it_waits_for():
    """A thread keeps its process alive, and the launcher waits for that process."""
    job = trained(3)
    for rank in (0, 2):
        job.ranks[rank].ends(0)
    job.ranks[1].stands_at("_shutdown", "/usr/lib/python3.11/threading.py", 1590, waits_on="exit")

    assert job.passes(30).ever() == [("warning", "no-progress", (1,))]
    assert (
        "in a collective; rank 1 is waiting at exit for its other threads (threading.py:1590"
        " _shutdown), ranks 0,2 finished" in job.verdict().calm
    )


def test_a_place_that_cannot_be_seen_is_said_to_be_unseen():
    job = hang()
    job.ranks[2].place = None

    assert (
        job.passes(8)
        .finding()
        .summary.startswith("rank 2 has been at a place that cannot be seen for 8 s")
    )


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"waits_on": "lock"}, "waiting for a lock (train.py:53 take)"),
        ({"waits_on": "child"}, "waiting for a child process (train.py:53 take)"),
        ({"activity": "loader", "waits_on": "DataLoader"}, "in the DataLoader (train.py:53 take)"),
        ({"waits_on": "debugger"}, "in a debugger (train.py:53 take)"),
    ],
)
def test_the_summary_says_where_the_culprit_is_instead(more, text):
    job = trained(2)
    job.ranks[1].stands_at("take", line=53, **more)
    job.others_wait(1)

    assert job.passes(8).finding().summary.startswith(f"rank 1 has been {text} for 8 s")


@pytest.mark.parametrize(
    ("wchan", "text"),
    [
        ("anon_pipe_read", "reading a pipe in wait_for_licence (train.py:53)"),
        ("hrtimer_nanosleep", "asleep in wait_for_licence (train.py:53)"),
        ("nfs_wait_bit_killable", "waiting for a file server in wait_for_licence (train.py:53)"),
        ("something_new", "in wait_for_licence (train.py:53)"),
    ],
)
def test_the_kernels_own_word_says_what_it_waits_on(wchan, text):
    """A read from a pipe in C looks like any other line of Python."""
    job = hang()
    job.ranks[2].wchan = wchan

    assert job.passes(8).finding().summary.startswith(f"rank 2 has been {text} for 8 s")


def test_a_server_that_does_not_answer_is_named():
    """A metrics server accepted the connection, and the call had no timeout."""
    job = hang()
    job.ranks[2].seen_outside = {"syscall": "recvfrom", "file": "socket", "remote": "10.0.0.7:8080"}
    finding = job.passes(8).finding()

    assert finding.summary.startswith(
        "rank 2 has been waiting on a socket to 10.0.0.7:8080 in wait_for_licence (train.py:53)"
        " for 8 s"
    )
    assert finding.advice.startswith(
        "give that call a timeout, and find out why 10.0.0.7:8080 does not answer; the process"
        " group times out"
    )


@pytest.mark.parametrize(
    ("waits_on", "advice"),
    [
        ("lock", "which thread holds that lock or should notify it"),
        ("queue", "who should fill that queue"),
        ("pipe", "who should write or read its other end"),
        ("asyncio", "which of its tasks waits"),
    ],
)
def test_of_a_wait_the_advice_says_whom_to_look_for(waits_on, advice):
    """A buffer was empty because the thread that fills it had ended by an exception."""
    job = hang()
    job.ranks[2].stands_at("draw_batch", "/home/ada/train.py", 53, waits_on=waits_on)
    finding = job.passes(8).finding()

    assert finding.advice.startswith(
        "find out why it is stuck at train.py:53: ddtop stacks --rank 2; give that wait a timeout,"
        " and see "
    )
    assert advice in finding.advice


@pytest.mark.parametrize(("workers", "asked"), [(0, True), (2, True), (3, False)])
def test_children_of_a_rank_that_reads_a_pipe_are_worth_a_look_if_they_load_no_data(workers, asked):
    job = hang()
    job.ranks[2].loader = Loader(workers=workers, workers_alive=workers)
    job.ranks[2].stands_at("evaluate", "/home/ada/train.py", 53, waits_on="pipe")
    job.ranks[2].children = 3

    assert ("what its child processes do" in job.passes(8).finding().advice) is asked


def test_who_is_missing_in_a_group_that_is_made_by_hand_is_not_known():
    """Two ranks joined the groups of two models in opposite order: neither is at fault alone."""
    job = hang()
    job.ranks[2].stands_at("connect", "/home/ada/train.py", 53, callee="_new_process_group_helper")
    finding = job.passes(30).finds("warning", "not-in-collective", 2)

    assert finding.advice.startswith("it waits for all members of the group that it makes there")
    job.ranks[2].calls = [OpenCall("init_process_group", finding.since_unix_ns)]
    assert job.passes(2).finding().severity == "critical"


def test_without_the_relays_look_the_rank_gets_the_benefit_of_the_doubt():
    """/proc of another user's container cannot be read. Unknown counts as working."""
    job = hang()
    job.look_at_hosts = lambda: None
    job.records = [
        (envelope, record) for envelope, record in job.records if envelope.kind != "HostState"
    ]

    assert {severity for severity, _, _ in job.passes(20).ever()} == {"warning"}


@pytest.mark.parametrize(
    ("place", "outside"),
    [
        ({"waits_on": "DataLoader", "activity": "loader"}, {}),
        ({"waits_on": "child"}, {}),
        ({}, {"syscall": "clock_nanosleep"}),
        ({}, {"wchan": "hrtimer_nanosleep"}),
        ({}, {"wchan": "pipe_read"}),
    ],
)
def test_a_rank_with_something_open_that_visibly_waits_elsewhere_is_the_one_to_look_at(
    place, outside
):
    """Its open asynchronous all_reduce is not what it waits for."""
    job = trained(3)
    job.ranks[1].waits_in()
    job.ranks[1].stands_at("report", "/home/ada/report.py", 12, **place)
    job.ranks[1].wchan = outside.pop("wchan", None)
    job.ranks[1].seen_outside = outside
    job.new_group("1", 0, 1, 2)
    for number in (0, 2):
        job.ranks[number].waits_in(group="1")

    assert job.passes(8).kinds() == [("critical", "not-in-collective", (1,))]


@pytest.mark.parametrize("place", [{"waits_on": "lock"}, {"waits_on": "future"}, {}])
def test_a_rank_that_may_wait_for_its_open_collective_through_a_thread_is_a_waiter(place):
    """Its main thread joins the one that communicates, or waits in C without a frame."""
    job = trained(3)
    job.others_wait(2)
    job.ranks[0].stands_at("report", "/home/ada/report.py", 12, **place)
    job.ranks[2].stands_at("fetch", "/home/ada/data.py", 40)
    job.ranks[0].seen_outside = {"syscall": "futex"}

    assert job.passes(8).kinds() == [("critical", "not-in-collective", (2,))]


def splits(job, culprit, tag=0):
    """All but one rank are in split_group on NCCL, which no recorder knows; all must call it."""
    for rank in job.ranks:
        if rank.number != culprit:
            rank.stands_at("build_groups", line=34, callee="split_group")
            rank.calls = [OpenCall("split_group", unix_ns(job.now), tag=tag)]
    job.ranks[culprit].stands_at("load_labels", "/home/ada/data.py", 7)


def test_a_rank_that_does_not_come_to_a_split_of_all_ranks_is_named():
    job = trained()
    splits(job, 2)
    finding = job.passes(8).finding()

    assert (finding.severity, finding.kind) == ("critical", "not-in-collective")
    assert (finding.ranks, finding.victims) == ((2,), (0, 1, 3))
    assert "ranks 0,1,3 wait for it in split_group" in finding.summary


def test_who_is_missing_in_the_split_of_a_part_is_not_guessed():
    """The members of the new group are not known, and the rank may not be one of them."""
    job = trained()
    splits(job, 2, tag=OF_MEMBERS_ONLY)

    assert [finding.kind for finding in job.passes(8).verdict().findings] == []
