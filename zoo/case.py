"""One case: a program, how it is started, its story, and what is right to say about it."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from ddtop.diagnosis.kinds import Kind

Said = tuple[str, tuple[int, ...]]
"""Kind and ranks of a finding."""

TORCHRUN, PLAIN, MPIRUN, SPAWN, OWN = "torchrun", "plain", "mpirun", "spawn", "own"
LAUNCHERS = (TORCHRUN, PLAIN, MPIRUN, SPAWN, OWN)
"""`plain`: one process a rank, with RANK and its like set, as from plain shells. `spawn`: by
torch.multiprocessing.spawn. `own`: the program starts its ranks itself, so no other launcher can.
"""
KINDS = frozenset(kind.value for kind in Kind)


class CaseError(Exception):
    """A case that cannot be read. The text names the file, the case and the key."""


@dataclass(frozen=True)
class Case:
    """One job. All attributes but `name` and `program` are the keys of a case in its program.

    `story`: what happens, as text for a person. `source`: the public thread in which somebody met
    it (`owner/repository#number`, or a URL).

    `expected`: each a kind and its ranks, of which any is right; empty for a healthy job. `place`:
    functions of the program, or lines that bear the comment `# place: NAME` (written as "@NAME"),
    or other files, of which a right finding must name one; empty where no place is to be found, as
    after SIGKILL.
    `cause`, `cure`: regular expressions without case, written before ddtop was asked. One of each
    must match what is said: why it is so, and what one would do.
    `tolerated`: true, though not what is asked for: a warning about a rank that works, a crash
    before an elastic restart. `warning_only`: a critical finding would come before its time.

    `launcher`: one of LAUNCHERS. `world`: number of ranks. `shape`: the first argument of the
    program; `arguments`: what follows it. `environment`: more variables. `needs`: modules without
    which the case is left out. `restarts`: torchrun's --max-restarts. `act`: a signal that is sent
    to the launcher once a rank prints `{"ready": true}`. `within_s`: seconds from the fault in
    which it should be named, where the usual limit of 5 s does not hold.
    """

    name: str
    program: Path
    story: str
    expected: tuple[Said, ...]
    source: str = ""
    place: tuple[str, ...] = ()
    cause: tuple[str, ...] = ()
    cure: tuple[str, ...] = ()
    tolerated: tuple[Said, ...] = ()
    warning_only: bool = False
    launcher: str = TORCHRUN
    world: int = 3
    shape: str = ""
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()
    restarts: int = 0
    act: signal.Signals | None = None
    within_s: float | None = None

    @property
    def healthy(self) -> bool:
        """Whether the case expects no finding."""
        return not self.expected


def read_case(name: str, program: Path, values: Mapping[str, Any]) -> Case:
    """A case from the dict in its program.

    Raises:
        CaseError: a key is unknown or missing, or its value is not what the key wants.
    """
    where = f"{program.name}, {name}"
    allowed = {field.name for field in fields(Case)} - {"name", "program"}
    if unknown := sorted(set(values) - allowed):
        raise CaseError(f"{where}: no such key: {', '.join(unknown)}")
    if not values.get("story") or "expected" not in values:
        raise CaseError(f"{where}: `story` and `expected` are needed ([] for a healthy job)")
    given = dict(values)
    for key in ("expected", "tolerated"):
        given[key] = tuple(_said(text, where) for text in values.get(key, ()))
    place = values.get("place", ())
    given["place"] = (place,) if isinstance(place, str) else tuple(place)
    given["arguments"] = tuple(str(one) for one in values.get("arguments", ()))
    given["environment"] = tuple(values.get("environment", {}).items())
    given["needs"] = tuple(values.get("needs", ()))
    for key in ("cause", "cure"):
        given[key] = tuple(_pattern(text, where) for text in values.get(key, ()))
    given["shape"] = values.get("shape", name.replace("-", "_"))
    if "act" in values:
        given["act"] = signal.Signals[values["act"]]
    if given.get("launcher", TORCHRUN) not in LAUNCHERS:
        raise CaseError(f"{where}: launcher is one of {', '.join(LAUNCHERS)}")
    hints = get_type_hints(Case)
    for key in ("story", "source", "world", "restarts", "warning_only"):
        if key in given and not isinstance(given[key], hints[key]):
            raise CaseError(f"{where}: {key} is not a {hints[key].__name__}")
    return Case(name, program, **given)


def _pattern(text: str, where: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise CaseError(f"{where}: {text}: {error}") from None
    return text


def _said(text: str, where: str) -> Said:
    """`not-in-collective 1,2` as a kind and ranks; no ranks where the finding names none.

    Raises:
        CaseError: no such kind, or ranks that are not numbers.
    """
    kind, _, ranks = text.partition(" ")
    if kind not in KINDS:
        raise CaseError(f"{where}: no finding is called {kind}")
    try:
        return kind, tuple(int(one) for one in ranks.split(",") if one)
    except ValueError:
        raise CaseError(f"{where}: {text}: ranks are numbers with commas between them") from None
