"""The relay's loop: frames in from ranks, out to viewers, and a look at the processes every second.

One thread, one poll. Nothing here waits for a peer: frames for a viewer that does not read are
dropped and counted, a rank that floods is read at most 500 frames at a time, and what cannot be
decoded is counted and dropped. `hub.role` knows the other hosts: a hub takes their frames like
those of its own ranks, a leaf sends its own frames to the hub.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Hashable
from itertools import groupby
from pathlib import Path

import msgspec

from ddtop import journal, registry
from ddtop.launch.launchers import is_elastic
from ddtop.link.keys import SERVER
from ddtop.link.relay_side import HUB, PROCESS, RANK, VIEW, WAITING_BYTES_MAX, RelayLink
from ddtop.policy import POLICY, Policy
from ddtop.relay.dumps.collect import JournalShare
from ddtop.relay.gpus.ras import Ras
from ddtop.relay.gpus.reader import GpuReader
from ddtop.relay.history import HISTORY_BYTES, FrameHistory, JournalWriter, budget
from ddtop.relay.host import HostProbe, HostWatch, without_descriptors_left
from ddtop.relay.hub.role import HubRole
from ddtop.relay.processes import sample
from ddtop.relay.processes.chains import Chains, waiting_of
from ddtop.relay.processes.family import HelperWatch, WaitingParent
from ddtop.relay.processes.far_ends import FarEnds
from ddtop.relay.processes.ranks import Ranks
from ddtop.relay.processes.rendezvous import RendezvousWatch
from ddtop.relay.processes.sample import is_gone
from ddtop.relay.requests import RelayRequests, has_sound_numbers
from ddtop.relay.state_files import RelayPlace, StateFiles
from ddtop.wire import frames
from ddtop.wire.records import AnyRecord, Command, CommStatus, Exit, Hello, Reply, Stacks

# -- The viewers of this relay
#
# A viewer joins and gets the history, then all new frames. It may leave without a message.


VIEWER_SILENT_S = 10.0
VIEWERS_MAX = 64
PINGLESS_S = 3.0
"""A viewer sends a ping every two seconds; one that sends none for this time has left."""
HISTORY_S_MAX = 1e9
"""Limit of the history that a viewer asks for: it may ask for any number, also infinity."""
ROOM_S = 2.0
"""How long a viewer that joins waits until so much of others' history is out that its own has room.
After that it gets the latest frames only. A view waits 5 s for them."""
JOB_OVER_S = 60.0
"""A job whose ranks are all gone is over after this time. Restarts come sooner."""


class Viewers:
    """Used by the relay's loop only.

    `follow(order, role, peer)` returns the answer to an order, None if it comes later.
    """

    def __init__(
        self,
        link: RelayLink,
        history: FrameHistory,
        instance: str,
        seal: Callable[[AnyRecord], bytes],
        follow: Callable[[Command, str, bytes], Reply | None],
    ) -> None:
        self._link, self._history, self._instance, self._seal, self._follow = (
            link,
            history,
            instance,
            seal,
            follow,
        )
        self._peers: dict[bytes, float] = {}
        self._joining: dict[bytes, tuple[float, float]] = {}
        self._may_admit = True
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._peers) + len(self._joining)

    def on_frame(self, peer: bytes, envelope: frames.Envelope, role: str) -> None:
        """Take in what a viewer says.

        Raises:
            WireError: the frame is not a command.
        """
        record = frames.open_record(envelope)
        if not isinstance(record, Command):
            raise frames.WireError("a viewer may send only commands")
        if record.name == "join":
            if self._link.queues.owes(peer):
                # It has joined, and reads its history. To ask for it again would add to it.
                return
            if len(self) >= VIEWERS_MAX:
                # Forget viewers that left without a message: somebody who runs a short command
                # ten times a second must not keep others out.
                self.forget_silent(time.monotonic(), PINGLESS_S)
            if len(self) >= VIEWERS_MAX:
                self.say(
                    peer,
                    Reply("joined", ok=False, text=f"{VIEWERS_MAX} viewers are attached already"),
                )
                return
            now = time.monotonic()
            self._joining.setdefault(peer, (record.history_s, now + ROOM_S))
            self._admit(now)
            return
        if record.name in ("stacks", "signal", "mute"):
            answer = self._follow(record, role, peer)
            if answer is not None:
                self.say(peer, answer)
        elif record.name != "ping":
            self.say(peer, Reply(record.name, ok=False, text=f"unknown command {record.name[:40]}"))
            return
        if peer in self._peers:
            self._peers[peer] = time.monotonic()
        elif peer not in self._joining:
            # It has not joined this relay, but the one before it.
            self.say(peer, Reply("rejoin", instance=self._instance))

    def due(self) -> float:
        """When `on_time` wants to be called next, monotonic s."""
        return time.monotonic() + ROOM_S / 40 if self._joining else float("inf")

    def on_time(self, now: float) -> None:
        """Admit the next viewer. One in each turn of the loop: to collect its history takes 20 ms
        in which no rank is served.
        """
        self._may_admit = True
        self._admit(now)

    def _admit(self, now: float) -> None:
        if not self._joining or not self._may_admit:
            return
        peer, (history_s, until_s) = next(iter(self._joining.items()))
        room = self._link.queues.waiting_bytes + HISTORY_BYTES <= WAITING_BYTES_MAX
        if not room and now < until_s:
            return
        self._may_admit = False
        del self._joining[peer]
        self._peers[peer] = now
        self._tell_history(peer, history_s if room else 0.0)

    def _tell_history(self, peer: bytes, seconds: float) -> None:
        history = self._history.frames_since(
            time.time_ns() - int(min(max(0.0, seconds), HISTORY_S_MAX) * 1e9)
        )
        joined = Reply("joined", count=len(history), instance=self._instance)
        live = Reply("live", instance=self._instance)
        self._link.send(VIEW, peer, self._seal(joined), *history, self._seal(live))

    def say(self, peer: bytes, record: AnyRecord) -> None:
        self.dropped += not self._link.send(VIEW, peer, self._seal(record))

    def send(self, peer: bytes, data: bytes) -> None:
        """A frame for one viewer."""
        self.dropped += not self._link.send(VIEW, peer, data)

    def tell(self, *data: bytes) -> None:
        """Send frames to all."""
        full, gone = self._link.broadcast(self._peers, *data)
        self.dropped += len(full) * len(data)
        for peer in gone:
            # It has left, so nothing counts as dropped.
            del self._peers[peer]

    def forget_silent(self, now: float, seconds: float = VIEWER_SILENT_S) -> None:
        """Forget viewers that have sent nothing for this time."""
        self._peers = {peer: at for peer, at in self._peers.items() if now - at <= seconds}


# -- The loop of the relay


HOST_EVERY_S, ALIVE_EVERY_S, RING_EVERY_S = 1.0, 2.0, 0.25
ROSTER_AFTER_S = 0.5
"""How soon a new rank or an exit is written to the roster. Several within this time need one
write."""
SWEEP_AFTER_S = 30.0
"""Files that were abandoned when this relay started are removed after this time. By then every
reader has read them."""
NOBODY_CAME_S, ORPHANED_S = 120.0, 10.0
"""A relay that no rank has contacted ends after this time, or earlier with its launcher."""
EXITS_MAX = 20_000
FROM_RANKS = ("Hello", "RankState", "Groups", "Stacks", "Arrivals")
"""The records that an agent may send."""


class Server:
    """One relay. `sender`: the identity of its host. `voice`: the identity of the relay
    (`registry.relay_identity`), given where it is not that of this host.
    """

    def __init__(
        self,
        job: str,
        run: str,
        launcher: int,
        linger_s: float,
        sender: str | None = None,
        policy: Policy = POLICY,
    ) -> None:
        self.job, self.run, self.launcher, self.linger_s = job, run, launcher, linger_s
        self.instance = uuid.uuid4().hex[:12]
        self.sender, self.voice = (
            sender or registry.host_identity(),
            sender or registry.relay_identity(run),
        )
        self._link = RelayLink(registry.socket_path(job, run), registry.secret(), "127.0.0.1")
        self._history = FrameHistory()
        self._probe = HostProbe()
        self.host = self._probe.host
        self._rendezvous, self._helpers = RendezvousWatch(), HelperWatch()
        self._far_ends = FarEnds()
        self._chains = Chains()
        self._ranks = Ranks(self._link, self.seal)
        automatic = os.environ.get("DDTOP_AUTODUMP", "1") != "0"
        self._requests = RelayRequests(self, self._ranks, automatic, policy)
        self._viewers = Viewers(
            self._link, self._history, self.instance, self.seal, self._requests.follow
        )
        self._role = HubRole(self, self._link, self._history, self._requests)
        self._exits: list[Exit] = []
        self._own_exits = 0
        self._hello: Hello | None = None
        self._started = self._active = time.monotonic()
        self._all_gone_at: float | None = None
        self._ended_unix_ns: int | None = None
        self._garbled = 0
        self._state_files = StateFiles(
            job, run, self.sender, self._probe.host, self._link.port, self._history
        )
        self._place = RelayPlace()
        size, self._budget_wrong = budget()
        self._journal = JournalWriter(
            registry.journal_path(job, run, self.sender), size, self._history.facts
        )
        self._journal_share = JournalShare(size)
        self._load, self._gpus, self._ras = HostWatch(), GpuReader(), Ras(policy)
        self._abandoned: list[Path] = []
        self._due = {
            "host": 0.0,
            "alive": 0.0,
            "entry": 0.0,
            "ring": float("inf"),
            "roster": float("inf"),
            "sweep": self._started + SWEEP_AFTER_S,
        }
        self._waiting_parent = WaitingParent()
        self.stopping = False

    def serve(self) -> None:
        """Serve until stopped, or until the job is over and no viewer came for the linger time."""
        self._abandoned = sample.abandoned_files()
        self._take_over()
        try:
            while not self.stopping and not self._may_end():
                now = time.monotonic()
                due = min(
                    *self._due.values(),
                    self._requests.due(),
                    self._role.due(),
                    self._ranks.look_due_s(),
                    self._viewers.due(),
                )
                with without_descriptors_left():
                    for kind, what in self._link.wait(due - now):
                        if kind == PROCESS and isinstance(what, int):
                            self._on_gone(self._ranks.take_ended(what), time.time_ns())
                        elif kind == HUB:
                            self._garbled += self._role.on_hub(what, time.monotonic())
                        elif kind == RANK:
                            self._on_ranks()
                        else:
                            self._on_views()
                    self._on_time()
        finally:
            self._close()

    def _take_over(self) -> None:
        """Read the roster of the relay before this one, if that was killed.

        A rank that is stopped cannot say Hello again.
        """
        try:
            reading = journal.read(registry.roster_path(self.job, self.run), ours=True)
        except journal.JournalError:
            return
        hellos: list[Hello] = []
        for data in reading.frames:
            try:
                envelope = frames.open_envelope(data)
                record = frames.open_record(envelope)
            except frames.WireError:
                self._garbled += 1
                continue
            self._history.keep(envelope, data)
            if isinstance(record, Hello) and has_sound_numbers(record):
                hellos.append(record)
            elif isinstance(record, Exit):
                self._note_exit(record, own=True)
        ended = {exit_.pid for exit_ in self._exits}
        for hello in hellos:
            # A reported end is not looked up again; an end that nobody saw, while there was
            # no relay, has gone.
            if hello.pid in ended and is_gone(hello.pid, hello.start_ticks):
                self._ranks.note_gone(hello)
            self._on_hello(hello, spoke=False)
        if self._exits and not self._ranks:
            self._all_gone_at = time.monotonic()

    # -- what comes in

    def _on_ranks(self) -> None:
        for peer, data, _ in self._link.receive(RANK):
            try:
                self._on_rank(peer, frames.open_envelope(data), data)
            except (frames.WireError, OverflowError):
                self._garbled += 1

    def _on_rank(self, peer: bytes, envelope: frames.Envelope, data: bytes) -> None:
        now = time.monotonic()
        pid = envelope.pid
        if pid is None or envelope.kind not in FROM_RANKS:
            self._garbled += 1
            return
        first = self._ranks.heard(peer, pid)
        if first is None:
            return
        if first:
            self._ranks.say(peer, self._alive())
        self._active = now
        if envelope.kind == "Hello":
            record = frames.open_record(envelope)
            if not isinstance(record, Hello) or record.pid != pid or not has_sound_numbers(record):
                self._ranks.refused += 1
                return
            spoke = self._ranks.speaks_for_itself(peer, record)
            if spoke is not None:
                self._on_hello(record, spoke)
        if not self._role.obeys:
            self._consider(envelope, pid, now)
        self._forward(envelope, data)
        if envelope.kind == "Stacks":
            answer = frames.open_record(envelope)
            if isinstance(answer, Stacks):
                self._requests.dumps.on_agent_answer(pid, answer.request)

    def _consider(self, envelope: frames.Envelope, who: Hashable, now: float) -> None:
        self._requests.consider(envelope, who, now)
        if envelope.stuck_key:
            self._ras.note_stuck(now)

    def _on_hello(self, hello: Hello, spoke: bool = True) -> None:
        self._hello = hello if self._hello is None or hello.rank == 0 else self._hello
        self._helpers.on_hello(hello)
        if self._ranks.greet(hello, spoke):
            self._all_gone_at = self._ended_unix_ns = None
            self._due["entry"] = 0.0
            self._due["roster"] = time.monotonic() + ROSTER_AFTER_S
        self._role.look(self._ranks.hellos(), time.monotonic())

    def _on_views(self) -> None:
        """Handle the orders of viewers, and the frames of the relays of other hosts.

        Frames of other relays are forwarded as they came, many at a time.
        """
        incoming = self._link.receive(VIEW)
        for (peer, role), group in groupby(incoming, key=lambda frame: (frame[0], frame[2])):
            if role == SERVER:
                self._on_leaf(peer, [data for _, data, _ in group])
                continue
            for _, data, _ in group:
                try:
                    self._viewers.on_frame(peer, frames.open_envelope(data), role)
                except (frames.WireError, OverflowError) as error:
                    self._garbled += 1
                    if isinstance(error, frames.SchemaError):
                        # Its ddtop cannot read this text, but it sees by what schema it came.
                        self._viewers.say(peer, Reply("joined", ok=False, text=str(error)))

    def _on_leaf(self, peer: bytes, parts: list[bytes]) -> None:
        hub, now = self._role.hub, time.monotonic()
        if hub is None:
            self._garbled += len(parts)
            return
        kept = hub.take(peer, parts, now)
        for envelope, data in kept:
            self._record(envelope, data, own=False)
            if envelope.kind == "RankState":
                self._consider(envelope, (envelope.sender, envelope.pid), now)
            elif envelope.kind == "Exit":
                record = frames.open_record(envelope)
                if isinstance(record, Exit):
                    self._note_exit(record, own=False)
        if kept:
            self._viewers.tell(*(data for _, data in kept))
            for envelope, _ in kept:
                self._share_stacks(envelope)

    def _on_gone(self, watched: sample.Watched, unix_ns: int) -> None:
        pid = watched.hello.pid
        # The last records of the rank have been read before its end is noticed.
        self._on_ranks()
        record = sample.last_words(watched, self._own_exits, unix_ns)
        self._note_exit(record, own=True)
        self._requests.dumps.on_gone(pid)
        self._ranks.forget(watched)
        self._helpers.rank_ended(record, unix_ns)
        self.publish(record, watched.hello, unix_ns)
        if not self._ranks:
            self._all_gone_at = time.monotonic()
        self._due["roster"] = time.monotonic()
        # The next look follows at once and shows which ranks are left.
        self._due["host"] = min(self._due["host"], time.monotonic() + 0.1)

    def _note_exit(self, record: Exit, own: bool) -> None:
        self._own_exits += own
        if len(self._exits) < EXITS_MAX:
            self._exits.append(record)

    # -- what goes out

    def _forward(self, envelope: frames.Envelope, data: bytes, latest: bool = True) -> None:
        self._record(envelope, data, latest)
        self._viewers.tell(data)
        self._role.put(envelope, data)
        self._share_stacks(envelope)

    def _record(
        self, envelope: frames.Envelope, data: bytes, latest: bool = True, own: bool = True
    ) -> None:
        """Remember a frame, and write it to the recording.

        Stacks may take only a part of the recording.
        """
        whole = True
        if envelope.kind == "Stacks":
            record = frames.open_record(envelope)
            whole = self._journal_share.admits(
                len(data), isinstance(record, Stacks) and record.automatic
            )
        else:
            self._journal_share.note_written(len(data))
        self._history.keep(envelope, data, latest, own, past=whole)
        if whole:
            self._journal.put(data)

    def _share_stacks(self, envelope: frames.Envelope) -> None:
        """Send the stacks also to other viewers that asked for them at the same time, each under
        the name of its own request.
        """
        record = frames.open_record(envelope) if envelope.kind == "Stacks" else None
        if not isinstance(record, Stacks):
            return
        for asked in self._requests.sharers(record):
            copy = msgspec.structs.replace(record, request=asked.name)
            data = frames.seal(
                copy,
                sender=envelope.sender,
                unix_ns=envelope.unix_ns,
                mono_ns=envelope.mono_ns,
                attempt=envelope.attempt,
                rank=envelope.rank,
                pid=envelope.pid,
            )
            self._viewers.send(asked.viewer, data)

    def address_of(self, viewer: bytes) -> str:
        return self._link.address_of(viewer)

    def publish(
        self,
        record: AnyRecord,
        of: Hello | None = None,
        unix_ns: int | None = None,
        *,
        latest: bool = True,
    ) -> None:
        """Keep a record about the rank of this Hello, or about no rank, and send it to everyone."""
        data = self.seal(record, of, unix_ns)
        self._forward(frames.open_envelope(data), data, latest)

    def publish_about(self, record: AnyRecord, rank: int | None, pid: int) -> None:
        attempt = self._hello.attempt if self._hello is not None else 0
        data = self._seal_record(record, time.time_ns(), attempt, rank, pid)
        self._forward(frames.open_envelope(data), data)

    def seal(self, record: AnyRecord, of: Hello | None = None, unix_ns: int | None = None) -> bytes:
        """A record of ours in its envelope."""
        at = time.time_ns() if unix_ns is None else unix_ns
        return (
            self._seal_record(record, at, of.attempt, of.rank, of.pid)
            if of
            else self._seal_record(record, at, 0, None, None)
        )

    def _seal_record(
        self, record: AnyRecord, unix_ns: int, attempt: int, rank: int | None, pid: int | None
    ) -> bytes:
        mono_ns = time.monotonic_ns()
        return frames.seal(
            record,
            sender=self.voice,
            unix_ns=unix_ns,
            mono_ns=mono_ns,
            attempt=attempt,
            rank=rank,
            pid=pid,
        )

    def _alive(self) -> Command:
        complaints = (
            self._link.complaint,
            self._state_files.why,
            self._journal.problem,
            self._budget_wrong,
            *self._role.complaints(),
        )
        arguments = tuple(why for why in complaints if why)
        return Command("alive", instance=self.instance, arguments=arguments, pid=os.getpid())

    # -- what is due

    def _on_time(self) -> None:
        now = time.monotonic()
        self._viewers.on_time(now)
        if now >= self._ranks.look_due_s():
            for watched, unix_ns in self._ranks.look_for_ends(now):
                self._on_gone(watched, unix_ns)
        self._requests.on_time(now)
        if not self._role.obeys:
            self._requests.ask_for_stacks_if_due(now)
        self._role.on_time(now, len(self._ranks), self._is_over_here(now))
        if now >= self._due["host"]:
            self._due["host"] = now + HOST_EVERY_S
            if not self._role.obeys:
                self._requests.ask_for_arrivals_if_due(now)
            self._look_around(now)
            if self._waiting_parent.look():
                self.stopping = True
            self._look_at_host()
            # A viewer shows shares of time, for which there have to be more samples.
            self._ranks.ring(time.monotonic_ns(), closer=bool(self._viewers))
            self._due["ring"] = now + RING_EVERY_S
            if self._helpers.changed and self._ended_unix_ns is not None:
                # A launcher ends after its ranks.
                self._state_files.write_last_state()
        if now >= self._due["ring"]:
            self._due["ring"] = (
                now + RING_EVERY_S if self._ranks.ring(time.monotonic_ns()) else float("inf")
            )
        if now >= self._due["alive"]:
            self._due["alive"] = now + ALIVE_EVERY_S
            self._ranks.say_all(self._alive())
            self._viewers.forget_silent(now)
            self._link.queues.give_back_memory()
        if self._all_gone_at is not None and self._ended_unix_ns is None and self._is_over(now):
            self._ended_unix_ns = time.time_ns()
            self._look_at_host()
            self._state_files.write_last_state()
            self._due["entry"] = 0.0
        self._write_what_is_due(now)

    def _write_what_is_due(self, now: float) -> None:
        if now >= self._due["roster"]:
            self._due["roster"] = now + registry.HEARTBEAT_S
            self._state_files.write_roster()
        if now >= self._due["sweep"]:
            self._due["sweep"] = float("inf")
            self._state_files.sweep(self._abandoned)
        if now >= self._due["entry"]:
            self._due["entry"] = now + registry.HEARTBEAT_S
            self._write_entry()

    def _look_around(self, now: float) -> None:
        """Look at the connections to the other hosts, once a second."""
        role, hub = self._role, self._role.hub
        if not role.decided:
            role.look(self._ranks.hellos(), now)
        if hub is not None:
            hub.on_time(now)
            if hub.living:
                self._active = now
            if self._ended_unix_ns is not None and not hub.over(now):
                # A host came back, or its launcher started its ranks again.
                self._ended_unix_ns = None
            hub.ended = self._ended_unix_ns is not None
        place = role.place()
        if place != self._place:
            self._place, self._due["entry"] = place, now

    def _look_at_host(self) -> None:
        now = time.monotonic_ns()
        here, hub = list(self._ranks.watched.values()), self._role.hub
        looked = [sample.look(watched, now) for watched in here]
        answer = self._ras.look(now / 1e9, here, hub.living if hub is not None else 0)
        if answer is not None:
            self.publish(CommStatus(answer))
        met = self._rendezvous.look(here, self.launcher, now)
        wanted = not self._is_over_here(now / 1e9)
        gpus, gpu_watch = self._gpus.look(sample.owners(here), self.launcher, wanted)
        lost = (
            self._ranks.dropped
            + self._viewers.dropped
            + self._history.forgotten
            + self._journal.dropped
        )
        states, asked = (
            self._far_ends.look(here, looked, now),
            self._role.ends(self._chains.elsewhere, now / 1e9),
        )
        self.publish(
            self._probe.look(
                self._chains.look(waiting_of(here, now), states, now, asked),
                served=self._chains.served(self.host),
                rendezvous=met.ways,
                candidates=met.candidates,
                candidacies=met.candidacies,
                launching=met.launching,
                helpers=self._helpers.look(here, time.time_ns()),
                launcher_alive=self._launcher_alive(),
                dropped=lost + (hub.dropped if hub is not None else 0),
                refused=self._link.refused + self._ranks.refused,
                garbled=self._garbled + self._link.broken + (hub.garbled if hub is not None else 0),
                load=self._load.look(self._ranks.hellos()),
                gpus=gpus,
                gpu_watch=gpu_watch,
                clock=self._role.clock(),
                hub=self._role.hub_link(now / 1e9),
            )
        )

    def _launcher_alive(self) -> bool | None:
        if self._ended_unix_ns is not None:
            return False
        # Under torchrun only: an interactive shell lives on and says nothing about the job.
        elastic = self._hello is not None and is_elastic(self._hello.environment)
        return (
            registry.start_ticks(self.launcher) is not None
            if elastic and self.launcher > 1
            else None
        )

    def _is_over_here(self, now: float) -> bool:
        """No rank lives on this host, and none will start."""
        if self._all_gone_at is None:
            return False
        return not self._launcher_alive() or now - self._all_gone_at > JOB_OVER_S

    def _is_over(self, now: float) -> bool:
        hub = self._role.hub
        return self._is_over_here(now) and (hub is None or hub.over(now))

    def _may_end(self) -> bool:
        now = time.monotonic()
        if self._hello is None:
            orphaned = self.launcher > 1 and registry.start_ticks(self.launcher) is None
            return now - self._started > (ORPHANED_S if orphaned else NOBODY_CAME_S)
        # torchrun ends a second after its ranks. A last state that is written earlier would show a
        # run that is not over.
        if self._all_gone_at is None or self._ended_unix_ns is None or self._viewers:
            if self._viewers:
                self._active = now
            return False
        return now - max(self._all_gone_at, self._active) > self._role.linger_s(self.linger_s)

    def _write_entry(self) -> None:
        if self._hello is not None:
            hub = self._role.hub
            reporting = len(self._ranks) + (hub.living if hub is not None else 0)
            ended, ranks = self._ended_unix_ns, self._ranks.hellos()
            self._state_files.write_entry(
                self._hello, reporting, ended, self._exits, self._place, ranks
            )

    def _close(self) -> None:
        if self._hello is not None:
            if self._ended_unix_ns is None:
                self._ended_unix_ns = time.time_ns()
                self._state_files.write_last_state()
            self._write_entry()
        self._role.close(len(self._ranks))
        self._requests.dumps.close()
        self._rendezvous.close()
        self._gpus.close()
        self._helpers.close()
        self._chains.close()
        self._journal.close()
        self._link.close()
        self._state_files.leave()
        self._state_files.finish()
