"""Text, relay and viewer follow the policy that is passed in, as the rules do.

The rules have tests of their own: tests/diagnosis/test_policy.py. So does the agent, which has
limits: tests/agent/test_limits.py.
"""

import ast
import functools
import re
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

import ddtop
from ddtop import thresholds
from ddtop.diagnosis.finding import Verdict
from ddtop.diagnosis.limits import OLD_NAMES
from ddtop.follow.changes import Changes
from ddtop.follow.engine import Engine, Follower
from ddtop.follow.fleet import tally_of
from ddtop.follow.history import JobHistory
from ddtop.follow.look import Look
from ddtop.model.arrivals import Straggler
from ddtop.model.facts import HostSeen, Late, ProgressFacts, RankFacts, Snapshot, State
from ddtop.policy import BLOCKS, POLICY, Limits, Policy, Waits
from ddtop.present.gpus import driver_text, is_free
from ddtop.present.groups import group_waits, order_of
from ddtop.present.hosts import clock_text
from ddtop.present.stacks import answers, around, merged_of
from ddtop.present.strip import THROUGHPUT, compared
from ddtop.relay.gpus.ras import Ras
from ddtop.wire import frames
from ddtop.wire.records import LEAF, Gpu, GpuWatch, HostState, Reply
from tests.ui import builders, changed, dumps

ROOM = Path(ddtop.__file__).parent
EDGES = ("cli", "relay/server.py", "thresholds.py")
"""The programs choose the policy. `thresholds.py` keeps the choice of a viewer's process."""
STARTS = (
    *(
        "api.py",
        "cli",
        "ui",
        "follow/engine.py",
        "follow/recording.py",
        "follow/looks.py",
        "feeds",
    ),
    *(f"present/{page}.py" for page in ("findings", "gpus", "groups", "hosts", "numbers", "rank")),
)
"""Where a viewer begins to follow a job, or draws it: these ask for that choice and pass it on."""
SHARED = [name for name in POLICY.values() if "." not in name]
LONG_S = 3600.0
SECOND = 1_000_000_000
HANG, VERDICT = builders.hang()


def with_(**changes):
    """A policy that differs from that of the commands."""
    return POLICY.with_limits(changes)


def modules_that_import(name):
    return {
        path.relative_to(ROOM).as_posix()
        for path in ROOM.rglob("*.py")
        if name in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.alias) and node.name == name
    }


@pytest.mark.parametrize(("name", "allowed"), [("POLICY", EDGES), ("chosen", STARTS)])
def test_only_programs_choose_the_policy(name, allowed):
    """A program that embeds ddtop, or a test, may judge by other thresholds."""
    found = modules_that_import(name)

    assert found
    assert {path for path in found if not path.startswith(allowed)} == set()


PLUMBING = {
    "judge.STEP_NS": "how often a second opinion counts, which is how often agents report",
    "hosts.OFFSET_MAX_NS": "no clock is 40 years off: a value beyond it is garbage",
    "memory.KEEP_S": "how much is kept",
    "starting._TIMEOUT_S": "what torch does where the program gives no timeout",
    "starting._DEFAULT_TIMEOUT_S": "the same for one backend",
    "events.APART_NS": "losses of our own, listed as one entry or as two",
    "events.SAME_NS": "how precisely two relays say when something began",
    "events.TOGETHER_NS": "what is listed as one entry",
    "groups.SECOND_NS": "a second",
    "strip.SPANS_S": "lengths of lines that are drawn",
    "rank._SPOT_LEAST_RATIO": "how often a rank was at a line that its page lists",
    "map.SETTLE_NS": "which looks follow each other, on a map that must not flicker",
}
"""Numbers with a unit that are not in the policy: they do not judge."""


def test_no_threshold_of_model_diagnosis_and_present_is_outside_the_policy():
    unit = re.compile(r"_(NS|MS|S|RATIO|FACTOR|SHARE|LOOKS|CHANGE)$")
    found = {
        f"{path.stem}.{name.id}"
        for room in ("model", "diagnosis", "present")
        for path in (ROOM / room).rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and unit.search(name.id)
    }

    assert found == set(PLUMBING)


def test_model_and_diagnosis_compare_with_no_bare_fraction():
    """A number in the middle of a function is as much a threshold as a constant is."""
    found = {
        f"{path.stem}: {ast.unparse(node)}"
        for room in ("model", "diagnosis")
        for path in (ROOM / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, float)
        if part.value not in (0.0, 1.0, 1e3, 1e6, 1e9)
    }

    assert found == set()


@functools.cache
def texts():
    """The code of each file."""
    return {path.relative_to(ROOM).as_posix(): path.read_text() for path in ROOM.rglob("*.py")}


@functools.cache
def files_that_read():
    """For each shared limit, the files that read it."""
    found = {}
    for path, text in texts().items():
        for name in re.findall(r"(?:policy|chosen\(\))\.(\w+)", text):
            found.setdefault(name, set()).add(path)
    return found


def test_each_shared_limit_is_read_somewhere():
    assert [name for name in SHARED if name not in files_that_read()] == []


