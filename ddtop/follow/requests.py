"""The requests of a viewer to its relay, for stacks, signals and mutes, and their answers.

Time arrives as an argument, in seconds of the viewer's monotonic clock: everything here can be
tested without a relay.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddtop.follow.look import Dump
from ddtop.wire.records import NATIVE, Command, Reply, Stacks
from ddtop.words.sentences import rank_list
from ddtop.words.units import plural

REPLY_S = 2.0
"""A relay answers within milliseconds. One that does not answer within this time is silent, or too
old for this request."""
ANSWERS = ("mute", "signal", "stacks")
"""Names of the replies that answer a request; the others are about the connection."""
ANSWERS_S, NATIVE_ANSWERS_S = 8.0, 30.0
"""The wait ends after this time without another answer. py-spy reads symbols for seconds, one
process after the other."""


@dataclass(frozen=True, slots=True)
class _Open:
    """The last request. `moved_mono_s`: when it was made, or last answered. `processes`: those that
    have answered."""

    dump: Dump
    answers_s: float
    moved_mono_s: float
    processes: set[tuple[int | None, int]]


class Requests:
    """The requests of one viewer; only the last one for stacks is kept."""

    def __init__(self) -> None:
        self._open: _Open | None = None
        self._replies: dict[str, Reply] = {}

    def stacks(
        self, ranks: Sequence[int], now_unix_ns: int, now_mono_s: float, how: str = ""
    ) -> Command:
        """The command that asks for the stacks of these ranks (empty: all).

        `how`: NATIVE, BY_SIGNAL, or empty.
        """
        request = uuid.uuid4().hex[:12]
        seconds = NATIVE_ANSWERS_S if how == NATIVE else ANSWERS_S
        self._open = _Open(Dump(request, now_unix_ns), seconds, now_mono_s, set())
        return Command("stacks", arguments=(request, rank_list(ranks), how))

    def take(self, answer: Reply | Stacks, now_mono_s: float) -> None:
        """Take in one answer of the relay or of a process."""
        if isinstance(answer, Stacks):
            self._take_stacks(answer, now_mono_s)
        elif answer.name == "stacks":
            self._take_count(answer, now_mono_s)
        else:
            self._replies[answer.name] = answer

    def _take_count(self, reply: Reply, now_mono_s: float) -> None:
        """Note how many answers the relay expects, or why there will be none."""
        opened = self._open
        if opened is None or opened.dump.expected is not None:
            return
        if reply.ok and reply.text != opened.dump.request:
            return
        dump = (
            replace(opened.dump, expected=reply.count)
            if reply.ok
            else replace(opened.dump, refused=reply.text)
        )
        self._open = replace(opened, dump=dump, moved_mono_s=now_mono_s)

    def _take_stacks(self, stacks: Stacks, now_mono_s: float) -> None:
        """Count an answer. Stacks of DataLoader workers come with their rank's and do not count."""
        opened = self._open
        if opened is None or stacks.worker or stacks.request != opened.dump.request:
            return
        opened.processes.add((stacks.of_rank, stacks.pid))
        dump = replace(opened.dump, answered=len(opened.processes))
        self._open = replace(opened, dump=dump, moved_mono_s=now_mono_s)

    def dump(self, now_mono_s: float) -> Dump | None:
        """The state of the last request. After too long a wait, `refused` says so; the answers so
        far are still shown."""
        opened = self._open
        if opened is None or opened.dump.done:
            return opened.dump if opened else None
        dump, waited_s = opened.dump, now_mono_s - opened.moved_mono_s
        if dump.expected is None and waited_s > REPLY_S:
            return replace(dump, refused=f"the relay did not answer within {REPLY_S:.0f} s")
        if dump.expected is not None and waited_s > opened.answers_s:
            missing = plural(dump.expected - dump.answered, "answer")
            return replace(dump, refused=f"{missing} did not come within {opened.answers_s:.0f} s")
        return dump

    def reply(self, name: str) -> Reply | None:
        """The relay's last answer to a request of this name, once."""
        return self._replies.pop(name, None)


def signal_command(rank: int, pid: int, number: int) -> Command:
    """The command that asks the relay to send a signal to a rank's process, if it is still the same
    process."""
    # A Signals member is written as its name before Python 3.11.
    return Command("signal", arguments=(str(rank), str(pid), str(int(number))))
