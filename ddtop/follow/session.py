"""One job that a viewer follows, over all its connections.

It does no I/O: frames and the time come in, frames to send and looks go out. The dashboard and the
commands drive it from an event loop, and a fleet drives many of them on one thread. Times are in
seconds of this process's monotonic clock, except where a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddtop.diagnosis.finding import UNKNOWN, Verdict
from ddtop.feeds.route import request
from ddtop.follow.engine import Engine
from ddtop.follow.look import Look
from ddtop.follow.requests import Requests
from ddtop.link.viewer_side import PING_S
from ddtop.wire.records import Command, Reply, Stacks

PAST = "this is the past, \\ goes back to now"
NOT_HEARD = "the relay is not heard, trying again"
MISSED_S = 1.0
"""Two turns of listening are closer than this, unless this process did not run: stopped, on a
sleeping laptop, or without CPU."""
HOPELESS_FACTOR = 2.0
"""A connection is given up after so many times the silence that is shown."""


class JobSession:
    """Joins on each new connection, keeps the last look while nothing is heard, and keeps this
    viewer's requests."""

    def __init__(self, engine: Engine, history_s: float, now_s: float) -> None:
        """`history_s`: how much of the past the relay sends."""
        self.engine, self.requests = engine, Requests()
        self.contact: str | None = None
        """Why there is no contact, one sentence; None while there is, or nothing is known yet."""
        self.shown: Look | None = None
        """The last look at the present."""
        self.follower = engine.follower()
        """That of the connection whose relay has sent all of the history."""
        self.joined = self.follower
        """That of the newest connection."""
        self._history_s = history_s
        self._heard_s = self._listened_s = self._opened_s = self._pinged_s = now_s
        self._open = False
        self._at: int | None = None
        self._past: Look | None = None

    # -- a connection

    def opened(self, now_s: float) -> bytes:
        """A connection is open. Returns the first frame to send."""
        self.joined = self.engine.follower()
        self._listened_s = self._opened_s = self._pinged_s = now_s
        self._open = True
        return request(Command("join", history_s=self._history_s))

    def closed(self) -> None:
        """It is not open any more."""
        self._open = False

    def take(self, data: bytes, now_s: float) -> None:
        """A frame has arrived."""
        self._heard_s = now_s
        self.engine.put(self.joined, data)

    def turn(self, now_s: float) -> bytes | None:
        """One turn of listening is over. Returns the ping that is due now. The time in which this
        process did not run is not a silence of the relay."""
        missed_s = max(now_s - self._listened_s - MISSED_S, 0.0)
        self._heard_s, self._listened_s = min(self._heard_s + missed_s, now_s), now_s
        self.contact = self.joined.refusal or self.contact
        if now_s - self._pinged_s <= PING_S:
            return None
        self._pinged_s = now_s
        return request(Command("ping"))

    def silent_s(self, now_s: float) -> float:
        """How long nothing has arrived while this process listened."""
        return (min(now_s, self._listened_s + MISSED_S) if self._open else now_s) - self._heard_s

    def is_over(self, now_s: float) -> bool:
        """Whether this connection is to be given up."""
        limit_s = HOPELESS_FACTOR * self.follower.policy.relay_silent_s
        return self.joined.rejoin or now_s - max(self._heard_s, self._opened_s) > limit_s

    # -- looks

    def look(self, now_s: float) -> Look:
        """The current look, or the one for the moment of `travel`.

        While the relay does not report: the last look, with its age.

        Raises:
            EngineError: what comes in cannot be made sense of.
        """
        self.engine.check()
        found = self._look(now_s)
        if self._at is not None:
            found = self._look_back(found)
        return replace(found, dump=self.requests.dump(now_s))

    def _look_back(self, now: Look) -> Look:
        """The requested moment; until the engine has it, the previous one."""
        moment = self.engine.moment
        if moment is not None and moment.asked_unix_ns == self._at:
            self._past = moment.look
        if self._past is None:
            return now
        return replace(
            self._past, span=now.span, marks=now.marks, recall=now.recall, untaped=now.untaped
        )

    def _look(self, now_s: float) -> Look:
        self._switch()
        silent_s = self.silent_s(now_s)
        limit_s = self.follower.policy.relay_silent_s
        if self.contact is None and silent_s <= limit_s and self.follower.live:
            seen = self.engine.seen
            if seen is not None and seen.follower is self.follower:
                self.shown = seen.look
            if self.shown is not None:
                return self.shown
        if self.shown is None:
            contact = self.contact or (NOT_HEARD if silent_s > 2 * limit_s else None)
            return Look(None, Verdict(UNKNOWN, (), ""), contact, silent_s if contact else None)
        if self._has_ended():
            return self.shown
        contact = self.contact or NOT_HEARD
        verdict = self.shown.verdict.when_unheard(contact, silent_s)
        return replace(self.shown, verdict=verdict, contact=contact, contact_age_s=silent_s)

    def _has_ended(self) -> bool:
        snapshot = self.shown.snapshot if self.shown is not None else None
        return snapshot is not None and snapshot.ended is not None

    def _switch(self) -> None:
        """Switch to the new connection once its relay has sent all of the history."""
        if self.joined.live and self.follower is not self.joined:
            self.follower, self.contact = self.joined, None

    def travel(self, at_unix_ns: int | None) -> None:
        """Look at that moment, if its records are still kept; None: the present. The engine
        computes it, which takes a second for 1,000 ranks."""
        self._at, self._past = at_unix_ns, self._past if at_unix_ns is not None else None
        self.engine.travel(at_unix_ns)

    # -- requests

    def answered(self, answers: Iterable[Reply | Stacks], now_s: float) -> None:
        """The engine has answers to this viewer's requests, or other news."""
        # Not only at the next look: why this connection is lost may be known by then.
        self._switch()
        for answer in answers:
            self.requests.take(answer, now_s)

    def stacks(self, ranks: tuple[int, ...], how: str, now_s: float) -> bytes:
        """The frame that asks for the stacks of these ranks (empty: all)."""
        return request(self.requests.stacks(ranks, self.follower.now_unix_ns(), now_s, how))

    def why_no_request(self) -> str | None:
        """Why no request can be sent to the relay now."""
        if self._has_ended():
            return "the job has ended"
        if self.contact is not None:
            return self.contact
        if not self._open or not self.follower.live:
            return "the relay is not heard"
        return PAST if self._at is not None else None
