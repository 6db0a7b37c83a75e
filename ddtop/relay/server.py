"""The relay's loop: frames in from ranks, out to viewers; a look at the processes once a second; who went first.

One thread, one poll. Nothing here waits for a peer: a viewer that does not read is dropped and counted, a rank that
floods is read at most 500 frames at a time, and what cannot be decoded is counted and dropped.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from ddtop import journal, registry
from ddtop.link.relay_side import PROCESS, RANK, VIEW, RelayLink
from ddtop.relay import processes
from ddtop.relay.hostprobe import HostProbe
from ddtop.relay.keeper import Keeper
from ddtop.wire import frames
from ddtop.wire.records import AnyRecord, Command, Exit, Hello, Reply

HOST_EVERY_S, ALIVE_EVERY_S = 1.0, 2.0
VIEWER_SILENT_S = 10.0
LAST_STATE_S = 180.0
"""How much history goes into the last-state file."""
ROSTER_AFTER_S = 0.5
"""How soon a new rank or an exit is written to the roster; several that come together make one write."""
SWEEP_AFTER_S = 30.0
"""What was abandoned when this relay started is removed after this long: whoever still had to read it has."""
NOBODY_CAME_S = 120.0
"""A relay to which no rank ever spoke ends after this."""
RESTART_S = 60.0
"""With its launcher alive a job whose ranks are all gone may restart; after this long it is over anyway."""
RANKS_MAX, VIEWERS_MAX = 4096, 64


class Server:
    """One relay."""

    def __init__(self, job: str, run: str, launcher: int, linger_s: float) -> None:
        self.job, self.run, self.launcher, self.linger_s = job, run, launcher, linger_s
        self.instance = uuid.uuid4().hex[:12]
        self.sender = registry.host_identity()
        self._link = RelayLink(registry.socket_path(job, run), registry.secret(), "127.0.0.1")
        self._keeper = Keeper()
        self._probe = HostProbe()
        self._watched: dict[int, processes.Watched] = {}
        self._pids_of: dict[int, int] = {}
        self._ranks: dict[bytes, int] = {}
        self._viewers: dict[bytes, float] = {}
        self._exits: list[Exit] = []
        self._hello: Hello | None = None
        self._started_unix_ns = time.time_ns()
        self._started = self._active = time.monotonic()
        self._all_gone_at: float | None = None
        self._ended_unix_ns: int | None = None
        self._garbled = self._dropped = 0
        self._why: str | None = None
        self._abandoned: list[Path] = []
        self._due = {
            "host": 0.0,
            "alive": 0.0,
            "entry": 0.0,
            "roster": float("inf"),
            "sweep": self._started + SWEEP_AFTER_S,
        }
        self.stopping = False

    def serve(self) -> None:
        """Until the job is over and nobody has looked for the linger time, or until told to stop."""
        self._abandoned = processes.abandoned()
        self._take_over()
        try:
            while not self.stopping and not self._may_end():
                now = time.monotonic()
                for kind, what in self._link.wait(min(self._due.values()) - now):
                    if kind == PROCESS and isinstance(what, int):
                        self._on_exit(what)
                    else:
                        self._on_frames(kind)
                self._on_time()
        finally:
            self._close()

    def _take_over(self) -> None:
        """Know again what a relay that was killed knew: a rank that is stopped cannot say Hello to a new one."""
        try:
            reading = journal.read(registry.roster_path(self.job, self.run))
        except journal.JournalError:
            return
        for data in reading.frames:
            try:
                envelope = frames.open_envelope(data)
                record = frames.open_record(envelope)
            except frames.WireError:
                self._garbled += 1
                continue
            self._keeper.keep(envelope, data)
            if isinstance(record, Hello):
                self._on_hello(record)
            elif isinstance(record, Exit):
                self._exits.append(record)
        if self._exits and not self._watched:
            self._all_gone_at = time.monotonic()

    # -- what comes in

    def _on_frames(self, kind: str) -> None:
        for peer, data in self._link.receive(kind):
            try:
                envelope = frames.open_envelope(data)
                if kind == VIEW:
                    self._on_viewer(peer, envelope)
                else:
                    self._on_rank(peer, envelope, data)
            except frames.WireError:
                self._garbled += 1

    def _on_rank(self, peer: bytes, envelope: frames.Envelope, data: bytes) -> None:
        now = time.monotonic()
        pid = envelope.pid
        if pid is None or envelope.kind not in ("Hello", "RankState", "Groups"):
            self._garbled += 1
            return
        if peer not in self._ranks:
            if len(self._ranks) >= RANKS_MAX:
                self._dropped += 1
                return
            self._say(RANK, peer, Command("alive", instance=self.instance, arguments=self._complaints()))
        self._ranks[peer] = pid
        self._active = now
        if envelope.kind == "Hello":
            record = frames.open_record(envelope)
            if isinstance(record, Hello):
                self._on_hello(record)
        watched = self._watched.get(pid)
        if watched is not None:
            watched.heard_mono_ns = time.monotonic_ns()
        self._forward(envelope, data)

    def _on_hello(self, hello: Hello) -> None:
        self._hello = hello if self._hello is None or hello.rank == 0 else self._hello
        known = self._watched.get(hello.pid)
        if known is not None:
            known.hello = hello
            return
        watched = processes.watch(hello, time.monotonic_ns())
        if watched is None:
            return
        self._watched[hello.pid] = watched
        self._pids_of[watched.pidfd] = hello.pid
        self._link.watch(watched.pidfd)
        self._all_gone_at = self._ended_unix_ns = None
        self._due["entry"] = 0.0
        self._due["roster"] = time.monotonic() + ROSTER_AFTER_S

    def _on_viewer(self, peer: bytes, envelope: frames.Envelope) -> None:
        record = frames.open_record(envelope)
        if not isinstance(record, Command):
            self._garbled += 1
            return
        if record.name == "join":
            if len(self._viewers) >= VIEWERS_MAX:
                self._say(VIEW, peer, Reply("joined", ok=False, text=f"{VIEWERS_MAX} viewers are attached already"))
                return
            history = self._keeper.since(time.time_ns() - int(max(0.0, record.history_s) * 1e9))
            self._say(VIEW, peer, Reply("joined", count=len(history), instance=self.instance))
            for frame in history:
                self._dropped += not self._link.send(VIEW, peer, frame)
            self._say(VIEW, peer, Reply("live", instance=self.instance))
        elif record.name != "ping":
            self._say(VIEW, peer, Reply(record.name, ok=False, text=f"unknown command {record.name[:40]}"))
            return
        if record.name == "join" or peer in self._viewers:
            self._viewers[peer] = time.monotonic()
        else:
            # It pings without having joined: this relay is another one than it joined.
            self._say(VIEW, peer, Reply("rejoin", instance=self.instance))

    def _on_exit(self, pidfd: int) -> None:
        pid = self._pids_of.pop(pidfd)
        watched = self._watched.pop(pid)
        unix_ns = time.time_ns()
        self._link.unwatch(pidfd)
        # What the rank still said on its way out came in before its end did.
        self._on_frames(RANK)
        how, oom, page, orphans = processes.last_words(watched)
        record = Exit(
            rank=watched.hello.rank,
            pid=pid,
            code=how.code,
            signal=how.signal,
            oom=oom,
            order=len(self._exits),
            how=how.how,
            exiting=bool(page and page.exiting_mono_ns),
            exception=page.exception if page else None,
            orphans=orphans,
            last_state=watched.last_state,
            exiting_unix_ns=page.exiting_mono_ns + unix_ns - time.monotonic_ns()
            if page and page.exiting_mono_ns
            else None,
        )
        self._exits.append(record)
        processes.forget(watched)
        self._ranks = {peer: owner for peer, owner in self._ranks.items() if owner != pid}
        self._publish(record, watched.hello, unix_ns)
        if not self._watched:
            self._all_gone_at = time.monotonic()
        self._due["roster"] = time.monotonic()
        # The next look tells at once who is left.
        self._due["host"] = min(self._due["host"], time.monotonic() + 0.1)

    # -- what goes out

    def _forward(self, envelope: frames.Envelope, data: bytes) -> None:
        self._keeper.keep(envelope, data)
        for peer in self._link.broadcast(self._viewers, data):
            self._dropped += 1
            if time.monotonic() - self._viewers[peer] > VIEWER_SILENT_S:
                del self._viewers[peer]

    def _publish(self, record: AnyRecord, of: Hello | None = None, unix_ns: int | None = None) -> None:
        data = self._seal(record, of, unix_ns)
        self._forward(frames.open_envelope(data), data)

    def _seal(self, record: AnyRecord, of: Hello | None = None, unix_ns: int | None = None) -> bytes:
        """A record of ours, about the rank that said this Hello or about none."""
        return frames.seal(
            record,
            sender=self.sender,
            unix_ns=time.time_ns() if unix_ns is None else unix_ns,
            mono_ns=time.monotonic_ns(),
            attempt=of.attempt if of else 0,
            rank=of.rank if of else None,
            pid=of.pid if of else None,
        )

    def _say(self, kind: str, peer: bytes, record: AnyRecord) -> None:
        self._dropped += not self._link.send(kind, peer, self._seal(record))

    def _complaints(self) -> tuple[str, ...]:
        return (self._why,) if self._why else ()

    # -- what is due

    def _on_time(self) -> None:
        now = time.monotonic()
        if now >= self._due["host"]:
            self._due["host"] = now + HOST_EVERY_S
            self._look_at_host()
        if now >= self._due["alive"]:
            self._due["alive"] = now + ALIVE_EVERY_S
            for peer in list(self._ranks):
                self._say(RANK, peer, Command("alive", instance=self.instance, arguments=self._complaints()))
            self._viewers = {peer: at for peer, at in self._viewers.items() if now - at <= VIEWER_SILENT_S}
        if self._all_gone_at is not None and self._ended_unix_ns is None and self._is_over(now):
            self._ended_unix_ns = time.time_ns()
            self._look_at_host()
            self._write_last_state()
            self._due["entry"] = 0.0
        if now >= self._due["roster"]:
            self._due["roster"] = now + registry.HEARTBEAT_S
            self._write_frames(registry.roster_path(self.job, self.run), 0.0)
        if now >= self._due["sweep"]:
            self._due["sweep"] = float("inf")
            for path in self._abandoned:
                path.unlink(missing_ok=True)
        if now >= self._due["entry"]:
            self._due["entry"] = now + registry.HEARTBEAT_S
            self._write_entry()

    def _look_at_host(self) -> None:
        now = time.monotonic_ns()
        looked = (processes.look(watched, now) for watched in list(self._watched.values()))
        self._publish(
            self._probe.look(
                tuple(state for state in looked if state is not None),
                launcher_alive=self._launcher_alive(),
                dropped=self._dropped + self._keeper.forgotten,
                refused=self._link.refused,
                garbled=self._garbled,
                viewers=len(self._viewers),
            )
        )

    def _launcher_alive(self) -> bool | None:
        if self._ended_unix_ns is not None:
            return False
        # Under torchrun only: an interactive shell lives on and says nothing about the job.
        elastic = self._hello is not None and "TORCHELASTIC_RUN_ID" in self._hello.environment
        return registry.start_ticks(self.launcher) is not None if elastic and self.launcher > 1 else None

    def _is_over(self, now: float) -> bool:
        assert self._all_gone_at is not None
        return not self._launcher_alive() or now - self._all_gone_at > RESTART_S

    def _may_end(self) -> bool:
        now = time.monotonic()
        if self._hello is None:
            return now - self._started > NOBODY_CAME_S
        # Until the run is over its last state would be a live one: torchrun ends a second after its ranks.
        if self._all_gone_at is None or self._ended_unix_ns is None or self._viewers:
            if self._viewers:
                self._active = now
            return False
        return now - max(self._all_gone_at, self._active) > self.linger_s

    def _write_entry(self) -> None:
        hello = self._hello
        if hello is None:
            return
        entry = registry.JobEntry(
            schema=registry.SCHEMA,
            job=self.job,
            run=self.run,
            host=self._probe.host,
            sender=self.sender,
            relay_pid=os.getpid(),
            relay_start_ticks=registry.start_ticks(os.getpid()) or 0,
            address="127.0.0.1",
            port=self._link.port,
            socket=str(registry.socket_path(self.job, self.run)),
            script=hello.script,
            world_size=hello.world_size or 0,
            reporting=len(self._watched),
            started_unix_ns=self._started_unix_ns,
            heartbeat_unix_ns=time.time_ns(),
            ended_unix_ns=self._ended_unix_ns,
            ended_reason=self._ended_reason(),
            last_state=str(registry.last_state_path(self.job, self.run)) if self._ended_unix_ns else None,
        )
        try:
            registry.write_entry(entry)
            registry.prune_ended(time.time_ns())
            self._why = None
        except registry.RegistryError as error:
            self._why = str(error)

    def _ended_reason(self) -> str | None:
        """How it ended in three words, for the list of jobs; the verdict is the viewer's."""
        if self._ended_unix_ns is None:
            return None
        bad = [one for one in self._exits if one.code != 0]
        if not bad:
            return "finished"
        return f"signal {bad[0].signal}" if bad[0].signal is not None else f"exit code {bad[0].code}"

    def _write_last_state(self) -> None:
        self._write_frames(registry.last_state_path(self.job, self.run), LAST_STATE_S)

    def _write_frames(self, path: Path, seconds: float) -> None:
        try:
            journal.write(path, self._keeper.since(time.time_ns() - int(seconds * 1e9)))
        except OSError as error:
            self._why = f"cannot write {path}: {error.strerror}"

    def _close(self) -> None:
        if self._hello is not None:
            if self._ended_unix_ns is None:
                self._ended_unix_ns = time.time_ns()
                self._write_last_state()
            self._write_entry()
        self._link.close()
        registry.socket_path(self.job, self.run).unlink(missing_ok=True)
        registry.roster_path(self.job, self.run).unlink(missing_ok=True)
