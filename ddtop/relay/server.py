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
from ddtop.link.keys import CONTROLLER
from ddtop.link.relay_side import PROCESS, RANK, VIEW, RelayLink
from ddtop.relay import processes
from ddtop.relay.automatic import Automatic
from ddtop.relay.blackbox import BlackBox, budget
from ddtop.relay.dumps import Dumps
from ddtop.relay.gpus import Gpus
from ddtop.relay.hostprobe import HostProbe
from ddtop.relay.keeper import Keeper
from ddtop.relay.load import HostWatch
from ddtop.relay.orders import OrderError, ranks_of, send_signal
from ddtop.relay.papers import Papers
from ddtop.relay.ras import Ras
from ddtop.relay.rendezvous import Meeting
from ddtop.relay.uneven import Uneven
from ddtop.wire import frames
from ddtop.wire.records import AnyRecord, Command, CommStatus, Exit, Hello, Reply, Stacks

HOST_EVERY_S, ALIVE_EVERY_S = 1.0, 2.0
VIEWER_SILENT_S = 10.0
ROSTER_AFTER_S = 0.5
"""How soon a new rank or an exit is written to the roster; several that come together make one write."""
SWEEP_AFTER_S = 30.0
"""What was abandoned when this relay started is removed after this long: whoever still had to read it has."""
NOBODY_CAME_S = 120.0
"""A relay to which no rank ever spoke ends after this."""
RESTART_S = 60.0
"""With its launcher alive a job whose ranks are all gone may restart; after this long it is over anyway."""
RANKS_MAX, VIEWERS_MAX = 4096, 64
FROM_RANKS = ("Hello", "RankState", "Groups", "Stacks", "Arrivals")
"""What an agent may say."""


