"""The rows of the list of jobs: the content of each, their order, and that no row is wider than its
terminal.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop import registry
from ddtop.diagnosis.finding import CRITICAL, INFO, OK, WARNING, Finding, Verdict
from ddtop.diagnosis.kinds import Kind
from ddtop.present.jobs import (
    NAME,
    NEWEST,
    SLOWEST,
    STUCK,
    WORST,
    Health,
    Listed,
    columns,
    findings_beside,
    heading,
    health_of,
    in_order,
    listed,
    passing,
    program_lines,
    row,
    table_lines,
    with_roles,
)
from ddtop.present.text import ASCII, UNICODE, Glyphs, line_width, plain
from tests.jobs import trained
from tests.present.entries import NOW, ended, entry


def shown(
    jobs: list[registry.JobEntry], width: int = 80, health: Health | None = None
) -> list[str]:
    found = listed(jobs, NOW)
    table = columns(found, width)
    return [plain(row(one, table, health, NOW, UNICODE)) for one in found]


def test_live_jobs_come_first_and_in_each_half_the_newest() -> None:
    jobs = [ended("old", 500.0), entry("second", 90.0), ended("late", 100.0), entry("first", 30.0)]

    assert [one.entry.job for one in listed(jobs, NOW)] == ["first", "second", "late", "old"]


def test_a_run_on_several_hosts_is_one_row_with_all_its_ranks() -> None:
    jobs = [
        entry("big", host=f"node{number}", sender=f"{number}", world_size=24) for number in range(3)
    ]

    (found,) = listed(jobs, NOW)

    assert (found.reporting, found.hosts) == (24, ("node0", "node1", "node2"))
    assert "24/24" in shown(jobs)[0]
    assert "3 hosts" in shown(jobs, 120)[0]


def test_a_hub_and_its_leaves_are_one_row_with_the_hubs_count() -> None:
    """The hub counts the ranks of all hosts. A host whose file is not here may have more of
    them.
    """
    parts = [
        entry("big", run="x1", role="leaf", part_of="r1", host="node1", sender="1", reporting=8),
        entry(
            "big", role="hub", host="node0", hosts=("node1", "node2"), world_size=24, reporting=23
        ),
    ]

    (found,) = listed(parts, NOW)

    assert found.entry.host == "node0"
    assert found.reporting == 23
    assert set(found.hosts) == {"node0", "node1", "node2"}
    assert found.key == ("big", "r1")


def test_a_hub_that_is_lost_leaves_the_row_to_a_leaf_that_lives() -> None:
    parts = [
        entry("big", role="hub", host="node0", heartbeat_unix_ns=0, world_size=24, reporting=24),
        entry(
            "big",
            run="x1",
            role="leaf",
            part_of="r1",
            host="node1",
            sender="1",
            world_size=24,
            reporting=8,
        ),
    ]

    (found,) = listed(parts, NOW)

    assert (found.entry.host, found.live, found.reporting) == ("node1", True, 8)


def test_two_runs_of_one_name_are_two_rows() -> None:
    assert len(listed([entry("a"), ended("a", run="r0")], NOW)) == 2


@pytest.mark.parametrize(
    ("health", "words"),
    [
        (None, "asking ..."),
        (Health("unknown"), "unknown"),
        (Health("ok"), "ok"),
        (Health("warning", "straggler"), "▲ straggler"),
        (Health("critical", "rank-killed"), "✖ rank-killed"),
        (Health("critical"), "✖ critical"),
    ],
)
def test_how_a_job_is_doing_is_reported_in_words_and_not_by_colour_alone(
    health: Health | None, words: str
) -> None:
    assert words in shown([entry("a")], 100, health)[0]


def test_a_job_that_starts_is_not_ok_yet_and_its_sentence_does_not_repeat_the_word() -> None:
    starts = shown([entry("a")], 120, Health("ok", None, "starting: 3/4 ranks seen"))[0]
    moves = shown([entry("a")], 120, Health("ok", None, "ok: 4/4 moving"))[0]

    assert starts.split()[1:2] == ["starting"]
    assert "3/4 ranks seen" in starts
    assert moves.split()[1:2] == ["ok"]
    assert "ok: " not in moves


def test_a_job_of_which_no_rank_reports_has_no_speed() -> None:
    health = Health("critical", "rank-killed", "rank 1 was killed", 0, 2, steps_per_s=21.0)

    assert "0/2" in shown([entry("a")], 160, health)[0]
    assert "21" not in shown([entry("a")], 160, health)[0]


def test_an_ended_job_has_the_words_of_the_dashboard() -> None:
    killed = ended("a", ended_reason="SIGTERM")
    cancelled = shown([killed], 120, Health("ok", ended="cancelled"))[0]
    failed = shown([killed], 120, Health("ok", ended="rank 2 went first: SIGTERM"))[0]

    assert cancelled.split()[1] == "cancelled"
    assert failed.split()[1] == "SIGTERM"
    assert "rank 2 went first: SIGTERM" in failed


def test_of_an_ended_job_it_is_said_how_it_ended_whatever_was_asked_before() -> None:
    assert "cancelled" in shown([ended("a")], 100, Health("ok"))[0]
    assert "lost" in shown([entry("a", heartbeat_unix_ns=0)], 100)[0]


def test_a_cancelled_job_says_what_was_wrong_until_then() -> None:
    """Whoever ends a job by hand does so for a reason, and looks for it in the list."""
    stood = "rank 2 has been reading a pipe for 55 s"
    over = Finding(
        Kind.CANCELLED,
        WARNING,
        (),
        (),
        0,
        f"the job was cancelled: ranks 0-3 ended together (SIGTERM). Until then: {stood}",
        until_then=True,
    )
    known = Health(WARNING, "cancelled", over.summary, ended="cancelled", findings=(over,))

    line = shown([ended("hung", 60.0)], 160, known)[0]

    assert stood in line
    assert line.split()[1] == "cancelled"


def test_a_table_for_a_pipe_cuts_no_name_and_has_no_empty_column() -> None:
    """Six jobs `pretrain-7b-a-very-long...` were one text, and none could be given to `replay`."""
    name = "pretrain-7b-" + "a-very-long-name-" * 8
    rows = [(one, Health(OK)) for one in listed([ended(name, 60.0), ended("b", 90.0)], NOW)]

    titles, first, _ = (plain(line) for line in table_lines(rows, None, NOW, UNICODE))

    assert first.startswith(f"{name}  ")
    assert not {"STEP/S", "STUCK"} & set(titles.split())


def test_the_worst_finding_is_the_one_that_is_named() -> None:
    def finding(kind: str, severity: str) -> Finding:
        return Finding(kind, severity, (), (), NOW, "", (), "")

    verdict = Verdict(
        "critical", (finding("rank-killed", CRITICAL), finding("version-skew", INFO)), ""
    )
    assert health_of(verdict) == Health("critical", "rank-killed", "")
    calm = Verdict("ok", (finding("cancelled", INFO),), "ok: 4/4 moving")
    assert health_of(calm) == Health("ok", None, "ok: 4/4 moving")


def test_every_word_of_a_filter_is_looked_for_in_name_script_and_hosts() -> None:
    found = listed([entry("Train-7b", host="gpu7"), entry("eval", script="score.py")], NOW)

    assert [one.entry.job for one in passing(found, "train GPU7")] == ["Train-7b"]
    assert [one.entry.job for one in passing(found, "score")] == ["eval"]
    assert passing(found, "train score") == []
    assert passing(found, "  ") == found


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([], "no live job"),
        ([entry("a")], "1 live job"),
        ([entry("a"), entry("b"), ended("c")], "2 live jobs, 1 ended"),
        ([ended("c")], "no live job, 1 ended"),
    ],
)
def test_the_heading_counts(jobs: list[registry.JobEntry], said: str) -> None:
    assert heading(listed(jobs, NOW)) == said


NAMES = st.text(max_size=70) | st.sampled_from(
    ["ファインチューニング-日本語-とても長い名前のジョブ", "a" * 64, "x\x1b[2Jy", "e\u0301" * 9]
)


@given(
    st.lists(
        st.tuples(NAMES, NAMES, NAMES, st.integers(0, 65_536), st.booleans(), st.floats(0, 1e8)),
        max_size=5,
    ),
    st.integers(24, 220),
    st.sampled_from([UNICODE, ASCII]),
)
def test_no_row_is_wider_than_its_terminal_whatever_jobs_and_hosts_are_called(
    told: list[tuple[str, str, str, int, bool, float]], width: int, glyphs: Glyphs
) -> None:
    make = {True: entry, False: ended}
    jobs = [
        make[live](name or "job", age, run=str(number), host=host, script=script, world_size=world)
        for number, (name, host, script, world, live, age) in enumerate(told)
    ]
    found = listed(jobs, NOW)
    table = columns(found, width)
    health = Health("critical", "rank-missing")
    lines = [table.titles(), *(row(one, table, health, NOW, glyphs) for one in found)]
    # Three parts are never left out: the name, the health, and the ranks.
    least = (
        10
        + 2
        + 14
        + 2
        + max([5, *(len(f"{one.reporting:,}/{one.entry.world_size:,}") for one in found)])
    )

    assert all(line_width(line) <= max(width, least) for line in lines)
    assert len({line_width(line) for line in lines}) == 1
    assert not any("\x1b" in text for line in lines for text, _ in line)


def test_the_list_is_put_in_order_and_live_jobs_stay_first() -> None:
    names = ("calm", "hung", "slow", "quiet")
    jobs = listed([entry(name, age) for age, name in enumerate(names, 1)] + [ended("a")], NOW)
    health = {
        (name, jobs[0].key[1]): found
        for name, found in {
            "calm": Health("ok", steps_per_s=9.0, still_s=0.0),
            "hung": Health("critical", "loader-stuck", still_s=31.0),
            "slow": Health("warning", "straggler", steps_per_s=0.1, still_s=2.0),
            "quiet": Health("unknown"),
        }.items()
    }

    def order(by: str) -> list[str]:
        return [one.entry.job for one in in_order(jobs, health, by)]

    assert order(NEWEST) == ["calm", "hung", "slow", "quiet", "a"]
    assert order(WORST) == ["hung", "slow", "quiet", "calm", "a"]
    assert order(NAME) == ["calm", "hung", "quiet", "slow", "a"]
    assert order(SLOWEST) == ["slow", "calm", "hung", "quiet", "a"]
    assert order(STUCK) == ["hung", "slow", "calm", "quiet", "a"]


def test_a_wide_row_says_how_the_job_goes_and_what_is_wrong() -> None:
    health = Health(
        "critical", "loader-stuck", "rank 2 waits for its loader", 7, 8, 0.52, 31.0, 0.4
    )

    (line,) = shown([entry("train")], 160, health)

    for text in ("✖ loader-stuck", "7/8", "0.52", "31s", "rank 2 waits for its loader"):
        assert text in line


def test_health_of_a_look_has_its_numbers() -> None:
    job = trained()
    job.ranks[2].stands_at("fetch_labels", "data.py", 40)
    job.others_wait(2)
    job.passes(8)

    found = health_of(job.verdict(), job.snapshot())

    assert (found.word, found.kind) == ("critical", "not-in-collective")
    assert (found.reporting, found.world_size, found.steps_per_s) == (4, 4, None)
    assert found.sentence is not None
    assert "rank 2" in found.sentence
    assert found.still_s is not None
    assert 5 < found.still_s < 12


def in_system(*roles: str | None, kind: str | None = None) -> list[tuple[Listed, Health]]:
    """A program for each role: what its ranks call themselves."""
    jobs = [
        Listed(entry(f"job{at}", script="train.py"), True, 8, ("n",)) for at in range(len(roles))
    ]
    health = CRITICAL if kind else OK
    return [(job, Health(health, kind, role=role)) for job, role in zip(jobs, roles, strict=True)]


def test_a_program_is_called_what_its_ranks_call_themselves_else_its_script_else_its_job() -> None:
    def roles(*given: str | None) -> list[str]:
        return [job.role for job, _ in with_roles(in_system(*given))]

    assert roles("trainer", None) == ["trainer", "train"]
    assert roles("trainer", None, None) == ["trainer", "job1", "job2"]
    assert roles("rollout", "rollout") == ["job0", "job1"]


def test_the_program_at_fault_stands_before_those_that_wait_for_it() -> None:
    calm, waits, fault = (
        *in_system("a"),
        *in_system("b", kind="waits-for-job"),
        *in_system("c", kind="not-in-collective"),
    )

    assert [job.role for job, _ in with_roles([calm, waits, fault])] == ["c", "b", "a"]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_each_program_has_a_line_and_that_of_the_shown_job_a_sign(width: int) -> None:
    programs = with_roles(in_system("trainer", "rollout"))

    titles, *lines = map(plain, program_lines(programs, "job1", width, NOW, ASCII))

    assert titles.split()[:2] == ["ROLE", "JOB"]
    assert [line.split()[:2] for line in lines] == [["trainer", "job0"], [">", "rollout"]]
    assert all(len(line) <= width for line in (titles, *lines))


def test_findings_of_the_programs_come_with_their_role_and_the_critical_ones_first() -> None:
    def found(severity: str) -> Finding:
        return Finding(Kind.STRAGGLER, severity, (0,), (), "", (), "")

    (slow, health), (stuck, _) = with_roles(in_system("trainer", "rollout"))
    programs = [
        (slow, replace(health, findings=(found(INFO), found(WARNING)))),
        (stuck, replace(health, findings=(found(CRITICAL),))),
    ]

    told = [(role, one.severity) for role, one in findings_beside(programs)]
    assert told == [("rollout", CRITICAL), ("trainer", WARNING), ("trainer", INFO)]
