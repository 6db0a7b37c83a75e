"""The facts of a rank follow the policy: its work, its silence, its steps and its ratios."""

import pytest

from ddtop.model.facts import State
from ddtop.policy import POLICY
from ddtop.wire.records import Loader, ProcessLoad, ProcessState, RpcState
from tests.diagnosis.rules.input_bound import loading
from tests.jobs import SECOND, FakeJob, trained
from tests.second_policy import Case
from tests.spread import SpreadJob


def seen(job, policy):
    job.policy = policy
    return job.snapshot()


def working(cores, before=1.0):
    """Whether a rank counts as working that has used this many cores for three seconds."""

    def says(policy):
        job = FakeJob(1)
        job.ranks[0].cores = before
        job.trains(10)
        job.ranks[0].cores = cores
        job.trains(3)
        return seen(job, policy).ranks[0].process.working

    return says


def works_beside_its_agent(policy):
    """Whether a rank works that uses 6 % of a core: its agent until 3 s ago, its own code since."""
    job = FakeJob(1)
    rank = job.ranks[0]
    rank.cores = 0.06
    for tick in range(26):
        rank.says = {"agent_cpu_ns": round(0.06 * 0.5 * min(tick, 20) * SECOND)}
        job.trains(0.5)
    return seen(job, policy).ranks[0].process.working


def works_by_its_child(policy):
    """Whether a rank counts as working that waits for a child, which wakes twice a second."""
    job = trained(1)
    job.ranks[0].stands_at("score", waits_on="child")
    job.ranks[0].seen_outside = {"syscall": "wait4", "child_wakes_per_s": 2.0}
    job.passes(3)
    return seen(job, policy).ranks[0].process.working


def test_threads_that_only_poll_do_not_make_a_rank_work():
    """TensorPipe of torch.distributed.rpc: its reactor polls shared memory without rest."""

    def works(spins):
        job = FakeJob(1)
        rank = job.ranks[0]
        rank.cores = 0.3
        for tick in range(16):
            rank.says = {"rpc": RpcState("w0", 0, spins_ns=round(spins * 0.5 * tick * SECOND))}
            job.trains(0.5)
        return seen(job, POLICY).ranks[0].process.working

    assert (works(0.3), works(0.0), works(0.1)) == (False, True, True)


def child_works(policy):
    """Whether a process without a rank number works that has done nothing for 3 s."""
    job = FakeJob(2, absent=[1])
    for second in range(8):
        cpu_ns = min(second, 4) * SECOND
        job.candidates = (ProcessState(None, 4999, "S", cpu_ns=cpu_ns),)
        job.passes(1)
    return seen(job, policy).candidates[0].working


def child_woke(policy):
    """Whether it counts as woken up: it has not woken for the last 3 s."""
    job = FakeJob(2, absent=[1])
    for second in range(8):
        job.candidates = (ProcessState(None, 4999, "S", cpu_ns=0, switches=min(second, 4)),)
        job.passes(1)
    return seen(job, policy).candidates[0].woke


def lacks_cpu(policy):
    """Whether a rank lacks a CPU: others have had it for half of the last 3 s."""
    job = trained(1)
    job.ranks[0].stands_at("collect")
    for second in range(8):
        delay_ns = max(second - 4, 0) * SECOND // 2
        job.ranks[0].seen_outside = {"load": ProcessLoad(run_delay_ns=delay_ns)}
        job.passes(1)
    return seen(job, policy).ranks[0].process.lacks_cpu


def condition_of_a_rank_with_progress(policy):
    """Rank 2 uses no CPU, and has taken a batch a second ago."""
    job = trained()
    job.ranks[2].stands_at("fetch")
    job.others_wait(2)
    for _ in range(8):
        job.ranks[2].progress = job.now - 0.5
        job.passes(0.5)
    (blame,) = seen(job, policy).blames
    return blame.condition


def due_without_looks(looks_s):
    """Whether the wait is too long if the relay has looked for this long of eight seconds."""

    def says(policy):
        job = trained()
        job.ranks[2].stands_at("fetch")
        job.passes(4)
        job.others_wait(2)
        job.passes(looks_s)
        job.look_at_hosts = lambda: None
        job.passes(8 - looks_s)
        (blame,) = seen(job, policy).blames
        return blame.condition, blame.due

    return says


def working_by_the_last_look(policy):
    """Whether a rank counts as working that no relay has looked at for ten seconds."""
    job = trained(1)
    job.look_at_hosts = lambda: None
    job.passes(10)
    return seen(job, policy).ranks[0].process.working


def lacks_cpu_by_the_last_look(policy):
    """The last look, 20 s ago, found it without a CPU."""
    job = trained(1)
    job.ranks[0].stands_at("collect")
    for second in range(4):
        job.ranks[0].seen_outside = {"load": ProcessLoad(run_delay_ns=second * SECOND)}
        job.passes(1)
    job.look_at_hosts = lambda: None
    job.passes(20)
    return seen(job, policy).ranks[0].process.lacks_cpu


def transfers_by_the_last_look(policy):
    """Until the last look, 30 s ago, it read a file with little CPU."""
    job = trained(1)
    job.ranks[0].stands_at("fetch", waits_on="file")
    job.ranks[0].io_per_s = 1e6
    job.passes(12)
    job.look_at_hosts = lambda: None
    job.passes(30)
    return seen(job, policy).ranks[0].process.transfers