def test_a_limit_that_only_one_file_of_the_model_or_the_rules_reads_is_in_that_file():
    found = {name: sorted(files_that_read()[name]) for name in SHARED}
    rooms = ("model/", "diagnosis/")

    assert [
        name for name, (path, *more) in found.items() if not more and path.startswith(rooms)
    ] == []


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_read_in_its_own_file_only_and_each_of_its_limits_is(name):
    block = BLOCKS[name]
    own = Path(sys.modules[block.__module__].__file__).relative_to(ROOM).as_posix()
    asks = re.compile(rf"\b(?:of|wait_s)\({block.__name__}\)")
    wait_s = {"wait_s"} if issubclass(block, Waits) else set()
    read = {one.attr for one in ast.walk(ast.parse(texts()[own])) if isinstance(one, ast.Attribute)}

    files = [path for path, text in texts().items() if block.__name__ in text]
    assert [path for path in files if asks.search(texts()[path])] == [own]
    assert {one.name for one in fields(block)} - read - wait_s == set()


def test_no_two_blocks_have_one_name():
    with pytest.raises(TypeError, match="two blocks of limits are called straggler"):

        class Another(Limits, of="straggler"):
            """The name is taken."""


def test_every_old_name_is_the_name_of_the_same_limit_now():
    """`tests/old_thresholds.txt`: each name of `[thresholds]`, and its default."""
    lines = (ROOM.parent / "tests" / "old_thresholds.txt").read_text().splitlines()
    old = {name: float(value) for name, value in map(str.split, lines)}
    ours = POLICY.values()

    assert {name: ours[now] for name, now in OLD_NAMES.items()} == old
    assert set(ours) - set(OLD_NAMES.values()) == {
        f"{name}.{limit.name}"
        for name, block in BLOCKS.items()
        for limit in fields(block)
        if block.was is None or limit.name == "wait_s"
    }


def test_two_policies_are_in_one_process_and_a_block_is_that_of_its_policy():
    theirs = POLICY.with_limits({"straggler.ratio": 0.2, "still_limit_s": 7.0})
    again = theirs.with_limits({"straggler.steps": 20})

    assert POLICY.of(Straggler) is Policy().of(Straggler)
    assert [one.of(Straggler).ratio for one in (POLICY, theirs, again)] == [0.1, 0.2, 0.2]
    assert (theirs.of(Straggler).steps, again.of(Straggler).steps) == (16, 20)
    assert again.changes() == (
        ("still_limit_s", 7.0, 5.0),
        ("straggler.ratio", 0.2, 0.1),
        ("straggler.steps", 20, 16),
    )


def test_some_test_changes_each_limit():
    """tests/second_policy.py has the form of such a test; a page of tests/findings may do it."""
    tests = ROOM.parent / "tests"
    changed_somewhere = {
        name
        for path in (*tests.rglob("*.py"), *tests.rglob("*.md"))
        for found in re.findall(r'"([\w.-]+)"|\b(\w+)=', path.read_text())
        for name in found
    }

    assert set(POLICY.values()) - changed_somewhere == set()


def test_the_policy_says_from_when_a_wait_in_a_group_is_shown():
    assert group_waits(HANG, POLICY)
    assert group_waits(HANG, with_(wait_shown_s=LONG_S)) == {}


def test_the_policy_says_from_when_a_group_is_listed_first():
    waits = group_waits(HANG, POLICY)

    assert order_of(HANG, waits, ("other", *waits), POLICY)[0] != "other"
    later = with_(group_stuck_s=LONG_S)
    assert order_of(HANG, waits, ("other", *waits), later)[0] == "other"


def test_the_policy_says_how_long_a_reported_wait_is_named_beside_a_stack():
    snapshot = dumps.with_stacks(HANG)
    merged = merged_of(answers(snapshot, "r1"), VERDICT)

    assert around(snapshot, VERDICT, merged, None, POLICY).doing[0].startswith("waiting in")
    none = around(snapshot, VERDICT, merged, None, with_(wait_fresh_s=-1.0))
    assert not none.doing.get(0, "").startswith("waiting in")


def test_the_policy_says_which_gpu_is_free():
    gpu = Gpu(0, "GPU-a", 0.0, 1, 100)

    assert is_free(gpu, POLICY)
    assert not is_free(gpu, with_(gpu_free_ratio=0.001))


def test_the_policy_says_when_a_driver_is_silent():
    watch = GpuWatch(age_ms=20_000)

    assert driver_text(watch, POLICY)
    assert not driver_text(watch, with_(gpu_silent_s=LONG_S))


def test_the_policy_says_which_clock_is_shown_as_wrong():
    seen = HostSeen("a", "node1", LEAF, 3 * builders.SECOND, 0, builders.NOW)

    assert clock_text(seen, POLICY)
    assert not clock_text(seen, with_(clock_shown_s=LONG_S))


def is_stuck(policy, silent_s=0):
    """Whether the reader of NCCL's RAS service counts the job as stuck. An agent has reported that
    for 5 s, and then not for `silent_s`.
    """
    ras = Ras(policy)
    for second in range(5 + silent_s):
        if second < 5:
            ras.note_stuck(float(second))
        ras.look(float(second), ())
    return ras.is_stuck(5.0 + silent_s)


