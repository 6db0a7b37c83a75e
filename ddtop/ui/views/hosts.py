"""One row per host."""

from __future__ import annotations

from typing import ClassVar

from ddtop.model.state.facts import Snapshot
from ddtop.present.gpus.gpu_text import driver_line, gpu_line
from ddtop.present.hosts.hosts import HostFacts, gpus_note, hosts_facts, part_of
from ddtop.present.text import Line
from ddtop.ui import actions
from ddtop.ui.render.hosts import host_row, hosts_table
from ddtop.ui.session import Session
from ddtop.ui.views.listing import ListingView
from ddtop.ui.views.view import Coded
from ddtop.ui.widgets.key_bar import Key
from ddtop.ui.widgets.pick_list import PickList
from ddtop.viewer.source import Look
from ddtop.viewer.thresholds import chosen

SECOND_NS = 1_000_000_000
SPAN_NS = 10 * SECOND_NS
"""The CPU share of a relay is the mean over this time."""
HOSTS_WITH_GPUS = 16
"""With more hosts than this, only the GPUs that need attention are listed."""


class HostsView(ListingView):
    """The hosts in the order of their ranks, those with a rank at fault first."""

    topic: ClassVar[str] = actions.HOSTS

    def __init__(self, session: Session, coded: Coded) -> None:
        super().__init__(session)
        self.coded = coded
        self._found: tuple[HostFacts, ...] = ()
        self._snapshot: Snapshot | None = None
        self._relays: dict[tuple[str, int], list[tuple[int, int]]] = {}

    def show(self, look: Look, snapshot: Snapshot) -> None:
        """Draw all hosts."""
        self.coded.take(look, snapshot)
        if self._due(snapshot):
            self._snapshot = snapshot
            self._found = hosts_facts(snapshot, self.coded.hosts, self.coded.codes, chosen())
            self._note_relays(snapshot.time_unix_ns)
        found, codes, glyphs = self._found, self.coded.codes, self.session.paint.glyphs
        width, gpus = self.list.size.width, bool(snapshot.devices)
        table = hosts_table(width, found, gpus)
        self.titles.show([table.titles()])
        rows = self._rows()

        def row(index: int) -> Line:
            host, gpu = rows[index]
            if gpu is not None and host.watch is not None:
                return driver_line(host.watch, len(host.devices), width, chosen(), glyphs)
            if gpu is not None:
                device = host.devices[gpu]
                line = gpu_line(
                    device, width, glyphs, host.waits(device), part_of(host.devices, gpu)
                )
                # A report this old says nothing about now.
                return (
                    line
                    if (host.age_s or 0.0) <= chosen().host_report_old_s
                    else tuple((text, "old") for text, _ in line)
                )
            return host_row(host, codes, self._relay_cpu(host), table, glyphs)

        self.put([host.name if gpu is None else (host.name, gpu) for host, gpu in rows], row)

    def _rows(self) -> list[tuple[HostFacts, int | None]]:
        """The hosts, and below each its GPUs; with many hosts only the GPUs that need attention."""
        few = len(self._found) <= HOSTS_WITH_GPUS
        found: list[tuple[HostFacts, int | None]] = []
        for host in self._found:
            found.append((host, None))
            if host.watch is not None:
                found.append((host, 0))
            else:
                found += [
                    (host, gpu) for gpu in (range(len(host.devices)) if few else host.troubled)
                ]
        return found

    def _due(self, snapshot: Snapshot) -> bool:
        """Whether to read again. Relays report once a second: reading more often finds nothing
        new."""
        before = self._snapshot
        if before is None or before.run != snapshot.run:
            return True
        return not before.time_unix_ns <= snapshot.time_unix_ns < before.time_unix_ns + SECOND_NS

    def _note_relays(self, now_unix_ns: int) -> None:
        """A relay reports the CPU time since its start; a share needs two reports."""
        for facts in self._found:
            host, age_s = facts.state, facts.age_s
            if host is None or age_s is None:
                continue
            at = now_unix_ns - int(age_s * SECOND_NS)
            known = self._relays.setdefault((facts.name, host.relay_pid), [])
            if known and at < known[-1][0]:
                known.clear()
            if not known or at > known[-1][0]:
                known.append((at, host.relay_cpu_ns))
            while len(known) > 2 and known[1][0] <= at - SPAN_NS:
                known.pop(0)

    def _relay_cpu(self, host: HostFacts) -> float | None:
        state = host.state
        known = self._relays.get((host.name, state.relay_pid), []) if state is not None else []
        if len(known) < 2 or known[-1][0] - known[0][0] < SECOND_NS:
            return None
        return max(known[-1][1] - known[0][1], 0) / (known[-1][0] - known[0][0])

    def notes(self, snapshot: Snapshot) -> list[str]:
        """A note about GPUs, and which rows are visible."""
        note = gpus_note(self._found, bool(snapshot.devices), len(self._found) > HOSTS_WITH_GPUS)
        return [*([note] if note else []), self.list.range_note]

    def keys(self) -> list[Key]:
        """The keys for a host."""
        return [("enter", "Enter", "its ranks"), ("d", "d", "its stacks"), ("D", "D", "all stacks")]

    def picked(self) -> tuple[int, ...]:
        """The ranks of the host under the cursor."""
        key = self.list.cursor_key
        if isinstance(key, tuple):
            host = next((host for host in self._found if host.name == key[0]), None)
            return (
                host.devices[key[1]].ranks
                if host is not None and key[1] < len(host.devices)
                else ()
            )
        return next((host.ranks for host in self.coded.hosts if host.name == key), ())

    def on_cursor_list_opened(self, message: PickList.Opened) -> None:
        """Show the ranks of the host."""
        message.stop()
        name = message.key[0] if isinstance(message.key, tuple) else message.key
        host = next((host for host in self.coded.hosts if host.name == name), None)
        if host is not None:
            self.post_message(self.Opened(host=host))
