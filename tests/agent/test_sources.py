"""The table of sources: each row names a module with the functions that the protocol requires."""

import importlib
from functools import partial
from types import SimpleNamespace

import pytest

from ddtop.agent import report
from ddtop.agent.guard import guard
from ddtop.agent.limits import LIMITS
from ddtop.agent.notes import Notes
from ddtop.agent.probe import Probe, WaitsProbe
from ddtop.agent.rank import InitArguments
from ddtop.agent.sources import SOURCES, ProbeRow
from ddtop.wire import frames
from ddtop.wire import page as layout
from ddtop.wire.records import Group, Groups, RankState
from tests.running import python


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_the_file_of_a_row_has_the_functions_that_the_row_promises(source):
    promised = [source.wrap] if source.after else []
    promised += ["before", "failed"] if source.around else []
    promised += [source.probe] if source.probe else []
    module = importlib.import_module(source.file)

    assert promised
    assert [name for name in promised if not callable(getattr(module, name, None))] == []


def test_no_two_rows_have_the_same_name():
    names = [source.name for source in SOURCES]

    assert len(set(names)) == len(names)


def test_the_table_and_the_hooks_import_no_source():
    """Both are loaded in every Python of a DDTOP=1 shell."""
    program = (
        "import sys; import ddtop.agent.import_hooks;"
        "print(sorted(name for name in sys.modules if name.startswith('ddtop.agent')))"
    )
    done = python("-c", program)

    assert done.stdout.strip() == str(
        [
            "ddtop.agent",
            "ddtop.agent.guard",
            "ddtop.agent.import_hooks",
            "ddtop.agent.own_imports",
            "ddtop.agent.sources",
            "ddtop.agent.tracebacks",
        ]
    )


# -- the report iterates over the table


class Link:
    """A link to the relay that keeps what was sent."""

    drops = 0

    def __init__(self):
        self.sent = []

    def send(self, data):
        self.sent.append(frames.open_record(frames.open_envelope(data)))

    def receive(self):
        return None

    @property
    def states(self):
        return [record for record in self.sent if isinstance(record, RankState)]


class Counter(Probe):
    """A source with one field. It raises from the third sample on."""

    name = "counter"

    def __init__(self):
        self.samples = 0

    def sample(self, tick):
        self.samples += 1
        if self.samples > 2:
            raise OSError("gone")

    def fields(self, tick):
        return partial(RankState, iteration=self.samples)


class Fabric(WaitsProbe):
    """A third source that knows when the rank waits."""

    def __init__(self, name, key):
        super().__init__(LIMITS)
        self.name, self.key = name, key
        self.groups = (Group(name, "", (0, 1), "fabric"),)
        self._waits.extend([4_000_000, 9_000_000])

    def sample(self, tick):
        self.count_sample(waits=True)
        self.moved_at = tick.now

    def stuck_key(self):
        return self.key


def row(name, probe):
    source = ProbeRow(name, "probes.none", probe="probe")
    return SimpleNamespace(
        name=source.name, probe="probe", load=lambda _function: lambda _rank: probe
    )


@pytest.fixture
def reporter(monkeypatch):
    """`reporter(row, ...)`: a reporter over these rows, and its link."""
    monkeypatch.setattr(guard, "off", {})
    monkeypatch.setattr(guard, "_failed", {})

    def made(*rows, late=None):
        monkeypatch.setattr(report, "SOURCES", rows)
        who = SimpleNamespace(rank=0, local_rank=0, world_size=2, attempt=0, script="train.py")
        words = [0] * layout.SLOTS_AT
        page = SimpleNamespace(open_calls=list, path=None, fallback=None, words=words)
        dump = SimpleNamespace(
            still_ours=lambda: True, signal=None, path=None, descriptor=None, off=None
        )
        rank = SimpleNamespace(
            who=who,
            run="run",
            job="job",
            pid=7,
            start_ticks=1,
            source="env",
            backend=None,
            page=page,
            dump_file=dump,
            late_probes=late or {},
            notes=Notes(),
            init_arguments=InitArguments(),
            failed_save=None,
            saves_to=(),
            started_unix_ns=1,
            exiting=False,
            destroyed=False,
            joined=False,
            above=None,
            exception=None,
        )
        link = Link()
        return report.Reporter(rank, link), rank, link

    return made


def ticks(reporter, number):
    for at in range(number):
        reporter.report_soon()
        reporter.tick(1_000_000_000 + at, held=False, greet=False)


def test_a_probe_that_raises_is_off_by_its_name_and_its_last_fields_stay(reporter):
    agent, _, link = reporter(row("counter", Counter()))
    ticks(agent, 4)

    assert [state.iteration for state in link.states] == [1, 2, 2, 2]
    assert link.states[-1].probes_off == ("counter: OSError: gone",)


def test_two_sources_of_waits_add_up_and_the_later_row_names_what_is_stuck(reporter):
    agent, _, link = reporter(
        row("mpi", Fabric("mpi", ("m", 1))), row("torch", Fabric("torch", ("t", 2)))
    )
    ticks(agent, 3)
    state = link.states[-1]

    assert (state.wait_samples, state.all_samples) == (6, 6)
    assert (state.healthy_wait_max_ms, state.usual_wait_ms) == (9.0, 9.0)
    (record,) = [one for one in link.sent if isinstance(one, Groups)]
    assert [group.name for group in record.groups] == ["torch", "mpi"]


def test_a_probe_that_a_wrapper_adds_takes_the_place_of_its_row(reporter):
    """MPI comes before the frames, which are judged by the MPI call."""
    order = []

    class Ordered(Probe):
        def __init__(self, name):
            self.name = name

        def sample(self, tick):
            order.append(self.name)

    early = SimpleNamespace(name="mpi", probe="")
    agent, rank, _ = reporter(early, row("place", Ordered("place")))
    ticks(agent, 1)
    rank.late_probes["mpi"] = Ordered("mpi")
    ticks(agent, 1)

    assert order == ["place", "mpi", "place"]
