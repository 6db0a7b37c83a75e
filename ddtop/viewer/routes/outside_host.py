"""The host of ranks that were started without ddtop: its memory, disks and GPUs, the connections in
init_process_group, and NCCL's status service. All of this is read with the relay's code.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from ddtop.policy import Policy
from ddtop.relay.gpus.ras import Ras
from ddtop.relay.gpus.reader import GpuReader
from ddtop.relay.host.pressure import HostWatch
from ddtop.relay.host.usage import HostProbe
from ddtop.relay.processes import sample
from ddtop.relay.processes.rendezvous import RendezvousWatch
from ddtop.wire.page import PageView
from ddtop.wire.records import CommStatus, HostState, ProcessState


class Surface:
    """What /proc, the driver and NCCL report around the ranks. `launcher`: its pid, or 0."""

    def __init__(self, launcher: int, policy: Policy) -> None:
        self._launcher = launcher
        self._probe, self._load = HostProbe(), HostWatch(policy)
        self._gpus, self._ras = GpuReader(policy), Ras(policy)
        self._rendezvous = RendezvousWatch(policy)
        self._inside: Mapping[int, int | None] = {}
        self._nccl: frozenset[int] = frozenset()
        self._waits = self._answered = False
        self.host = self._probe.host

    def note_inside(self, inside: Mapping[int, int | None]) -> None:
        """Since when each rank is inside init_process_group (unix ns), by pid."""
        self._inside = inside

    def note_wait(self, nccl: frozenset[int]) -> None:
        """Ask NCCL's status service, because some rank waits without a break.

        `nccl`: the pids of the ranks that may use NCCL. `relay.gpus.ras` knows when it must not
        be asked, such as an old release while a rank is gone.
        """
        self._nccl, self._waits = nccl, bool(nccl)
        self._ras.saw(time.monotonic())

    @property
    def asks(self) -> bool:
        """Whether NCCL's status service is to be asked and has not answered yet."""
        return self._waits and not self._answered

    def look(
        self, here: Sequence[sample.Watched], states: tuple[ProcessState, ...]
    ) -> Iterator[CommStatus | HostState]:
        """The records of this moment."""
        now = time.monotonic_ns()
        answer = self._ras.look(now / 1e9, self._on_nccl(here, now))
        if answer is not None:
            self._answered = True
            yield CommStatus(answer)
        for one in here:
            since = self._inside.get(one.hello.pid)
            # That part expects the state page of an agent.
            one.page = _as_page(one, since) if since is not None else None
        met = self._rendezvous.look(here, self._launcher, now)
        gpus, gpu_watch = self._gpus.look(sample.owners(here), self._launcher)
        yield self._probe.look(
            states,
            rendezvous=met.ways,
            candidates=met.candidates,
            candidacies=met.candidacies,
            launching=met.launching,
            load=self._load.look([one.hello for one in here]),
            gpus=gpus,
            gpu_watch=gpu_watch,
        )

    def _on_nccl(self, here: Sequence[sample.Watched], now_mono_ns: int) -> list[sample.Watched]:
        """The ranks as `relay.gpus.ras` expects them: without an agent, their backend is not
        reported, and their silence means nothing."""
        return [
            replace(
                one,
                hello=msgspec.structs.replace(one.hello, backend="nccl"),
                heard_mono_ns=now_mono_ns,
            )
            for one in here
            if one.hello.pid in self._nccl
        ]

    def close(self) -> None:
        """End the reads that are under way."""
        self._rendezvous.close()
        self._gpus.close()


def _as_page(one: sample.Watched, since_unix_ns: int) -> PageView:
    since_mono_ns = since_unix_ns - time.time_ns() + time.monotonic_ns()
    return PageView(
        one.hello.pid,
        one.hello.start_ticks,
        0,
        0,
        0,
        0,
        None,
        init_since_mono_ns=max(since_mono_ns, 1),
    )
