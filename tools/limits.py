"""Which limits of the policy does no test notice? `python -m tools.limits`.

A place is a function of ddtop that reads a limit. For each place, that function alone gets half of
the limit, and the tests that come there are run, the nearest first. The first that fails has
noticed. The recorded jobs that come there are played as well: a changed finding notices too. Where
nobody does, the function gets twice as much, then a hundredth and a hundred times as much. Then

    nobody notices        the place may ignore the limit, or compare in the wrong direction
    only noticed far off  there is no test at the edge of the limit

Tests read the unchanged limits, so one that computes its times from the policy notices like any
other. Which tests come where is found by a run of all of `QUICK` and `SLOWER`: three minutes.

`--only` takes the beginning of a limit (`not-in-collective`, `still_limit_s`) or of a place
(`diagnosis/rules/straggler.py`). `--into FOLDER` keeps all results, and goes on after those that
FOLDER has. Ends with exit code 1 if there is a place where nobody notices.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest

import ddtop.diagnosis.limits  # noqa: F401  # it imports all blocks
from ddtop.policy import POLICY, Limits, Policy
from tools.recorded.findings import played, unpacked
from tools.recorded.record import JOBS, ZOO

ROOT = Path(__file__).resolve().parents[1]
CODE = f"{ROOT / 'ddtop'}{os.sep}"
QUICK = ("model", "diagnosis", "findings", "say", "present", "sim")
"""The tests of these rooms judge all places."""
SLOWER = ("feeds", "follow", "cli/check", "relay/gpus", "ui/test_pages.py")
"""Tests that start processes: they judge the places of their own room."""
NEAR, FAR = (0.5, 2.0), (0.01, 100.0)
NEAREST = 100
"""So many tests are run before the recorded jobs, and the others after them."""
RECORDED = "recorded job "
ASKED = ("wait_s", "longest_wait_s", "<genexpr>")
"""Methods of a policy that read a limit for who calls them."""


class Place(NamedTuple):
    """A function that reads a limit: `straggler.ratio in model/arrivals.py: _is_late`."""

    limit: str
    code: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.limit} in {self.code}"


class Reads:
    """Sees each read of a limit in this process. `places`: those that there were, to be emptied by
    whoever wants to know about a part of the time. `changed`: that place gets `factor` times the
    limit.
    """

    def __init__(self) -> None:
        """From now on."""
        self.places = set[Place]()
        self.changed, self.factor = Place("", ""), 1.0
        for owner in (Policy, Limits):
            owner.__getattribute__ = self._reader()  # type: ignore[method-assign]

    def _reader(self) -> Callable[[Any, str], Any]:
        limits, plain, reads = POLICY.values(), object.__getattribute__, self

        def read(self: Any, name: str) -> Any:
            value = plain(self, name)
            code = _reading_code()
            if code is None:
                return value
            block = getattr(type(self), "block", "")
            place = Place(f"{block}.{name}" if block else name, _named(code))
            if place.limit not in limits:
                return value
            reads.places.add(place)
            return value if place != reads.changed else reads.other(value, limits[place.limit])

        return read

    def other(self, value: float | None, ours: float) -> float:
        """What the changed place gets. A limit may be None, which stands for another one."""
        own = ours if value is None else value
        return max(1, int(own * self.factor)) if isinstance(own, int) else own * self.factor


def _reading_code() -> CodeType | None:
    """The function of ddtop that reads an attribute now; None if it is another's or the policy's
    own, which copies, compares and lists limits.
    """
    frame = sys._getframe(2)
    policy = f"{CODE}policy.py"
    while frame.f_code.co_filename == policy and frame.f_code.co_name in ASKED and frame.f_back:
        frame = frame.f_back
    name = frame.f_code.co_filename
    return frame.f_code if name.startswith(CODE) and name != policy else None


@cache
def _named(code: CodeType) -> str:
    name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11
    return f"{code.co_filename.removeprefix(CODE)}: {name.replace('.<locals>', '')}"


def in_a_fork(work: Callable[[], Any]) -> Any:
    """What the work returns, in a process of its own that says nothing."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        with open(write, "w") as told, contextlib.suppress(BaseException):
            json.dump(work(), told)
        os._exit(0)
    os.close(write)
    with open(read) as told:
        text = told.read()
    os.waitpid(pid, 0)
    return json.loads(text)


