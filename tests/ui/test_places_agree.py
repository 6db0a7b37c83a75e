"""Two places of the screen, of the list of jobs and of the JSON say the same of the same thing, at
each moment of each simulated job."""

import re
from collections import Counter
from dataclasses import replace
from statistics import median

import pytest

from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.rank_state import culprits
from ddtop.follow.history import JobHistory, empty_memory
from ddtop.follow.look import Look
from ddtop.model.facts import State
from ddtop.policy import POLICY
from ddtop.present.documents import diagnose_json, status_json
from ddtop.present.events import JOIN, EventLog
from ddtop.present.findings import banner_lines, header_line
from ddtop.present.job_charts import title_of
from ddtop.present.jobs import health_of
from ddtop.present.map import class_of, codes_of
from ddtop.present.now import BEGUN_S, now_age_s
from ddtop.present.numbers import BY_KEY
from ddtop.present.plain import diagnose_text, status_text
from ddtop.present.rank import detail_lines
from ddtop.present.scene import Scene
from ddtop.present.strip import THROUGHPUT
from ddtop.present.text import plain
from ddtop.sim.incidents import SCENARIOS
from ddtop.ui.rows import legend_line
from ddtop.words.units import SECOND_NS, duration
from tests.sim.watching import Watcher, simulated

RANKS, SECONDS, WIDE = 16, 32, 400


def moments(name):
    """(snapshot, verdict, history) of each second; what happens begins in the third."""
    incidents = tuple(
        replace(one, begin_s=min(one.begin_s, 3.0), end_s=26.0 if one.end_s else None)
        for one in SCENARIOS[name].incidents[:1]
    )
    watcher, history = Watcher(simulated(RANKS, *incidents)), JobHistory(POLICY)
    for second in range(1, SECONDS):
        snapshot, verdict = watcher.until(float(second))
        history.record(snapshot)
        yield snapshot, verdict, history


def header_of(snapshot, history):
    per_s = history.now(snapshot.time_unix_ns).iterations_per_s
    return plain(header_line(snapshot, WIDE, per_s=per_s))


def first(pattern, text):
    found = re.search(pattern, text)
    return found and found[1]


def say_the_same_numbers(snapshot, verdict, history, seen):
    """The header, the strip, the list of jobs and the JSON."""
    header, health = header_of(snapshot, history), health_of(verdict, snapshot)
    strip = plain(title_of(Scene(snapshot, history, verdict), THROUGHPUT, WIDE))
    json = diagnose_json(snapshot, verdict)

    assert header.split("  ")[1] == f"{health.reporting}/{health.world_size} ranks"
    assert json["reporting"] == health.reporting
    assert json["world_size"] == health.world_size
    if (shown := first(r"iter ([\d,]+)", header)) is not None:
        seen["iteration"] += 1
        assert int(shown.replace(",", "")) == json["iteration"]
    if (speed := first(r"(\S+) it/s", header)) is not None:
        seen["speed"] += 1
        assert speed == first(r"(\S+) it/s", strip)
    if (still := first(r"NO PROGRESS (.+?)  ", header)) is not None:
        seen["still"] += 1
        assert still == duration(health.still_s)
        assert first(r"(\S+) it/s", strip) in (None, "0.0")


def say_the_same_of_each_rank(snapshot, verdict):
    """The banner, the list of jobs, the JSON, the map and the pages."""
    banner = "\n".join(map(plain, banner_lines(snapshot, verdict, WIDE)))
    health, json = health_of(verdict, snapshot), diagnose_json(snapshot, verdict)
    codes = codes_of(snapshot, culprits(verdict))
    legend = plain(legend_line(snapshot, codes, WIDE))
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (?!on )([a-z]+)", legend)}

    assert counts == Counter(class_of(code).word for code in codes)
    assert [finding["kind"] for finding in json["findings"]] == [
        finding.kind for finding in verdict.findings
    ]
    if verdict.findings:
        assert verdict.findings[0].summary.split(";")[0] in banner.replace("\n  ", " ")
    for finding in verdict.findings:
        # Who waits for a straggler is not `running` in one second and `waiting` in the next.
        if finding.kind == Kind.STRAGGLER:
            assert State.RUNNING not in {snapshot.rank(rank).state for rank in finding.victims}
    if health.kind is not None:
        assert health.kind == verdict.findings[0].kind
    if (moving := first(r"ok: (\d+)/16 moving", banner)) is not None:
        assert int(moving) == snapshot.moving
        assert State.BLOCKED not in {rank.state for rank in snapshot.ranks}
    for number in (0, 5, RANKS - 1):
        page = plain(detail_lines(snapshot, number, empty_memory(), WIDE)[0])
        assert snapshot.rank(number).state.value in page


