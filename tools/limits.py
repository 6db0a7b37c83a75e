"""Which limits of the policy does no test notice? `python -m tools.limits`.

A place is a function of ddtop that reads a limit. For each place, that function alone gets half of
the limit, and the tests that come there are run, the nearest first. The first that fails has
noticed. The recorded jobs that come there are played as well: a changed finding notices too. Where
nobody does, the function gets twice as much, then a hundredth and a hundred times as much. Then

    nobody notices        the place may ignore the limit, or compare in the wrong direction
    only noticed far off  there is no test at the edge of the limit

Tests read the unchanged limits, so one that computes its times from the policy notices like any
other. Which tests come where is found by a run of those of `ROOMS`, which takes three minutes.

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
from collections.abc import Callable, Collection, Iterator
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
ROOMS = ("model", "diagnosis", "present", "feeds", "follow", "sim", "cli/check", "relay/gpus")
"""Their tests read limits, and are quick."""
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
    whoever wants to know about a part of the time.
    """

    def __init__(self, changed: Place | None = None, factor: float = 1.0) -> None:
        """From now on. `changed`: this place gets the limit times `factor`."""
        self.places = set[Place]()
        for owner in (Policy, Limits):
            owner.__getattribute__ = self._reader(changed, factor)  # type: ignore[method-assign]

    def _reader(self, changed: Place | None, factor: float) -> Callable[[Any, str], Any]:
        limits, plain, places = POLICY.values(), object.__getattribute__, self.places

        def read(self: Any, name: str) -> Any:
            value = plain(self, name)
            code = _reading_code()
            if code is None:
                return value
            block = getattr(type(self), "block", "")
            place = Place(f"{block}.{name}" if block else name, _named(code))
            if place.limit not in limits:
                return value
            places.add(place)
            if place != changed:
                return value
            own = limits[place.limit] if value is None else value
            return max(1, int(own * factor)) if isinstance(own, int) else own * factor

        return read


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


class ReadByTests:
    """A plugin of pytest that finds out which tests come to which places."""

    def __init__(self) -> None:
        """For one run."""
        self.reads, self.found = Reads(), dict[Place, list[str]]()

    def pytest_runtest_setup(self) -> None:
        self.reads.places.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            for place in self.reads.places:
                self.found.setdefault(place, []).append(report.nodeid)


class FirstFailure:
    """A plugin of pytest that runs some tests only, and keeps the first that fails."""

    def __init__(self, tests: Collection[str]) -> None:
        """`tests`: their names."""
        self.tests, self.name = tests, ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [one for one in items if one.nodeid in self.tests]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid


def run_tests(files: Collection[str], plugin: object) -> None:
    """Run them in this process."""
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files], [plugin])