def test_the_policy_says_when_nccl_is_asked():
    assert is_stuck(POLICY)
    assert not is_stuck(with_(ras_stuck_s=LONG_S))
    assert not is_stuck(POLICY, 5)


def test_the_policy_says_when_a_relay_is_silent_and_before_its_ranks_are(monkeypatch):
    follower = Follower("train")

    assert follower.policy.relay_silent_s < follower.policy.report_silent_s
    monkeypatch.setattr(thresholds, "_chosen", with_(relay_silent_s=LONG_S))
    assert Follower("train").policy.relay_silent_s == LONG_S


def test_the_policy_says_over_which_pause_nothing_is_added_up():
    late = Late("g", (0,), (1,), 20.0, 100.0, 30, 1.0, 0)

    def lost_s(policy):
        tally = None
        for second in (1000, 1010, 1020):
            rank = RankFacts(0, State.RUNNING, late=late)
            snapshot = Snapshot("train", "r1", 0, second * SECOND, True, 1, 1, (rank,))
            tally = tally_of(snapshot, tally, policy)
        return tally.lost_s

    assert lost_s(POLICY) == pytest.approx(4.0)
    assert lost_s(with_(goodput_gap_s=5.0)) == 0


def test_the_policy_says_when_a_viewer_is_behind():
    def problems(policy):
        engine = Engine("train")
        engine._late_s, engine._current = 10.0, SimpleNamespace(policy=policy)
        return [one for one in engine._notes() if "behind" in one]

    assert problems(POLICY)
    assert not problems(with_(viewer_late_s=LONG_S))


def test_the_policy_says_when_a_long_step_lowers_the_goodput():
    def goodput(policy):
        tally = None
        for second, iteration in [(0, 1), (1, 2), (2, 3), (5, 3)]:
            progress = ProgressFacts(iteration=iteration, step_ms=1000.0)
            rank = RankFacts(0, State.RUNNING, progress=progress)
            now = (1000 + second) * SECOND
            snapshot = Snapshot(
                "train", "r1", 0, now, True, 1, 1, (rank,), iteration=iteration
            )  # fmt: skip
            tally = tally_of(snapshot, tally, policy)
        return tally.goodput_ratio

    assert goodput(POLICY) < goodput(with_(goodput_step_factor=100.0))


def looking(seconds, *findings, contact=None):
    snapshot = Snapshot("train", "r1", 0, (1000 + seconds) * SECOND, True, 1, 1, ())
    return Look(snapshot, Verdict("healthy", findings, ""), contact)


def test_the_policy_says_when_a_finding_may_clear_after_a_relay_is_heard_again():
    def clears(policy):
        changes = Changes(policy)
        for look in (looking(0, *VERDICT.findings), looking(1, contact="no"), looking(2)):
            changes.take(look)
        return [one.event for one in changes.take(looking(3))]

    assert clears(POLICY) == []
    assert clears(with_(contact_settles_s=0.5)) == ["cleared"] * len(VERDICT.findings)


def slower(policy):
    """The text of the strip for a job that became slower after 100 s, and again four minutes
    ago.
    """
    base = builders.healthy(2)
    history, now = JobHistory(policy), base.time_unix_ns
    for before in range(900, -1, -2):
        speed = 6.0 if before > 800 else 5.0 if before > 240 else 4.5
        at = now - before * SECOND
        history.record(
            changed.replace(base, time_unix_ns=at, iterations_per_s=speed, iteration=900 - before)
        )
    return compared(THROUGHPUT, history, now)


@pytest.mark.parametrize(
    "changes",
    [
        {"job_now_s": 600.0},
        {"job_warm_s": 700.0},
        {"job_first_s": 3000.0},
        {"job_lately_s": 300.0},
        {"job_apart_s": LONG_S},
        {"job_change_ratio": 0.5},
        {"slowdown_warning_ratio": 0.05},
    ],
)
def test_the_policy_says_with_what_the_numbers_of_a_job_are_compared(changes):
    ours = slower(POLICY)

    assert [text.split(" than")[0] for text in ours.texts] == ["25 % slower", "10 % slower"]
    assert not ours.great
    assert slower(with_(**changes)) != ours


def test_the_policy_says_which_clocks_are_the_same(monkeypatch):
    def offset_s(policy):
        """How far the clock of a job is ahead that differs by five seconds."""
        monkeypatch.setattr(thresholds, "_chosen", policy)
        follower = Follower("train", clock=lambda: 100 * SECOND)
        for record in (HostState("node1", 1, 0.0), Reply("live"), HostState("node1", 1, 0.0)):
            follower.take(frames.seal(record, sender="node1", unix_ns=105 * SECOND, mono_ns=SECOND))
        return (follower.now_unix_ns() - 100 * SECOND) / SECOND

    assert offset_s(POLICY) == pytest.approx(5.0)
    assert offset_s(with_(clock_apart_s=60.0)) == pytest.approx(0.0)
