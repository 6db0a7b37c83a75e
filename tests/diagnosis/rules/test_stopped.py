"""A process in state T makes no progress at all."""

from tests.jobs import trained


def stopped():
    job = trained()
    job.ranks[1].is_stopped()
    job.others_wait(1)
    return job


def test_a_stopped_rank_is_named_with_its_pid_and_what_lets_it_go_on():
    """Ctrl-Z in the wrong tmux pane."""
    finding = stopped().passes(6).finds("critical", "rank-stopped", 1)

    assert finding.victims == (0, 2, 3)
    assert finding.summary.startswith("rank 1 has been stopped (SIGSTOP or Ctrl-Z) for 5 s")
    assert "ranks 0,2,3 wait for it in all_reduce #101 of default_pg" in finding.summary
    assert finding.advice == "let it continue: kill -CONT 4801"


def test_a_debugger_that_stops_it_for_a_moment_is_silent():
    """gdb and py-spy stop a process for some hundred milliseconds."""
    job = stopped().passes(1.5)
    job.ranks[1].continues()
    job.goes_on()

    assert job.trains(10).ever() == []


def test_after_sigcont_it_clears():
    job = stopped().passes(6)
    assert job.kinds() == [("critical", "rank-stopped", (1,))]

    job.ranks[1].continues()
    job.goes_on()
    job.trains(5)

    assert job.kinds() == []
    assert job.verdict().health == "ok"


def test_a_stopped_rank_is_never_called_frozen_or_absent():
    """It is also silent and behind, but both are consequences of being stopped."""
    assert stopped().passes(60).ever() == [("critical", "rank-stopped", (1,))]


def test_all_ranks_stopped_are_one_finding_without_victims():
    """scontrol suspend."""
    job = trained()
    for rank in job.ranks:
        rank.is_stopped()
    finding = job.passes(6).finds("critical", "rank-stopped", 0, 1, 2, 3)

    assert finding.victims == ()


def test_a_rank_in_a_frozen_cgroup_is_called_frozen_and_the_advice_thaws_it():
    """A checkpointing scheduler froze the step and forgot it: kill -CONT has no effect then."""
    job = trained()
    job.ranks[1].stands_at("train_step")
    job.ranks[1].reports = False
    job.ranks[1].seen_outside = {"frozen": True}
    job.others_wait(1)
    finding = job.passes(6).finds("critical", "rank-stopped", 1)

    assert finding.summary.startswith(
        "rank 1 has been frozen by its cgroup for 5 s; ranks 0,2,3 wait for it"
    )
    assert finding.advice.startswith("thaw it: ")
    assert "its cgroup is frozen" in finding.evidence[0]


def test_a_rank_held_by_a_debugger_is_distinguished_from_sigstop():
    job = stopped()
    job.ranks[1].letter = "t"
    finding = job.passes(6).finding()

    assert finding.summary.startswith("rank 1 has been held by a debugger for 5 s")
    assert finding.advice == "detach the debugger: grep TracerPid /proc/4801/status"


def test_the_time_in_the_freezer_counts_from_the_freeze():
    """It has slept in the same state S since long before."""
    job = trained(2)
    for rank in job.ranks:
        rank.stands_at("idle")
    job.passes(15)
    job.ranks[1].seen_outside = {"frozen": True}

    assert job.passes(2).ever() == []