class Server:
    """One relay."""

    def __init__(self, job: str, run: str, launcher: int, linger_s: float) -> None:
        self.job, self.run, self.launcher, self.linger_s = job, run, launcher, linger_s
        self.instance = uuid.uuid4().hex[:12]
        self.sender = registry.host_identity()
        self._link = RelayLink(registry.socket_path(job, run), registry.secret(), "127.0.0.1")
        self._keeper = Keeper()
        self._probe = HostProbe()
        self._meeting = Meeting()
        self._watched: dict[int, processes.Watched] = {}
        self._pids_of: dict[int, int] = {}
        self._ranks: dict[bytes, int] = {}
        self._viewers: dict[bytes, float] = {}
        self._exits: list[Exit] = []
        self._hello: Hello | None = None
        self._started = self._active = time.monotonic()
        self._all_gone_at: float | None = None
        self._ended_unix_ns: int | None = None
        self._garbled = self._dropped = 0
        self._papers = Papers(job, run, self.sender, self._probe.host, self._link.port, self._keeper)
        size, self._budget_wrong = budget()
        self._box = BlackBox(registry.journal_path(job, run), size, self._keeper.facts)
        self._dumps = Dumps(self._publish_stacks, self._ask_agent)
        self._automatic = Automatic(os.environ.get("DDTOP_AUTODUMP", "1") != "0")
        self._uneven, self._load, self._gpus, self._ras = Uneven(), HostWatch(), Gpus(), Ras()
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
                for kind, what in self._link.wait(min(*self._due.values(), self._dumps.due()) - now):
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
        for peer, data, role in self._link.receive(kind):
            try:
                envelope = frames.open_envelope(data)
                if kind == VIEW:
                    self._on_viewer(peer, envelope, role)
                else:
                    self._on_rank(peer, envelope, data)
            except frames.WireError:
                self._garbled += 1

    def _on_rank(self, peer: bytes, envelope: frames.Envelope, data: bytes) -> None:
        now = time.monotonic()
        pid = envelope.pid
        if pid is None or envelope.kind not in FROM_RANKS:
            self._garbled += 1
            return
        if peer not in self._ranks:
            if len(self._ranks) >= RANKS_MAX:
                self._dropped += 1
                return
            self._say(RANK, peer, self._alive())
        self._ranks[peer] = pid
        self._active = now
        if envelope.kind == "Hello":
            record = frames.open_record(envelope)
            if isinstance(record, Hello):
                self._on_hello(record)
        watched = self._watched.get(pid)
        if watched is not None:
            watched.heard_mono_ns = time.monotonic_ns()
        self._uneven.saw(pid, envelope.wait_ratio, now)
        if envelope.stuck_key:
            self._automatic.saw(envelope.stuck_key[:200], now)
            self._ras.saw(now)
        self._forward(envelope, data)
        if envelope.kind == "Stacks":
            answer = frames.open_record(envelope)
            if isinstance(answer, Stacks):
                self._dumps.on_agent_answer(pid, answer.request)

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

    def _on_viewer(self, peer: bytes, envelope: frames.Envelope, role: str) -> None:
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
        elif record.name in ("stacks", "signal"):
            self._say(VIEW, peer, self._follow(record, role))
        elif record.name != "ping":
            self._say(VIEW, peer, Reply(record.name, ok=False, text=f"unknown command {record.name[:40]}"))
            return
        if record.name == "join" or peer in self._viewers:
            self._viewers[peer] = time.monotonic()
        else:
            # It pings without having joined: this relay is another one than it joined.
            self._say(VIEW, peer, Reply("rejoin", instance=self.instance))

    def _follow(self, order: Command, role: str) -> Reply:
        try:
            if order.name == "stacks":
                request, text, *how = (*order.arguments, "", "")[: max(2, len(order.arguments))]
                if not request:
                    raise OrderError("a request for stacks needs a name")
                ranks = ranks_of(text)
                asked = [one for one in self._watched.values() if ranks is None or one.hello.rank in ranks]
                count = self._dumps.ask(request[:64], asked, native="native" in how)
                return Reply("stacks", count=count, text=request)
            if role != CONTROLLER:
                raise OrderError("this viewer is read-only")
            pid = order.arguments[1] if len(order.arguments) > 1 else ""
            watched = self._watched.get(int(pid)) if pid.isascii() and pid.isdigit() else None
            return Reply("signal", text=send_signal(watched, order.arguments))
        except OrderError as error:
            return Reply(order.name, ok=False, text=str(error))

    def _ask_agent(self, pid: int, request: str, automatic: bool) -> bool:
        order = Command("dump", instance=self.instance, arguments=(request, "auto" if automatic else ""))
        peers = [peer for peer, owner in self._ranks.items() if owner == pid]
        return any(self._link.send(RANK, peer, self._seal(order)) for peer in peers)

    def _ask_arrivals(self) -> None:
        order = Command("arrivals", instance=self.instance, arguments=(uuid.uuid4().hex[:12],))
        for peer in list(self._ranks):
            self._say(RANK, peer, order)

    def _publish_stacks(self, stacks: Stacks, of: Hello, latest: bool) -> None:
        data = self._seal(stacks, of)
        self._forward(frames.open_envelope(data), data, latest)

    def _on_exit(self, pidfd: int) -> None:
        pid = self._pids_of.pop(pidfd)
        watched = self._watched.pop(pid)
        unix_ns = time.time_ns()
        self._link.unwatch(pidfd)
        # What the rank still said on its way out came in before its end did.
        self._on_frames(RANK)
        record = processes.last_words(watched, len(self._exits), unix_ns)
        self._exits.append(record)
        self._dumps.on_gone(pid)
        processes.forget(watched)
        self._ranks = {peer: owner for peer, owner in self._ranks.items() if owner != pid}
        self._publish(record, watched.hello, unix_ns)
        if not self._watched:
            self._all_gone_at = time.monotonic()
        self._due["roster"] = time.monotonic()
        # The next look tells at once who is left.
        self._due["host"] = min(self._due["host"], time.monotonic() + 0.1)

    # -- what goes out

    def _forward(self, envelope: frames.Envelope, data: bytes, latest: bool = True) -> None:
        self._keeper.keep(envelope, data, latest)
        self._box.put(data)
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

    def _alive(self) -> Command:
        return Command("alive", instance=self.instance, arguments=self._complaints(), pid=os.getpid())

    def _complaints(self) -> tuple[str, ...]:
        return tuple(why for why in (self._papers.why, self._box.problem, self._budget_wrong) if why)

    # -- what is due

    def _on_time(self) -> None:
        now = time.monotonic()
        self._dumps.on_time()
        if self._automatic.due(now) is not None:
            self._dumps.ask(f"auto-{uuid.uuid4().hex[:12]}", list(self._watched.values()), automatic=True)
        if now >= self._due["host"]:
            self._due["host"] = now + HOST_EVERY_S
            if self._uneven.due(now):
                self._ask_arrivals()
            self._look_at_host()
        if now >= self._due["alive"]:
            self._due["alive"] = now + ALIVE_EVERY_S
            for peer in list(self._ranks):
                self._say(RANK, peer, self._alive())
            self._viewers = {peer: at for peer, at in self._viewers.items() if now - at <= VIEWER_SILENT_S}
        if self._all_gone_at is not None and self._ended_unix_ns is None and self._is_over(now):
            self._ended_unix_ns = time.time_ns()
            self._look_at_host()
            self._papers.write_last_state()
            self._due["entry"] = 0.0
        if now >= self._due["roster"]:
            self._due["roster"] = now + registry.HEARTBEAT_S
            self._papers.write_roster()
        if now >= self._due["sweep"]:
            self._due["sweep"] = float("inf")
            for path in self._abandoned:
                path.unlink(missing_ok=True)
        if now >= self._due["entry"]:
            self._due["entry"] = now + registry.HEARTBEAT_S
            self._write_entry()

    def _look_at_host(self) -> None:
        now = time.monotonic_ns()
        answer = self._ras.look(now / 1e9, (watched.hello for watched in self._watched.values()))
        if answer is not None:
            self._publish(CommStatus(answer))
        looked = [processes.look(watched, now) for watched in list(self._watched.values())]
        ways, candidates = self._meeting.look(self._watched.values(), self.launcher, now)
        gpus, gpu_watch = self._gpus.look(processes.owners(self._watched.values()))
        self._publish(
            self._probe.look(
                tuple(state for state in looked if state is not None),
                rendezvous=ways,
                candidates=candidates,
                launcher_alive=self._launcher_alive(),
                dropped=self._dropped + self._keeper.forgotten + self._box.dropped,
                refused=self._link.refused,
                garbled=self._garbled,
                viewers=len(self._viewers),
                load=self._load.look(watched.hello for watched in self._watched.values()),
                gpus=gpus,
                gpu_watch=gpu_watch,
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
        if self._hello is not None:
            self._papers.write_entry(self._hello, len(self._watched), self._ended_unix_ns, self._exits)

    def _close(self) -> None:
        if self._hello is not None:
            if self._ended_unix_ns is None:
                self._ended_unix_ns = time.time_ns()
                self._papers.write_last_state()
            self._write_entry()
        self._dumps.close()
        self._gpus.close()
        self._box.close()
        self._link.close()
        registry.socket_path(self.job, self.run).unlink(missing_ok=True)
        registry.roster_path(self.job, self.run).unlink(missing_ok=True)