def in_a_fork(work: Callable[[], Any]) -> Any:
    """What the work returns, in a process of its own that says nothing."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        with open(write, "w") as told, contextlib.suppress(BaseException):
            json.dump(work(), told)
        os._exit(0)
    os.close(write)
    with open(read) as told:
        text = told.read()
    os.waitpid(pid, 0)
    return json.loads(text)


class Jury:
    """The tests and the recorded jobs, and to which places they come."""

    def __init__(self, folder: Path, kept: Path | None) -> None:
        """`folder`: for the recorded jobs. `kept`: a folder with what an earlier run found."""
        self.journals = [*unpacked(ZOO, folder / "zoo"), *unpacked(JOBS, folder / "jobs")]
        file = kept / "places.json" if kept else Path(os.devnull)
        if file.is_file():
            found = json.loads(file.read_text())
        else:
            found = [in_a_fork(self._places_of_tests), in_a_fork(self._places_of_jobs)]
            file.write_text(json.dumps(found))
        self.tests, self.jobs = ({Place(*one): names for one, names in part} for part in found)

    def _places_of_tests(self) -> list[tuple[Place, list[str]]]:
        plugin = ReadByTests()
        run_tests([f"tests/{room}" for room in ROOMS], plugin)
        return list(plugin.found.items())

    def _places_of_jobs(self) -> list[tuple[Place, list[str]]]:
        reads, found = Reads(), dict[Place, list[str]]()
        for path in self.journals:
            reads.places.clear()
            played(path)
            for place in reads.places:
                found.setdefault(place, []).append(path.stem)
        return list(found.items())

    def places(self) -> list[Place]:
        """All, those first to which few tests come."""
        return sorted({*self.tests, *self.jobs}, key=lambda one: len(self.tests.get(one, ())))

    @cache  # noqa: B019  # one jury lives as long as the program
    def _ours(self, path: Path) -> str:
        return played(path)

    def noticed_by(self, place: Place, factor: float) -> str:
        """The first that notices the change; "" if nobody does."""
        tests = self._nearest_first(place)
        journals = [path for path in self.journals if path.stem in self.jobs.get(place, ())]
        ours = {path: self._ours(path) for path in journals}

        def by_a_test(some: list[str]) -> str:
            Reads(place, factor)
            failure = FirstFailure(frozenset(some))
            run_tests(["-x", *dict.fromkeys(one.partition("::")[0] for one in some)], failure)
            return failure.name

        def by_a_job() -> str:
            Reads(place, factor)
            differ = (path for path in journals if played(path) != ours[path])
            return next((RECORDED + path.stem for path in differ), "")

        def by_any_of(some: list[str]) -> str:
            return str(in_a_fork(partial(by_a_test, some))) if some else ""

        near, others = tests[:NEAREST], tests[NEAREST:]
        return by_any_of(near) or str(in_a_fork(by_a_job)) or by_any_of(others)

    def _nearest_first(self, place: Place) -> list[str]:
        """The tests that come there: those of its file, then those that come to few places."""
        own = f"test_{Path(place.code.partition(':')[0]).stem}"
        places = Counter(one for tests in self.tests.values() for one in tests)
        return sorted(self.tests.get(place, []), key=lambda one: (own not in one, places[one]))


def results(only: str, kept: Path | None) -> Iterator[tuple[Place, float, str]]:
    """Each place, the factor that was noticed, and by whom; "" if nobody notices any."""
    file = kept / "results.jsonl" if kept else Path(os.devnull)
    known = {Place(*place): more for place, *more in map(json.loads, file.open())} if (
        file.is_file()
    ) else {}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, file.open("a") as told:
        jury = Jury(Path(folder), kept)
        for place in jury.places():
            if not (place.limit.startswith(only) or place.code.startswith(only)):
                continue
            if place not in known:
                tried = ((factor, jury.noticed_by(place, factor)) for factor in (*NEAR, *FAR))
                known[place] = list(next((one for one in tried if one[1]), (FAR[-1], "")))
                print(json.dumps([place, *known[place]]), file=told, flush=True)
            factor, who = known[place]
            print(f"{place} x{factor}: {who or 'nobody'}", flush=True)
            yield place, factor, who


def main() -> None:
    """Judge the places, and list those where nobody notices."""
    parser = argparse.ArgumentParser(prog="python -m tools.limits", description=__doc__)
    parser.add_argument("--only", default="", help="the beginning of a limit or of a place")
    parser.add_argument("--into", type=Path, help="keep the results there, and go on after them")
    given = parser.parse_args()
    os.chdir(ROOT)
    if given.into:
        given.into.mkdir(parents=True, exist_ok=True)
    judged = list(results(given.only, given.into))
    far = [f"{place}" for place, factor, who in judged if who and factor in FAR]
    unseen = [f"{place}" for place, _, who in judged if not who]
    print("", f"{len(judged)} places; only noticed far off:", *far, sep="\n")
    print("", "nobody notices:", *unseen, sep="\n")
    sys.exit(bool(unseen))


if __name__ == "__main__":
    # A finding may say when, in local time.
    os.environ["TZ"] = "UTC"
    time.tzset()
    main()
