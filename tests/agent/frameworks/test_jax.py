"""Processes of jax.distributed: how they become ranks, and what is read of them."""

from types import ModuleType, SimpleNamespace

import pytest

from ddtop.agent import claim, current
from ddtop.agent.frameworks import jax
from ddtop.agent.limits import LIMITS
from ddtop.agent.probe import Tick
from ddtop.agent.stacks.frames import ThreadLook
from ddtop.wire.names import JAX_INIT
from ddtop.wire.page import CALLS
from ddtop.wire.records import COLLECTIVE, UNCLEAR

S = 1_000_000_000
SITE = "/env/site-packages/jax/_src"
EXECUTES = (f"{SITE}/interpreters/pxla.py", "__call__", "ExecuteReplicated.__call__", 395)


class Rank:
    """A rank that remembers what is on its page."""

    def __init__(self):
        self.calls, self.said = [], []
        self.page = SimpleNamespace(
            words=[0] * 600,
            enter_call=lambda call, _peer, _tag: self.calls.append(CALLS[call]) or 3,
            leave_call=lambda slot: slot >= 0 and self.calls.pop(),
        )
        self.who = SimpleNamespace(rank=1, world_size=3)
        self.limits, self.pid, self.lead_id = LIMITS, 4801, 7
        self.late_probes, self.init_arguments = {}, None
        self.joined = self.destroyed = False
        self.member = None
        self.stack = []
        self.frames = SimpleNamespace(
            walk=SimpleNamespace(stack=lambda _thread, most: [(at, 1) for at in self.stack[:most]])
        )

    def send_hello_again(self):
        self.said.append("hello")

    def enters_group(self, number, size):
        self.member = (number, size)

    def leaves_group(self):
        self.member = None


@pytest.fixture
def rank(monkeypatch):
    found = Rank()
    monkeypatch.setattr(current, "_rank", None)
    claimed = found.claimed = []

    def entering_init(*given):
        claimed.append(given)
        current.become(found)

    monkeypatch.setattr(claim, "entering_init", entering_init)
    return found


@pytest.fixture
def module(rank):
    """`jax._src.distributed` of JAX 0.10, as far as it matters here."""
    made = ModuleType("distributed")
    made.seen, made.fails = [], None

    class State:
        process_id, num_processes, coordinator_address = 0, 1, None

        def initialize(self, address=None, size=None, number=None):
            # Here JAX asks Slurm and others for what was left out.
            self.coordinator_address = address or "node0:8476"
            number = 1 if number is None else number
            if number == 0:
                made._jax.get_distributed_runtime_service("[::]:8476", size or 3)
            self.num_processes = size or 3
            made._jax.get_distributed_runtime_client("node0:8476", number, init_timeout=20)
            made.seen.append(list(rank.calls))
            if made.fails:
                raise made.fails
            return "done"

        def shutdown(self):
            return None

    made.State, made.global_state = State, State()
    made._jax = SimpleNamespace(
        get_distributed_runtime_service=lambda *_, **__: None,
        get_distributed_runtime_client=lambda *_, **__: None,
    )
    jax.wrap(made)
    return made


def test_a_process_becomes_a_rank_once_its_number_is_known_and_has_joined_afterwards(module, rank):
    """No variable of a launcher is there; JAX has found the number."""
    assert module.global_state.initialize() == "done"

    assert rank.claimed == [(1, 3, "jax", "tcp://node0:8476")]
    assert module.seen == [[JAX_INIT]]
    assert (rank.calls, rank.joined, rank.member) == ([], True, (1, 3))
    assert rank.init_arguments.timeout_ms == 20_000
    assert isinstance(rank.late_probes["jax"], jax.JaxProbe)


def test_process_0_is_a_rank_before_it_listens(module, rank):
    """A port that is taken ends it there."""
    module._jax.get_distributed_runtime_client = lambda *_, **__: pytest.fail("not reached")
    with pytest.raises(pytest.fail.Exception):
        module.global_state.initialize("node0:8476", 3, 0)

    assert rank.claimed == [(0, 3, "jax", "tcp://node0:8476")]
    assert (rank.calls, rank.joined) == ([], False)


def test_an_initialize_that_fails_joins_nothing(module, rank):
    module.fails = RuntimeError("DEADLINE_EXCEEDED")
    with pytest.raises(RuntimeError):
        module.global_state.initialize()

    assert (rank.calls, rank.joined, rank.late_probes) == ([], False, {})


def test_a_process_that_does_not_initialize_is_no_rank(module, rank):
    module.global_state.shutdown()

    assert (rank.claimed, current.get()) == ([], None)


def test_a_rank_that_shuts_down_leaves(module, rank):
    module.global_state.initialize()
    module.global_state.shutdown()

    assert (rank.destroyed, rank.member) == (True, None)


# -- what the thread does