def unlooked(policy):
    """Whether half a second after the first look is too early to report what a rank does."""
    job = FakeJob(1).trains(1.5)
    return seen(job, policy).ranks[0].agent.unlooked


def frozen():
    job = trained(2)
    job.ranks[1].freezes()
    return job.passes(5)


def state_of_a_silent_rank(policy):
    return seen(frozen(), policy).ranks[1].state


def reporting(policy):
    return seen(frozen(), policy).reporting


def host_is_cut(seconds):
    job = SpreadJob(4, 2).trains(4)
    job.goes_silent("node1")
    return job.passes(seconds)


def unheard(policy):
    """Whether a rank is silent only because its host is silent."""
    return seen(host_is_cut(5), policy).ranks[2].agent.unheard


def unheard_when_its_host_is_back(policy):
    """The same two seconds after its host is heard again, when it has not reported yet."""
    job = host_is_cut(5)
    job.comes_back("node1")
    job.ranks[2].reports = False
    job.passes(2)
    return seen(job, policy).ranks[2].agent.unheard


def usual_pause_s(policy):
    """The rank trains all the time, and every second reports are missing for two seconds."""
    job = FakeJob(1)
    for _ in range(4):
        job.ranks[0].reports = False
        job.trains(1.5)
        job.ranks[0].reports = True
        job.trains(1)
    return seen(job, policy).ranks[0].progress.usual_pause_s


def stood(seconds, step_ms=100.0):
    job = trained(2)
    for rank in job.ranks:
        rank.says = {"step_ms": step_ms}
        rank.stands_at("fetch")
    return job.passes(seconds)


def moving(seconds, step_ms=100.0):
    return lambda policy: seen(stood(seconds, step_ms), policy).moving


def step_is_old(seconds, step_ms=100.0):
    return lambda policy: seen(stood(seconds, step_ms), policy).ranks[0].progress.stale


def ratios_after(seconds):
    """Which ratios of a rank are known: its waits, those for data, and for CPUs."""

    def says(policy):
        job = FakeJob(1)
        rank = job.ranks[0]
        rank.loader = Loader(workers=2)
        for second in range(round(2 * seconds)):
            rank.seen_outside = {"load": ProcessLoad(run_delay_ns=second)}
            job.trains(0.5)
        facts = seen(job, policy).ranks[0]
        given = facts.comm.wait_ratio, facts.loader.wait_ratio, facts.process.pressure
        return tuple(one is not None for one in given)

    return says


def low_ratio_is_known(policy):
    """Whether a rank that waits 30 % for data is known to do so in each quarter."""
    job = loading(0.3).trains(12)
    return seen(job, policy).ranks[0].loader.wait_low_ratio is not None


CASES = [
    Case("asleep lately", "cpu_window_s", 8.0, working(0.01), False, True),
    Case("beside its agent", "cpu_window_s", 8.0, works_beside_its_agent, True, False),
    Case("little CPU", "working.cpu_waning_ratio", 0.045, working(0.04), True, False),
    Case("by its child", "working.child_working_wakes_per_s", 1.0, works_by_its_child, False, True),
    Case("a child asleep lately", "cpu_window_s", 8.0, child_works, False, True),
    Case("a child that woke", "candidate.asleep_s", 3.0, child_woke, True, False),
    Case("crowded lately", "cpu_window_s", 8.0, lacks_cpu, True, False),
    Case(
        "a batch lately", "cpu_window_s", 0.5, condition_of_a_rank_with_progress,
        "working", "still",
    ),
    Case(
        "no look since", "cpu_window_s", 4.0, due_without_looks(3),
        ("still", True), ("still", False),
    ),
    Case(
        "a relay that is away", "relay_away_s", 7.0, due_without_looks(0),
        ("still", False), ("still", True),
    ),
    Case("the last look", "relay_away_s", 5.0, working_by_the_last_look, True, None),
    Case(
        "no CPU at the last look", "relay_away_s", 30.0, lacks_cpu_by_the_last_look, False, True
    ),
    Case("I/O at the last look", "relay_away_s", 40.0, transfers_by_the_last_look, False, True),
    Case("one look", "rank.first_look_s", 0.25, unlooked, True, False),
    Case(
        "a frozen rank", "report_silent_s", 10.0, state_of_a_silent_rank,
        State.SILENT, State.RUNNING,
    ),
    Case("reporting", "report_silent_s", 10.0, reporting, 1, 2),
    Case("a silent host", "report_silent_s", 10.0, unheard, True, False),
    Case("a host that is back", "report_silent_s", 0.5, unheard_when_its_host_is_back, True, False),
    Case("pauses", "reports.apart_s", 5.0, usual_pause_s, 0.5, 2.0),
    Case("moving", "moving_s", 1.0, moving(3), 2, 0),
    Case("moving", "step_old_factor", 1.0, moving(8, 4000.0), 2, 0),
    Case("a step", "step_old_s", 1.0, step_is_old(1.5), False, True),
    Case("a step", "step_old_factor", 1.0, step_is_old(4, 2000.0), False, True),
    Case("each quarter", "input_bound_others", 0.9, low_ratio_is_known, True, False),
    Case("young", "window_min_s", 1.0, ratios_after(2), (False,) * 3, (True,) * 3),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_the_policy_says_what_is_true_of_a_rank(case):
    assert case.said_by_both() == (case.ours, case.theirs)
