"""Which parameters of a wrapped model are sampled, when, and that nothing else changes."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from types import SimpleNamespace
from weakref import ref

import pytest

from ddtop.agent.probes import replicas
from ddtop.agent.probes.replicas import EVERY_STEPS, STEPS_KEPT, ReplicaNotes

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def far_apart(monkeypatch):
    """Steps are long enough for a sample after every 16th."""
    monkeypatch.setattr(replicas, "APART_NS", 0)


@pytest.fixture
def torch():
    """With a process group of this process alone."""
    torch = pytest.importorskip("torch")
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield torch
    distributed.destroy_process_group()


class Training:
    """A small model in DDP, and what is noted of it."""

    def __init__(self, torch, *layers, ignored=(), optimizer=None):
        from torch.nn.parallel import DistributedDataParallel as Parallel

        self.torch, self.notes = torch, ReplicaNotes()
        module = torch.nn.Sequential(*layers or (torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)))
        Parallel._set_params_and_buffers_to_ignore_for_model(module, list(ignored))
        self.model = Parallel(module)
        self.notes.add(self.model, "0")
        make = optimizer or torch.optim.SGD
        self.optimizer = make(self.model.parameters(), lr=0.1)

    def steps(self, number=EVERY_STEPS, within=nullcontext):
        """That many steps; what is sampled by then."""
        for _ in range(number):
            with within():
                self.model(self.torch.ones(1, 4)).sum().backward()
                self.optimizer.step()
                self.notes.count(self.optimizer, self.torch)
        return self.notes.read()


def test_one_element_of_each_parameter_is_read_after_every_16th_step(torch):
    training = Training(torch)

    assert training.steps(15) == ()
    ((found),) = training.steps(1)
    group, number, names = found.key
    assert (group, number, names) == ("0", 0, ("0.weight", "0.bias", "1.weight", "1.bias"))
    ((step, values),) = found.taken
    parameters = dict(training.model.module.named_parameters())
    assert step == 16
    assert [value in parameters[name].flatten().tolist() for name, value in zip(
        names, values, strict=True)] == [True] * 4  # fmt: skip


def test_where_steps_are_short_samples_become_rarer_by_powers_of_two(torch, monkeypatch):
    monkeypatch.setattr(replicas, "APART_NS", 1 << 60)
    training = Training(torch, torch.nn.Linear(4, 1))
    taken = set()
    for _ in range(40):
        for _ in range(EVERY_STEPS):
            training.notes.count(training.optimizer, torch)
        taken |= {step for found in training.notes.read() for step, _ in found.taken}

    assert taken == {16, 32, 64, 128, 256, 512}


def test_at_most_four_parameters_are_read_spread_over_the_model(torch):
    layers = [torch.nn.Linear(4, 4) for _ in range(9)]
    (found,) = Training(torch, *layers).steps()

    assert found.key[2] == ("0.weight", "2.bias", "5.weight", "7.bias")


def test_older_samples_grow_rare_and_ranks_far_apart_have_two_in_common(torch):
    training = Training(torch, torch.nn.Linear(4, 1))
    kept = []
    for _ in range(600):
        for _ in range(EVERY_STEPS):
            training.notes.count(training.optimizer, torch)
        (found,) = training.notes.read()
        kept.append([step for step, _ in found.taken])

    assert kept[9] == [64, 128, 144, 160]
    assert max(map(len, kept)) <= 10
    assert all(steps == sorted(steps) and steps[-1] - steps[0] < STEPS_KEPT for steps in kept)
    for one, other in zip(kept[256:], kept[320:], strict=False):
        # A thousand steps apart.
        assert len(set(one) & set(other)) >= 2


def test_an_optimizer_without_some_parameters_reads_the_same_as_those_of_other_ranks(torch):
    def of_bias_alone(parameters, lr):
        return torch.optim.SGD(list(parameters)[1:2], lr=lr)

    whole, less = Training(torch), Training(torch, optimizer=of_bias_alone)

    assert whole.steps()[0].key == less.steps()[0].key


def test_of_two_optimizers_of_one_model_the_first_is_counted_until_it_is_gone(torch):
    training = Training(torch)
    ((first),) = training.steps()
    before, training.optimizer = training.optimizer, torch.optim.SGD(
        training.model.parameters(), lr=0.1
    )  # fmt: skip
    assert training.steps() == (first,)

    del before
    gc.collect()
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1)
    ((second),) = training.steps()
    assert len(second.taken) == 1


def test_of_an_optimizer_that_makes_the_steps_of_another_only_its_own_end_is_read(torch):
    """ZeRO's optimizer steps one that has a part of the parameters, and broadcasts them then."""

    class Sharded(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})
            self.optim = torch.optim.SGD(self.param_groups[0]["params"][:2], lr=lr)

    training = Training(torch, optimizer=Sharded)
    taken = []
    for _ in range(2 * EVERY_STEPS):
        training.notes.count(training.optimizer.optim, torch)
        with torch.no_grad():
            for each in training.model.parameters():
                each.add_(1.0)
        training.notes.count(training.optimizer, torch)
        taken = [one.taken[-1] for one in training.notes.read()]
    ((step, values),) = taken

    assert step == 2 * EVERY_STEPS
    assert values[0] in training.model.module[0].weight.flatten().tolist()


