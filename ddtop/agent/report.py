"""What one tick samples and what one report says."""

from __future__ import annotations

import os
import sys
import time
from heapq import nlargest
from typing import TYPE_CHECKING

import ddtop
from ddtop import registry
from ddtop.agent import start_relay
from ddtop.agent.environment import VALUE_CHARACTERS, redacted_argv, redacted_environment
from ddtop.agent.guard import guard
from ddtop.agent.probes import arrivals, exceptions_caught, init_args, loader
from ddtop.agent.probes.collectives import STUCK_NS, Collectives
from ddtop.agent.probes.cuda import Cuda
from ddtop.agent.probes.hot_lines import Spots
from ddtop.agent.probes.place import BACKWARD, COLLECTIVE, FORWARD, LOADER, OPTIMIZER, Seen, Stay
from ddtop.agent.probes.rank_thread import Lead
from ddtop.agent.runtime import RELAY_SILENT_NS, REPORT_EVERY_NS, STATUS_EVERY_NS
from ddtop.agent.stacks import ptracer, threads
from ddtop.link.rank_side import RankLink
from ddtop.redaction import redacted, redacted_start
from ddtop.wire import frames
from ddtop.wire import page as layout
from ddtop.wire.calls import INIT_CALLS, P2P_CALLS
from ddtop.wire.records import ACTIVITIES, AnyRecord, Command, Groups, Hello, OpenCall, Place, RankState

if TYPE_CHECKING:
    from ddtop.agent.runtime import Runtime

_ELSEWHERE = (LOADER, FORWARD, OPTIMIZER)
"""Where no collective is waited for: whatever waits inside a forward (FSDP, DDP's buffers) is COLLECTIVE."""
SPAWN_EVERY_NS = 6_000_000_000


def counted_as(activity: int, waits: bool) -> int:
    """The activity under which a look is counted. A look that found the rank waiting for a collective is communication, also
    inside backward: so the share of communication in PHASES is never below COMM."""
    return COLLECTIVE if waits else activity


