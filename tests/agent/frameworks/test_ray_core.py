"""For whose answer a rank waits in Ray's calls."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from ddtop.agent import current
from ddtop.agent.frameworks import ray_core, trl
from ddtop.agent.guard import guard
from ddtop.agent.notes import Notes
from ddtop.agent.probe import Tick
from ddtop.agent.stacks.frames import ThreadLook
from ddtop.wire.records import Asked
from tests.agent.frameworks.reading import SECOND, phase_now


class Number:
    """A number of Ray: of an actor, a node or a task."""

    def __init__(self, text):
        self.text = text

    def hex(self):
        return self.text

    def is_nil(self):
        return not self.text


def reference(actor):
    return SimpleNamespace(task_id=lambda: SimpleNamespace(actor_id=lambda: Number(actor)))


class AtOnce:
    """`LatestResult` whose call answers at once."""

    def __init__(self, call):
        self.call, self.found = call, None

    def ask(self, now):
        try:
            self.found = self.call()
        except TypeError:
            self.found = None

    def result(self, now, stale_s):
        return self.found


class Ray:
    """Ray's module, a rank that calls it, and the actors of its table."""

    def __init__(self, monkeypatch):
        self.actors, self.answered, self.cpu_ns = {}, [], 0
        self.rank = SimpleNamespace(notes=Notes(), late_probes={}, lead_id=ray_core.get_ident())
        worker = SimpleNamespace(current_node_id=Number("node"))
        self.module = ModuleType("ray._private.worker")
        vars(self.module).update(get=self.get, wait=self.wait, global_worker=worker)
        monkeypatch.setitem(sys.modules, "ray._private.worker", self.module)
        state = SimpleNamespace(actors=self.actors.get)
        monkeypatch.setitem(sys.modules, "ray._private.state", state)
        monkeypatch.setattr(current, "get", lambda: self.rank)
        monkeypatch.setattr(ray_core, "command_line", lambda pid: ("ray::Engine.generate",))
        monkeypatch.setattr(ray_core, "cpu_ns", lambda pid: self.cpu_ns)
        monkeypatch.setattr(ray_core, "LatestResult", AtOnce)
        ray_core.wrap(self.module)

    def has(self, number, name="", pid=7, state="ALIVE", node="node"):
        self.actors[number] = {
            "Name": name, "ActorClassName": "Engine", "Pid": pid, "State": state,
            "Address": {"NodeID": node},
        }  # fmt: skip

    def wait(self, refs, num_returns=1, timeout=None, fetch_local=True):
        return [], [ref for ref in refs if ref not in self.answered]

    def get(self, refs):
        """While the program is in this call, the agent's thread looks."""
        self.looks = [self.look(seconds, cpu) for seconds, cpu in self.ticks]
        return "answer"

    def look(self, seconds, cpu_s):
        self.cpu_ns = round((1 + cpu_s) * SECOND)
        tick = Tick()
        tick.now = ray_core.monotonic_ns() + round(seconds * SECOND)
        tick.seen = ThreadLook()
        self.rank.late_probes["ray"].sample(tick)
        return tick.seen.asked

    def asked(self, refs, *ticks):
        self.ticks = ticks
        assert self.module.get(refs) == "answer"
        return self.looks


@pytest.fixture
def ray(monkeypatch):
    yield Ray(monkeypatch)
    guard.off.pop("ray", None)


def test_a_rank_in_ray_get_names_the_actor_that_has_not_answered(ray):
    first, second = reference("a1"), reference("b2")
    ray.has("b2")
    ray.answered.append(first)

    assert ray.asked([first, second], (0.5, 0), (2, 0)) == [
        None,
        Asked("Engine", 7, "generate", here=True),
    ]


def test_a_named_actor_has_its_name_and_the_others_are_counted(ray):
    ray.has("a1", name="engine_0", node="elsewhere")
    refs = [reference("a1"), reference("b2"), reference("b2")]

    assert ray.asked(refs, (2, 0)) == [Asked("engine_0", 7, others=1)]


@pytest.mark.parametrize(("cores", "idle"), [(0.01, True), (0.5, False)])
def test_an_actor_that_uses_no_cpu_for_a_while_is_idle(ray, cores, idle):
    ray.has("a1")
    looks = ray.asked(reference("a1"), *[(at, at * cores) for at in range(2, 40, 3)])

    assert not looks[1].idle
    assert looks[-1].idle is idle


def test_a_dead_actor_does_nothing_and_one_without_a_process_may_still_start(ray):
    ray.has("a1", state="DEAD")
    ray.has("b2", pid=0, state="PENDING_CREATION")

    assert ray.asked(reference("a1"), (2, 0))[0].idle
    assert ray.asked(reference("b2"), (2, 0)) == [
        Asked("Engine", state="PENDING_CREATION", here=True)
    ]


def test_a_task_is_no_actor(ray):
    assert ray.asked(reference(""), (2, 0)) == [Asked("a task")]


def test_an_actor_that_ray_has_forgotten_is_not_named(ray):
    assert ray.asked(reference("gone"), (2, 0)) == [None]


def test_a_wait_that_has_ended_is_forgotten(ray):
    ray.has("a1")
    ray.asked(reference("a1"), (2, 0))

    assert ray.look(2, 0) is None


def test_trl_reports_what_it_does_between_two_steps():
    module = ModuleType("trl.trainer.grpo_trainer")

    class GRPOTrainer:
        def _generate(self):
            return phase_now()

        def _calculate_rewards(self):
            return phase_now()

    GRPOTrainer.__module__ = module.__name__
    module.GRPOTrainer, module.Imported = GRPOTrainer, ModuleType
    trl.wrap(module)

    assert GRPOTrainer()._generate() == ["generate"]
    assert GRPOTrainer()._calculate_rewards() == ["reward"]
    assert phase_now() == []