def test_two_optimizers_of_two_models_are_counted_apart(torch):
    training = Training(torch)
    module = torch.nn.Linear(4, 4)
    second = torch.nn.parallel.DistributedDataParallel(module)
    training.notes.add(second, "0")
    other = torch.optim.SGD(second.parameters(), lr=0.1)
    for _ in range(32):
        training.notes.count(other, torch)
    found = training.steps()

    assert [(one.key[1], one.key[2][0], one.taken[-1][0]) for one in found] == [
        (1, "weight", 32),
        (0, "0.weight", 16),
    ]


def test_a_model_that_is_wrapped_later_starts_all_counts_again(torch):
    """A rank that has joined later has counted from here on too."""
    training = Training(torch)
    training.steps(15)
    training.notes.add(training.model, "0")

    assert training.steps(15) == ()
    assert training.steps(1)[0].key[1] == 1


@pytest.mark.parametrize(
    "made",
    [
        lambda torch: {"ignored": ["0.weight", "0.bias", "1.weight", "1.bias"][:3]},
        lambda torch: {"optimizer": lambda _, lr: torch.optim.SGD(
            [torch.nn.Parameter(torch.ones(2, requires_grad=True))], lr)},
    ],
    ids=["ignored", "copies"],
)  # fmt: skip
def test_what_ddp_does_not_average_is_not_read(torch, made):
    found = Training(torch, **made(torch)).steps()

    assert [one.key[2] for one in found] in ([("1.bias",)], [])


@pytest.mark.parametrize("kind", ["half", "frozen", "transposed", "subclass", "empty"])
def test_only_plain_float32_parameters_are_read(torch, kind):
    parameter = torch.nn.Parameter(torch.ones(4, 3))
    if kind == "half":
        parameter = torch.nn.Parameter(parameter.half())
    elif kind == "frozen":
        parameter.requires_grad_(False)
    elif kind == "transposed":
        parameter = torch.nn.Parameter(parameter.detach().t())
    elif kind == "subclass":
        parameter = type("Sharded", (torch.nn.Parameter,), {})(parameter.detach())
    else:
        parameter = torch.nn.Parameter(torch.ones(0, 3))

    assert not replicas._is_plain(parameter, torch)
    assert replicas._is_plain(torch.nn.Parameter(torch.ones(3, 4)), torch)


def test_a_step_in_no_sync_ends_the_samples_of_that_model(torch):
    """The ranks train apart, and average their parameters now and then."""
    training = Training(torch)
    assert training.steps()
    training.steps(1, within=training.model.no_sync)

    assert training.notes.read() == ()
    assert training.steps(32) == ()


def test_steps_in_join_and_with_a_communication_hook_are_not_sampled(torch):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    joining, hooked = Training(torch), Training(torch)
    hooked.model.register_comm_hook(None, allreduce_hook)

    assert joining.steps(16, within=joining.model.join) == ()
    assert hooked.steps() == ()