class Kernel:
    """What the kernel says of the thread, and the ticks of the agent."""

    def __init__(self, rank, monkeypatch):
        self.rank, self.now = rank, 1000 * S
        self.word, self.switches, self.cpu_ns, self.until = "futex_do_wait", 10, 0, None
        monkeypatch.setattr(jax, "wchan", lambda _task: self.word)
        monkeypatch.setattr(jax, "switches", lambda _task: self.switches)
        monkeypatch.setattr(jax.time, "process_time_ns", lambda: self.cpu_ns)
        monkeypatch.setattr(jax, "sleeps_until", lambda _thread: self.until)
        monkeypatch.setattr(jax, "_on_cpu", lambda: True)
        self.probe = jax.JaxProbe(rank)
        self.tick = Tick()

    def passes(self, seconds, each=lambda: None):
        """The look after that time, four ticks a second."""
        for _ in range(int(4 * seconds)):
            each()
            self.now += S // 4
            self.tick.begin(self.now, 0, [])
            self.tick.seen = ThreadLook()
            self.probe.sample(self.tick)
        return self.probe.fields(self.tick).keywords["outside"]


@pytest.fixture
def kernel(rank, monkeypatch):
    return Kernel(rank, monkeypatch)


@pytest.fixture
def line(tmp_path):
    """A place in a program, by the text of its line."""

    def at(text):
        file = tmp_path / f"p{len(list(tmp_path.iterdir()))}.py"
        file.write_text(f"\n{text}\n")
        return (str(file), "train", "train", 2)

    return at


def test_a_thread_that_sleeps_in_a_computation_waits_since_it_fell_asleep(kernel, rank):
    rank.stack = [EXECUTES]
    look = kernel.passes(5)

    assert (look.kind, look.call, look.asleep) == (COLLECTIVE, "a computation", True)
    assert look.since_unix_ns == look.quiet_since_unix_ns == 1000 * S + S // 4
    assert (kernel.tick.seen.waits_on, kernel.tick.seen.callee) == ("collective", "a computation")
    assert kernel.probe.stuck_key() is not None


def test_a_thread_that_sleeps_in_the_shutdown_waits_in_no_computation(kernel, rank):
    """It had fewer batches; the others wait for its part of their next step."""
    rank.stack, rank.destroyed = [EXECUTES], True
    look = kernel.passes(5)

    assert (look.kind, look.asleep, look.since_unix_ns) == (None, True, 1000 * S + S // 4)


def test_the_name_of_a_wait_for_all_hosts_is_that_of_the_function_that_the_program_called(
    kernel, rank, line
):
    hosts = "/env/site-packages/jax/experimental/multihost_utils.py"
    names = ("_handle_array_process_allgather", "process_allgather")
    rank.stack = [EXECUTES, *((hosts, name, name, 9) for name in names), line("report(step)")]

    assert kernel.passes(1).call == "process_allgather"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("loss.block_until_ready()", COLLECTIVE),
        ("state, loss = step(state, batch)", COLLECTIVE),
        ("with self.lock:", None),
        ("lock.acquire()", None),
        ("item = tasks.get()", None),
    ],
)
def test_the_line_shows_whether_a_call_into_c_is_one_of_jax(kernel, rank, line, text, kind):
    """The compiled function has no frame of Python, and a lock has none either."""
    rank.stack = [line(text)]

    assert kernel.passes(1).kind == kind
    assert kernel.passes(1).asleep


def test_a_line_that_cannot_be_read_says_nothing(kernel, rank):
    rank.stack = [("<stdin>", "<module>", "<module>", 1)]

    assert kernel.passes(1).kind == UNCLEAR


@pytest.mark.parametrize(
    "place",
    [(f"{SITE}/compiler.py", "compile", "compile", 1), ("/usr/lib/queue.py", "get", "get", 171)],
)
def test_a_compilation_and_a_queue_are_no_waits_for_others(kernel, rank, line, place):
    rank.stack = [place, line("step(state)")]

    assert kernel.passes(1).kind is None


def test_a_step_that_computes_here_begins_its_wait_anew_at_each_look(kernel, rank):
    """Others may wait for it: it is in the same call as they are."""
    rank.stack = [EXECUTES]

    def computes():
        kernel.cpu_ns += S // 20

    look = kernel.passes(5, computes)

    assert (look.kind, look.since_unix_ns) == (COLLECTIVE, kernel.now)
    assert kernel.probe.moved_at == kernel.now


def test_a_thread_that_polls_may_go_on_and_is_counted_apart_only_after_a_minute(kernel):
    kernel.word = "hrtimer_nanosleep"

    def polls():
        kernel.switches += 1

    kernel.passes(0.25)
    kernel.probe._apart_since = kernel.now
    look = kernel.passes(59, polls)

    assert (look.since_unix_ns, look.kind, look.apart_looks) == (kernel.now, None, 23)
    assert kernel.passes(2, polls).apart_looks == 24


@pytest.mark.parametrize(("sleep_s", "asleep"), [(40, False), (3600, True)])
def test_a_sleep_that_ends_within_a_minute_may_be_a_pause(kernel, sleep_s, asleep):
    kernel.word, kernel.until = "hrtimer_nanosleep", kernel.now + sleep_s * S

    assert kernel.passes(5).asleep == asleep


def test_a_thread_that_runs_is_not_asleep(kernel):
    kernel.word = None
    look = kernel.passes(2)

    assert (look.asleep, look.kind, look.since_unix_ns) == (False, None, kernel.now)


def test_a_rank_with_groups_of_torch_is_judged_by_those(kernel, rank):
    kernel.tick.groups = ("0",)
    rank.stack = [EXECUTES]

    assert kernel.passes(2).kind is None