class Jury:
    """A plugin of pytest: the tests and the recorded jobs judge each place in a fork. So they are
    imported once.
    """

    def __init__(self, folder: Path, only: str, kept: Path | None) -> None:
        """`folder`: for the recorded jobs. `kept`: a folder with what an earlier run found."""
        self.journals = [*unpacked(ZOO, folder / "zoo"), *unpacked(JOBS, folder / "jobs")]
        self.only, self.kept, self.reads = only, kept or folder, Reads()
        self.judged = dict[Place, tuple[float, str]]()
        self.items, self.failed = dict[str, pytest.Item](), ""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge all places, in place of running the tests."""
        if session.testsfailed:
            raise session.Failed("some tests cannot be imported")
        self.items = {item.nodeid: item for item in session.items}
        places, lines = self.kept / "places.json", self.kept / "results.jsonl"
        if not places.exists():
            found = [in_a_fork(self._places_of_tests), in_a_fork(self._places_of_jobs)]
            places.write_text(json.dumps(found))
        self.tests, self.jobs = (
            {Place(*one): names for one, names in part} for part in json.loads(places.read_text())
        )
        lines.touch()
        before = map(json.loads, lines.read_text().splitlines())
        known = {Place(*place): (*more,) for place, *more in before}
        with lines.open("a") as told:
            for place in sorted({*self.tests, *self.jobs}, key=self._tests_at):
                if not (place.limit.startswith(self.only) or place.code.startswith(self.only)):
                    continue
                if place not in known:
                    known[place] = self._judge(place)
                    print(json.dumps([place, *known[place]]), file=told, flush=True)
                self.judged[place] = factor, who = known[place]
                print(f"{place} x{factor}: {who or 'nobody'}", flush=True)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the first failure."""
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def _run(self, names: list[str]) -> Iterator[str]:
        """Run these tests, and yield each one that has passed."""
        items = [self.items[name] for name in names if name in self.items]
        for item, after in zip(items, [*items[1:], None], strict=False):
            self.reads.places.clear()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if self.failed:
                return
            yield item.nodeid

    def _places_of_tests(self) -> list[tuple[Place, list[str]]]:
        found = dict[Place, list[str]]()
        for name in list(self.items):
            for passed in self._run([name]):
                for place in self.reads.places:
                    found.setdefault(place, []).append(passed)
            self.failed = ""
        return list(found.items())

    def _places_of_jobs(self) -> list[tuple[Place, list[str]]]:
        found = dict[Place, list[str]]()
        for path in self.journals:
            self.reads.places.clear()
            played(path)
            for place in self.reads.places:
                found.setdefault(place, []).append(path.stem)
        return list(found.items())

    @cache  # noqa: B019  # one jury lives as long as the program
    def _ours(self, path: Path) -> str:
        return played(path)

    def _tests_at(self, place: Place) -> int:
        return len(self.tests.get(place, ()))

    def _judge(self, place: Place) -> tuple[float, str]:
        """The first factor that somebody notices, and who; "" if nobody notices any."""
        tests = self._nearest_first(place)
        journals = [path for path in self.journals if path.stem in self.jobs.get(place, ())]
        ours = {path: self._ours(path) for path in journals}

        def by_tests(some: list[str]) -> str:
            for _ in self._run(some):
                pass
            return self.failed

        def by_jobs() -> str:
            for path in journals:
                with contextlib.suppress(Exception):
                    if played(path) == ours[path]:
                        continue
                return RECORDED + path.stem
            return ""

        def noticed(factor: float) -> str:
            self.reads.changed, self.reads.factor = place, factor
            return by_tests(tests[:NEAREST]) or by_jobs() or by_tests(tests[NEAREST:])

        for factor in (*NEAR, *FAR):
            while who := in_a_fork(partial(noticed, factor)):
                if who not in self.items or not in_a_fork(partial(by_tests, [who])):
                    return factor, who
                print(f"{who} fails without a change, and is left out", flush=True)
                tests.remove(who)
        return FAR[-1], ""

    def _nearest_first(self, place: Place) -> list[str]:
        """The tests that come there: those of its file, then those that come to few places."""
        own = f"test_{Path(place.code.partition(':')[0]).stem}"
        rooms = tuple(f"tests/{one}/" for one in (*QUICK, place.code.partition("/")[0]))
        places = Counter(one for tests in self.tests.values() for one in tests)
        tests = [one for one in self.tests.get(place, []) if one.startswith(rooms)]
        return sorted(tests, key=lambda one: (own not in one, places[one]))


def main() -> None:
    """Judge the places, and list those where nobody notices."""
    parser = argparse.ArgumentParser(prog="python -m tools.limits", description=__doc__)
    parser.add_argument("--only", default="", help="the beginning of a limit or of a place")
    parser.add_argument("--into", type=Path, help="keep the results there, and go on after them")
    given = parser.parse_args()
    os.chdir(ROOT)
    if given.into:
        given.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        jury = Jury(Path(folder), given.only, given.into)
        options = ("-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist")
        pytest.main([*options, *(f"tests/{room}" for room in (*QUICK, *SLOWER))], [jury])
    judged = jury.judged.items()
    far = [f"{place}" for place, (factor, who) in judged if who and factor in FAR]
    unseen = [f"{place}" for place, (_, who) in judged if not who]
    print("", f"{len(judged)} places; only noticed far off:", *far, sep="\n")
    print("", "nobody notices:", *unseen, sep="\n")
    sys.exit(bool(unseen))


if __name__ == "__main__":
    # A finding may say when, in local time.
    os.environ["TZ"] = "UTC"
    time.tzset()
    main()