class Reporter:
    """Samples, builds records, sends them. Used by the agent's thread only."""

    def __init__(self, running: Runtime, link: RankLink) -> None:
        self._running, self._link = running, link
        self._collectives = Collectives()
        self._activity = [0] * len(ACTIVITIES)
        self._seen: Seen | None = None
        self._spots, self._cuda = Spots(), Cuda()
        self._loaders = loader.History()
        self._lead = Lead(running.main_id, running.frames)
        self._catches = exceptions_caught.watch(running.main_id, running.frames)
        self._held, self._held_samples, self._held_spots = False, 0, Spots()
        self._stay = Stay()
        self._gil_held_ns = 0
        self._status_at = self._report_at = 0
        self._steps: list[tuple[int, int]] = []
        self._batches = 0
        self._moved_at: int | None = None
        self._sent_groups: tuple[object, ...] | None = None
        self._relay: str | None = None
        self._complained = False
        self._heard_at = self._spawn_at = time.monotonic_ns()
        self._sender = registry.relay_identity(running.run)
        self._script_digest = init_args.script_digest(sys.orig_argv)

    def tick(self, now: int, late_ns: int, greet: bool) -> None:
        """One tick; `late_ns`: how much later than planned it came, if that was more than the scheduler explains."""
        running = self._running
        unix_minus_mono = time.time_ns() - now
        self._gil_held_ns += late_ns
        if running.mpi is not None:
            guard.run("mpi", running.mpi.sample, now)
        guard.run("place", self._look_at_lead, now)
        guard.run("iterations", self._look_at_iterations, now)
        self._collectives.waits = False
        if now - self._status_at >= STATUS_EVERY_NS - 50_000_000 and not running.collectives_paused:
            self._status_at = now
            if running.destroyed:
                self._collectives.leave_groups(running.final_seqs)
            else:
                seen = self._seen
                waiting, in_line = False, None
                if not self._in_p2p():
                    waiting = seen is not None and seen.activity in (COLLECTIVE, BACKWARD)
                    in_line = self._stay.line_since
                # Compiled code calls its collectives without a frame of torch.
                elsewhere = seen is not None and seen.activity in _ELSEWHERE and "torchinductor_" not in seen.file
                guard.run("collectives", self._collectives.sample, now, unix_minus_mono, waiting, in_line, elsewhere)
        if self._seen is not None:
            self._activity[counted_as(self._seen.activity, self._collectives.waits)] += 1
        if self._catches is not None:
            guard.run(exceptions_caught.PROBE, self._catches.tick, now)
        if greet:
            self._say_hello()
        # Two ticks, jittered by a fifth each, are never a third one short of a report.
        if now - self._report_at >= REPORT_EVERY_NS - 100_000_000:
            self._report_at = now
            if not running.dump_file.still_ours():
                self._say_hello()
            self._report(unix_minus_mono)
            # Sending takes the notice of what has come in meanwhile off the descriptor.
            self.listen(now)

    def note_held(self, held: bool) -> None:
        """Whether the tick that comes now is late."""
        self._held = held
        self._held_samples += held

    def listen(self, now: int) -> None:
        """Take in what the relay says; start another where it has been silent for long."""
        while (data := self._link.receive()) is not None:
            self._heard_at = now
            try:
                record = frames.open_record(frames.open_envelope(data))
            except frames.WireError:
                continue
            if isinstance(record, Command) and record.name == "dump" and record.arguments:
                guard.run("stacks", self._on_dump, record)
            elif isinstance(record, Command) and record.name == "arrivals" and record.arguments:
                guard.run("arrivals", self._on_arrivals, record)
            elif isinstance(record, Command):
                self._on_alive(record)
        if now - self._heard_at > RELAY_SILENT_NS and now - self._spawn_at > SPAWN_EVERY_NS:
            self._spawn_at = now
            running = self._running
            guard.run("relay restart", lambda: start_relay.start_relay(running.job, running.run, running.socket))

    def report_soon(self) -> None:
        """Let the next tick report."""
        self._report_at = 0

    def last_words(self) -> None:
        """The final record of an orderly exit, with what was done since the last look."""
        running, now = self._running, time.monotonic_ns()
        unix_minus_mono = time.time_ns() - now
        if self._catches is not None:
            guard.run(exceptions_caught.PROBE, self._catches.close)
        if running.destroyed:
            self._collectives.leave_groups(running.final_seqs)
        elif not running.collectives_paused:
            guard.run("collectives", self._collectives.sample, now, unix_minus_mono, False)
        if running.mpi is not None:
            guard.run("mpi", running.mpi.sample, now)
        self._report(unix_minus_mono)

    # -- samples

    def _look_at_lead(self, now: int) -> None:
        running = self._running
        seen = self._seen = self._lead.look(now, running.stepper)
        if self._lead.ident != running.lead_id:
            self._follow_lead()
        call = running.mpi.main_call(running.lead_id) if running.mpi is not None else None
        if seen is not None and call is not None:
            seen.activity, seen.callee = COLLECTIVE, call.name
            seen.waits_on = "p2p" if call.peer is not None or call.name in P2P_CALLS else "collective"
        self._spots.add(seen)
        if self._held:
            self._held_spots.add(seen)
        if seen is None:
            return
        self._stay.follow(seen, now)

    def _follow_lead(self) -> None:
        """Another thread is the rank's from now on."""
        self._running.lead_id = self._lead.ident
        self._running.page.words[layout.LEAD_AT] = self._lead.native_id
        if self._catches is not None:
            self._catches.thread_id = self._lead.ident

    def _in_p2p(self) -> bool:
        # Its sequence numbers are those of collectives too: they must not be guessed to be one that is open.
        calls = self._running.page.open_calls()
        if self._running.mpi is not None and self._running.mpi.main_call(self._running.lead_id) is not None:
            return True
        return any(layout.CALLS[call] in P2P_CALLS for call, *_ in calls)

    def _look_at_iterations(self, now: int) -> None:
        words = self._running.page.words
        batches = words[layout.BATCHES_AT]
        if batches != self._batches:
            self._batches, self._moved_at = batches, now
            if words[layout.ITERATION_SOURCE_AT] <= layout.SOURCE_BATCH:
                words[layout.ITERATION_SOURCE_AT] = layout.SOURCE_BATCH
                words[layout.ITERATION_AT], words[layout.STEP_AT] = batches, now
        mpi = self._running.mpi
        # Whoever counts steps knows better than a rhythm.
        silent = words[layout.ITERATION_SOURCE_AT] in (layout.SOURCE_NONE, layout.SOURCE_COLLECTIVES)
        if silent and mpi is not None and mpi.rhythm.iteration is not None:
            words[layout.ITERATION_SOURCE_AT] = layout.SOURCE_COLLECTIVES
            words[layout.ITERATION_AT], words[layout.STEP_AT] = mpi.rhythm.iteration, mpi.rhythm.at
        iteration, at = words[layout.ITERATION_AT], words[layout.STEP_AT]
        if not at or (self._steps and self._steps[-1][0] == iteration):
            return
        if self._steps and iteration < self._steps[-1][0]:
            self._steps.clear()  # another source counts from its own beginning
        self._steps.append((iteration, at))
        self._moved_at = now
        # Two seconds of steps, but at least the last two: a step of a minute has a length too.
        while len(self._steps) > 2 and at - self._steps[1][1] > 2_000_000_000:
            self._steps.pop(0)

    def _step_ms(self) -> float | None:
        if len(self._steps) < 2:
            return None
        (first, began), (last, ended) = self._steps[0], self._steps[-1]
        return (ended - began) / (last - first) / 1e6 if last > first else None

    # -- records

    def _send(self, record: AnyRecord) -> None:
        running = self._running
        stuck = self._collectives.stuck or self._stuck_call() or (running.mpi.stuck_key() if running.mpi else None)
        key = "|".join(str(part) for part in (*stuck, running.who.attempt)) if stuck else None
        self._link.send(
            frames.seal(
                record,
                sender=self._sender,
                unix_ns=time.time_ns(),
                mono_ns=time.monotonic_ns(),
                attempt=running.who.attempt,
                rank=running.who.rank,
                pid=running.pid,
                stuck_key=key,
                wait_ratio=self._wait_ratio(),
            )
        )

    def _wait_ratio(self) -> float | None:
        mpi = self._running.mpi
        found = (self._collectives.wait_ratio, mpi.wait_ratio if mpi is not None else None)
        return max((one for one in found if one is not None), default=None)

    def _stuck_call(self) -> tuple[object, ...] | None:
        """The call for single ranks that has been open for a second: name, peer, and since when."""
        now = time.monotonic_ns()
        for call, since, peer, _, _ in self._running.page.open_calls():
            if now - since > STUCK_NS and layout.CALLS[call] in P2P_CALLS:
                return layout.CALLS[call], peer, since
        return None

    def _on_alive(self, command: Command) -> None:
        if command.instance != self._relay:
            # Another relay than before knows nothing of us yet.
            self._relay, self._sent_groups = command.instance, None
            self._running.greet_again()
            guard.run("ptracer", ptracer.allow, command.pid)
        if command.arguments and not self._complained:
            self._complained = True
            self._running.say(f"ddtop: {command.arguments[0][:300]}")

    def _on_dump(self, command: Command) -> None:
        running = self._running
        request, automatic = command.arguments[0][:64], "auto" in command.arguments[1:]
        self._send(threads.take(request, running.who.rank, running.pid, running.frames, automatic, running.lead_id))

    def _on_arrivals(self, command: Command) -> None:
        running = self._running
        # A group that is being destroyed must not be met in here.
        if running.collectives_paused or running.destroyed:
            return
        words = running.page.words
        iteration = words[layout.ITERATION_AT] if words[layout.ITERATION_SOURCE_AT] in layout.STEP_SOURCES else None
        self._send(arrivals.take(self._collectives, command.arguments[0][:64], iteration, running.mpi))

    def _say_hello(self) -> None:
        running, who, entrance = self._running, self._running.who, self._running.entrance
        version = getattr(sys.modules.get("torch"), "__version__", None)
        self._send(
            Hello(
                job=running.job,
                run=running.run,
                attempt=who.attempt,
                rank=who.rank,
                local_rank=who.local_rank,
                world_size=who.world_size,
                host=os.uname().nodename,
                pid=running.pid,
                start_ticks=running.start_ticks,
                claim=running.source,
                script=who.script,
                argv=redacted_argv(sys.orig_argv),
                python=sys.version.split()[0],
                torch=str(version) if version else None,
                backend=running.backend,
                environment=redacted_environment(os.environ),
                page_path=str(running.page.path) if running.page.path else None,
                launcher_pid=os.getppid(),
                started_unix_ns=running.started_unix_ns,
                agent_version=ddtop.__version__,
                page_fallback=running.page.fallback,
                dump_signal=running.dump_file.signal,
                dump_path=str(running.dump_file.path) if running.dump_file.path else None,
                dump_fd=running.dump_file.descriptor,
                dump_off=running.dump_file.off,
                init_method=redacted_start(entrance.method, VALUE_CHARACTERS) if entrance and entrance.method else None,
                init_timeout_ms=entrance.timeout_ms if entrance else None,
                init_unix_ns=entrance.unix_ns if entrance else None,
                store_file=entrance.store_file if entrance else None,
                script_digest=self._script_digest,
            )
        )

    def _phase(self, calls: tuple[OpenCall, ...]) -> str:
        running = self._running
        if running.exiting or running.destroyed or (self._seen and self._seen.waits_on == "exit"):
            return "leaving"
        if any(call.name in INIT_CALLS for call in calls):
            return "joining"
        return "running" if running.joined or self._collectives.groups else "starting"

    def _report(self, unix_minus_mono: int) -> None:
        running, collectives = self._running, self._collectives
        mpi = running.mpi
        groups = (*collectives.groups, *mpi.groups) if mpi is not None else collectives.groups
        if groups != self._sent_groups:
            if groups and not self._sent_groups:
                # What it did before it met the others is none of its steps.
                self._spots = Spots()
            self._sent_groups = groups
            running.backend = running.backend or next((group.backend for group in groups), None)
            self._say_hello()
            self._send(Groups(groups))
        words = running.page.words
        calls = tuple(
            OpenCall(layout.CALLS[call] or "", since + unix_minus_mono, peer if peer >= 0 else None, tag, thread)
            for call, since, peer, tag, thread in running.page.open_calls()
        )
        source = words[layout.ITERATION_SOURCE_AT]
        guard.run("cuda", self._look_at_cuda)
        longest_ms, usual_ms = self._longest_waits_ms()
        moved = max(collectives.moved_at or 0, self._moved_at or 0, (mpi.moved_at or 0) if mpi is not None else 0)
        self._send(
            RankState(
                phase=self._phase(calls),
                activity=ACTIVITIES[self._seen.activity] if self._seen else None,
                iteration=words[layout.ITERATION_AT] if source else None,
                iteration_source=layout.SOURCES[source] if 0 <= source < len(layout.SOURCES) else None,
                step_ms=self._step_ms(),
                groups=collectives.progress(unix_minus_mono),
                open_collectives=collectives.open_collectives(),
                retired_collectives=collectives.retired_collectives(),
                open_calls=calls,
                wait_samples=collectives.wait_samples + (mpi.wait_samples if mpi is not None else 0),
                all_samples=collectives.all_samples + (mpi.all_samples if mpi is not None else 0),
                activity_samples=tuple(self._activity),
                gil_held_ns=self._gil_held_ns,
                place=self._place(unix_minus_mono),
                loader=loader.sample(running, unix_minus_mono, self._loaders),
                exception=running.exception,
                progress_unix_ns=moved + unix_minus_mono if moved else None,
                healthy_wait_max_ms=longest_ms,
                usual_wait_ms=usual_ms,
                agent_cpu_ns=time.thread_time_ns(),
                drops=self._link.drops,
                probes_off=tuple(f"{name}: {redacted(reason)}" for name, reason in guard.off.items()),
                recorder=collectives.why_blind,
                recorder_skips=collectives.skips,
                gc_total_ns=running.gc_total_ns,
                spots=self._spots.told(),
                spots_samples=self._spots.total,
                held_samples=self._held_samples,
                held_spot=next(iter(self._held_spots.told()), None),
                mpi=mpi.state if mpi is not None else None,
                cuda=self._cuda.state,
                catching=self._catches.state if self._catches is not None else None,
            )
        )

    def _look_at_cuda(self) -> None:
        seen, iteration = self._seen, self._running.page.words[layout.ITERATION_AT]
        mark = (seen.frame_id, seen.line, iteration) if seen is not None else ()
        stands = self._collectives.stuck is not None
        running = self._running
        self._cuda.sample(time.monotonic_ns(), mark, stands, running.who.local_rank, running.gloo_bytes)
        self._collectives.gpu = self._cuda.state.index if self._cuda.state is not None else None

    def _longest_waits_ms(self) -> tuple[float | None, float | None]:
        """The longest wait that ended lately, and the one after it: what has happened twice is usual."""
        mpi = self._running.mpi
        waits = [*self._collectives.longest_waits_ns(), *self._running.peer_waits]
        if mpi is not None:
            waits += mpi.longest_waits_ns()
        first, second, *_ = (*(wait / 1e6 for wait in nlargest(2, waits)), None, None)
        return first, second

    def _place(self, unix_minus_mono: int) -> Place | None:
        seen = self._seen
        if seen is None or seen.function is None:
            return None
        since, line_since = self._stay.since + unix_minus_mono, self._stay.line_since + unix_minus_mono
        return Place(seen.function, seen.file, seen.line, seen.waits_on, since, seen.callee, line_since, seen.waits_for)
