"""The class of each rank for the map: its state, without short changes.

A rank that runs and one that waits for a moment are both healthy. Codes are ordered: the worst of
several ranks has the largest code. The codes of a whole job are one `bytes` object, so that
comparing and counting ten thousand ranks takes microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ddtop.model.state.facts import Snapshot, State
from ddtop.present.glyphs import UNICODE, Glyphs

SETTLE_NS = 5_000_000_000
"""Two looks are compared if they are no further apart."""
AT_FAULT = 16
"""Added to the code of a rank that a critical finding blames."""


@dataclass(frozen=True, slots=True)
class StateClass:
    """How the map shows a rank: the state whose glyph is used, the word, and the name of a
    style."""

    state: State
    word: str
    style: str


CLASSES = (
    StateClass(State.EXITED, "finished", "dim"),
    StateClass(State.RUNNING, "healthy", "dim"),
    StateClass(State.STARTING, "starting", "starting"),
    StateClass(State.BLOCKED, "blocked", "blocked"),
    StateClass(State.WARNING, "warning", "warning"),
    StateClass(State.STRAGGLER, "straggler", "straggler"),
    StateClass(State.SILENT, "silent", "silent"),
    StateClass(State.STOPPED, "stopped", "silent"),
    StateClass(State.LOST, "lost", "silent"),
    StateClass(State.MISSING, "missing", "gone"),
    StateClass(State.EXITED, "exited", "gone"),
    StateClass(State.KILLED, "killed", "gone"),
    StateClass(State.CULPRIT, "culprit", "culprit"),
)
"""The class of each code, from healthy to the worst."""
(
    FINISHED,
    HEALTHY,
    STARTING,
    BLOCKED,
    WARNING,
    STRAGGLER,
    SILENT,
    STOPPED,
    LOST,
    MISSING,
    EXITED,
    KILLED,
    CULPRIT,
) = range(len(CLASSES))

_CODES = {
    State.RUNNING: HEALTHY,
    State.WAITING: HEALTHY,
    State.STARTING: STARTING,
    State.JOINING: STARTING,
    State.BLOCKED: BLOCKED,
    State.WARNING: WARNING,
    State.STRAGGLER: STRAGGLER,
    State.SILENT: SILENT,
    State.STOPPED: STOPPED,
    State.LOST: LOST,
    State.MISSING: MISSING,
    State.EXITED: EXITED,
    State.KILLED: KILLED,
    State.CULPRIT: CULPRIT,
}
_OWN_WORD = frozenset({STRAGGLER, SILENT, STOPPED, LOST, MISSING, EXITED, KILLED, CULPRIT})


def class_of(code: int) -> StateClass:
    """The class of a code, whether at fault or not."""
    return CLASSES[code & (AT_FAULT - 1)]


def glyph_of(code: int, glyphs: Glyphs = UNICODE) -> str:
    """The sign of a code's class: the glyph of its state. A rank that has finished in order has a
    glyph of its own."""
    found = class_of(code)
    return glyphs.finished if found.word == CLASSES[FINISHED].word else glyphs.states[found.state]


def codes_of(snapshot: Snapshot, at_fault: Collection[int] = ()) -> bytes:
    """One code a rank. A rank at fault keeps a state that says how it ended; otherwise it is the
    culprit."""
    codes = bytearray(map(_CODES.__getitem__, [rank.state for rank in snapshot.ranks]))
    at = codes.find(EXITED)
    while at >= 0:
        gone = snapshot.ranks[at].process.exit
        if gone is not None and gone.code == 0:
            codes[at] = FINISHED
        at = codes.find(EXITED, at + 1)
    for number in at_fault:
        if 0 <= number < len(codes):
            codes[number] = AT_FAULT + (codes[number] if codes[number] in _OWN_WORD else CULPRIT)
    return bytes(codes)


def codes_at(codes: bytes, ranks: Sequence[int]) -> bytes:
    """The codes of these ranks; cut out in one piece where they follow each other."""
    if ranks and ranks[-1] - ranks[0] == len(ranks) - 1:
        return codes[ranks[0] : ranks[-1] + 1]
    return bytes(codes[rank] for rank in ranks if rank < len(codes))


class Settled:
    """Codes without short changes: a problem is shown at once, and a healthy rank again after two
    looks that agree."""

    def __init__(self) -> None:
        self.codes = b""
        self._last = b""
        self._subject: tuple[str, int] = ("", 0)
        self._unix_ns = 0

    def take(self, snapshot: Snapshot, codes: bytes) -> bytes:
        """The codes to show after this look. It starts again with looks of another run or another
        time."""
        subject, now = (snapshot.run, snapshot.attempt), snapshot.time_unix_ns
        step = now - self._unix_ns
        follows = (
            subject == self._subject and len(codes) == len(self._last) and 0 <= step <= SETTLE_NS
        )
        if follows and step == 0 and codes == self._last:
            return self.codes
        if not follows or codes in (self.codes, self._last):
            self.codes = codes
        else:
            self.codes = bytes(map(_settled, codes, self._last, self.codes))
        self._last, self._subject, self._unix_ns = codes, subject, now
        return self.codes


def _settled(code: int, before: int, shown: int) -> int:
    return shown if code <= HEALTHY < before else code


def counts(codes: bytes) -> list[tuple[int, int]]:
    """How many ranks each class has, the worst first; empty classes are left out. Ranks at fault
    count in their class."""
    found = []
    for code in range(len(CLASSES) - 1, -1, -1):
        number = codes.count(code) + codes.count(code + AT_FAULT)
        if number:
            found.append((code, number))
    return found


def ranks_in(codes: bytes, code: int, most: int) -> list[int]:
    """The first `most` ranks of a class."""
    found: list[int] = []
    for value in (code + AT_FAULT, code):
        at = codes.find(value)
        while at >= 0 and len(found) < most:
            found.append(at)
            at = codes.find(value, at + 1)
    return found