def test_accumulated_gradients_are_averaged_before_the_step(torch):
    training = Training(torch)
    for _ in range(16):
        with training.model.no_sync():
            training.model(torch.ones(1, 4)).sum().backward()
        training.steps(1)

    assert training.notes.read()


def test_no_parameter_model_or_optimizer_is_kept_alive(torch):
    training = Training(torch)
    training.steps()
    notes = training.notes
    held = [ref(one) for one in (training.model, training.optimizer, *training.model.parameters())]
    del training
    gc.collect()

    assert [one() for one in held] == [None] * 6
    notes.count(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0), torch)


def test_the_modes_and_the_random_numbers_of_the_program_see_nothing(torch):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    training = Training(torch)
    training.steps(15)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with Mode():
        training.notes.count(training.optimizer, torch)
    assert (seen, training.notes.read()) == ([], ())
    training.steps(15)
    with torch.inference_mode():
        training.notes.count(training.optimizer, torch)

    assert training.notes.read()[0].taken[-1][0] == 32
    assert torch.equal(torch.get_rng_state(), before)
    assert all(one.grad_fn is None for one in training.model.parameters())


# -- On a GPU: a double of torch


class Event:
    """Done when the test says so."""

    done = False

    def record(self, stream):
        self.stream = stream

    def query(self):
        return self.done


class Value(SimpleNamespace):
    """A parameter or values on a GPU."""

    is_cuda, device = True, "cuda:0"

    def detach(self):
        return self

    def view(self, _shape):
        return [7.0] * 10

    def numel(self):
        return 10


class Host:
    """Pinned memory."""

    values: tuple[float, ...] = ()

    def copy_(self, values, non_blocking):
        assert non_blocking
        self.values = values.given

    def tolist(self):
        return list(self.values)


@pytest.fixture
def gpu(monkeypatch):
    """A series of one parameter on a GPU, and what the double of torch says."""
    monkeypatch.setattr(replicas, "_is_plain", lambda _parameter, _torch: True)
    events = []

    def event():
        events.append(Event())
        return events[-1]

    said = SimpleNamespace(captures=False, events=events)
    cuda = SimpleNamespace(
        is_current_stream_capturing=lambda: said.captures,
        Event=event,
        current_stream=lambda device: f"stream of {device}",
    )
    none = SimpleNamespace(_len_torch_dispatch_stack=int, _len_torch_function_stack=int)
    said.torch = SimpleNamespace(
        cuda=cuda,
        _C=none,
        stack=lambda values: Value(given=tuple(values)),
        empty=lambda *_, **__: Host(),
    )
    said.parameter, said.model, said.optimizer = Value(), Value(), Value()
    said.model.require_backward_grad_sync, said.model._comm_hooks = True, []
    said.model._join_config = SimpleNamespace(enable=False)
    said.notes = ReplicaNotes()
    said.series = replicas._Series(
        ref(said.optimizer),
        ref(said.model),
        replicas.Replica(("0", 0, ("w",))),
        [ref(said.parameter)],
    )
    said.notes._series[id(said.optimizer)] = said.series
    return said


def count(gpu, steps):
    for _ in range(steps):
        gpu.notes.count(gpu.optimizer, gpu.torch)
    return gpu.series.replica.taken


def test_a_value_on_a_gpu_is_read_at_a_later_step_when_it_has_arrived(gpu):
    assert count(gpu, 16 + 40) == ()
    assert len(gpu.events) == 1
    gpu.events[0].done = True

    assert count(gpu, 1) == ((16, (7.0,)),)
    assert gpu.events[0].stream == "stream of cuda:0"
    count(gpu, 7)
    assert len(gpu.events) == 2


def test_nothing_is_asked_of_a_gpu_while_a_graph_is_captured(gpu):
    gpu.captures = True
    count(gpu, 16)
    assert gpu.events == []
    gpu.captures = False
    count(gpu, 16)
    gpu.captures, gpu.events[0].query = True, None

    assert count(gpu, 16) == ()