JSON_OF = {
    "iteration": lambda rank: rank["iteration"],
    "step": lambda rank: rank["step_ms"],
    "comm": lambda rank: rank["wait_ratio"],
    "loader": lambda rank: rank["loader"] and rank["loader"]["depth"],
    "cpu": lambda rank: rank["cpu_ratio"],
    "rss": lambda rank: rank["rss_bytes"],
    "pid": lambda rank: rank["pid"],
    "heard": lambda rank: rank["report_age_s"],
}
"""The numbers of a rank that both the table and the JSON have."""


def say_the_same_times(snapshot, verdict, timeline):
    """The events, the strip, what `watch` prints first, and the findings with their begin."""
    timeline.take(Look(snapshot, verdict))
    joined = next((entry for entry in timeline.events if entry.what == JOIN), None)
    if joined is not None and snapshot.first_hello_unix_ns is not None:
        assert joined.began_unix_ns <= snapshot.first_hello_unix_ns + 5 * SECOND_NS
        assert snapshot.first_hello_unix_ns <= joined.began_unix_ns + 5 * SECOND_NS
    begun = {
        event.finding: event.since_unix_ns
        for event in EventLog(POLICY).take(Look(snapshot, verdict))
        if event.finding
    }
    told = diagnose_text(snapshot, verdict, WIDE)
    for finding in verdict.findings:
        age_s = (snapshot.time_unix_ns - finding.since_unix_ns) / SECOND_NS
        assert begun[finding] == (finding.since_unix_ns if age_s >= 5 else None)
        assert f"{finding.severity}: {finding.kind}, for {duration(age_s)}" in told


def say_the_same_in_each_row(snapshot, verdict, history, seen):
    """The rows of the screen, of `status` and of the JSON, the header, the strip and the lanes."""
    now, json = snapshot.time_unix_ns, status_json(snapshot, verdict)
    status, header = status_text(snapshot, verdict, WIDE), header_of(snapshot, history)
    diagnosed = diagnose_text(snapshot, verdict, WIDE)
    steps = []
    for rank, told in zip(snapshot.ranks, json["ranks"], strict=True):
        for key, read in JSON_OF.items():
            assert BY_KEY[key].value(rank, now) == read(told), (rank.rank, key)
        age_s = now_age_s(rank, now)
        assert rank.process.exit is None or age_s is None
        if rank.state in (State.RUNNING, State.WAITING) and age_s is not None:
            seen["for"] += 1
            assert age_s - (rank.agent.report_age_s or 0.0) >= BEGUN_S
        if not rank.gone and not rank.agent.unheard and rank.progress.step_now_ms:
            steps.append(rank.progress.step_now_ms)
    # `status` has no history, and says the same header but for the speed.
    parts = [part for part in header.split("  ") if part and "it/s" not in part]
    assert all(part in status and part in diagnosed for part in parts[:-1])
    speed = first(r"([\d.]+) it/s", header)
    if steps and speed is not None and history.changes > seen["changes"]:
        # The history has taken this very moment.
        seen["step"] += 1
        assert float(speed) == pytest.approx(1000 / median(steps), rel=0.02, abs=0.06)
    seen["changes"] = history.changes
    assert ("ENDED" in header) == (not snapshot.live)
    assert " ago" not in header or snapshot.live


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_all_places_agree(name):
    seen = Counter()
    timeline = EventLog(POLICY)
    for snapshot, verdict, history in moments(name):
        say_the_same_times(snapshot, verdict, timeline)
        say_the_same_numbers(snapshot, verdict, history, seen)
        say_the_same_of_each_rank(snapshot, verdict)
        say_the_same_in_each_row(snapshot, verdict, history, seen)
    # A job whose ranks have not met yet has no number to compare.
    if name == "rank-missing":
        return
    assert seen["iteration"] > 10
    assert seen["speed"] + seen["still"] > 10
