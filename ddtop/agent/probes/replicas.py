"""Values of a few parameters that DistributedDataParallel keeps equal on all ranks, right after
optimizer steps.

Source: one element of each of a few parameters, read by the thread that trains, after every 16th
step of an optimizer, or after every 32nd, 64th, ... if steps are short. Caveat: only plain float32
parameters; a step that torch.compile or a CUDA graph runs is not counted. Check: print
`next(model.parameters()).sum()` on two ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import Any
from weakref import ref

from ddtop.agent.plain import held_by, is_a
from ddtop.wire.records import Replica

EVERY_STEPS, RAREST_STEPS, APART_NS = 16, 1024, 1_000_000_000
"""A sample takes 40 to 200 us. Samples become rarer, by powers of two, until they are `APART_NS`
apart. Ranks of different speeds still have steps in common.
"""
PARAMETERS = 4
STEPS_KEPT = 256 * EVERY_STEPS
"""Reports of two ranks are a second or two apart: that many steps of a small model."""
PLACE = 0.618
"""Which element of a parameter is read. The first and the middle one are often padding."""


class ReplicaNotes:
    """What was sampled of the models that DistributedDataParallel has wrapped.

    `models`: each with the name of its group.
    """

    __slots__ = ("_last", "_series", "models")

    def __init__(self) -> None:
        self.models: list[tuple[ref[Any], str]] = []
        self._series: dict[int, _Series] = {}
        self._last = _UNUSED

    def add(self, model: Any, group: str) -> None:
        """A model was wrapped. All ranks of the group do that at the same time, so they count the
        steps from here on.
        """
        self.models.append((ref(model), group))
        self._series, self._last = {}, _UNUSED

    def count(self, optimizer: Any, torch: Any) -> None:
        """The optimizer has made a step, on this thread. Nothing waits for a GPU.

        One function that touches little, because after a long step nothing of it is in the caches
        of the CPU.
        """
        series = self._last
        if series.optimizer() is not optimizer:
            found = self._series.get(id(optimizer))
            if found is None or found.optimizer() is not optimizer:
                if is_watched(torch):
                    return
                found = self._series[id(optimizer)] = self._find(optimizer, torch)
            series = self._last = found
        model = series.model()
        if model is not None and series.held_by(model)["require_backward_grad_sync"]:
            steps = series.steps = series.steps + 1
            if steps < series.due or series.look(model, steps, torch):
                return
        if series.model is not _nothing:
            # The ranks train apart on purpose, for a while at least.
            series.model, series.replica = _nothing, _NOTHING

    def _find(self, optimizer: Any, torch: Any) -> _Series:
        groups = held_by(optimizer).get("param_groups") or ()
        own = {id(each) for group in groups for each in group["params"]}
        living = {key: one for key, one in self._series.items() if one.optimizer() is not None}
        self._series = living
        for number, (reference, group) in reversed(list(enumerate(self.models))):
            model = reference()
            fit = {
                name: each
                for name, each in (parameters_of(model, torch) if model is not None else ())
                if name not in model.parameters_to_ignore
                and _is_plain(each, torch)
                # A model may be spread over several GPUs.
                and each.device == model.device
            }
            # The optimizer of one rank may lack some parameters: all ranks must choose the same.
            if own.isdisjoint(map(id, fit.values())):
                continue
            other = next((one for one in living.values() if one.model is reference), None)
            if other is not None:
                inner = other.optimizer()
                if not any(each is inner for each in held_by(optimizer).values()):
                    # One of its optimizers is enough.
                    break
                # ZeRO's optimizer calls the other one, and then broadcasts the parameters.
                other.model, other.replica = _nothing, _NOTHING
            # Spread over the model.
            names = list(fit)[:: -(-len(fit) // PARAMETERS)]
            return _Series(
                ref(optimizer),
                reference,
                Replica((group, number, tuple(names))),
                [ref(fit[name]) for name in names],
                vars(torch.nn.Module)["__dict__"].__get__,
            )
        return _Series(ref(optimizer), _nothing, _NOTHING, [])

    def read(self) -> tuple[Replica, ...]:
        """What is known now. Runs on the agent's thread."""
        return tuple(
            series.replica for series in list(self._series.values()) if series.replica.taken
        )


def _nothing() -> None:
    """In place of the reference to a model that is not sampled."""


_NOTHING = Replica(("", 0, ()))


def is_watched(torch: Any) -> bool:
    """Whether a mode of the program sees what this thread asks of a tensor."""
    return bool(torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


def may_be_asked(tensor: Any, torch: Any) -> bool:
    """Whether it is a tensor of torch, and no code of the program sees what is asked of it."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and not is_watched(torch)


def parameters_of(model: Any, torch: Any) -> Iterator[tuple[str, Any]]:
    """What `model.module.named_parameters()` gives, which the program may have written anew."""
    waiting = [("", held_by(model).get("_modules", {}).get("module"))]
    seen: set[int] = set()
    while waiting:
        prefix, module = waiting.pop()
        if id(module) in seen or not is_a(module, torch.nn.Module):
            continue
        seen.add(id(module))
        held = held_by(module)
        for name, parameter in held["_parameters"].items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield prefix + name, parameter
        waiting += reversed([(f"{prefix}{name}.", one) for name, one in held["_modules"].items()])


def _is_plain(parameter: Any, torch: Any) -> bool:
    """Whether every rank has all of it, and it can be read without a copy.

    A last bit that two kinds of GPU round differently is small only in float32.
    """
    return (
        type(parameter) is torch.nn.Parameter
        and parameter.dtype is torch.float32
        and parameter.layout is torch.strided
        and parameter.device.type in ("cpu", "cuda")
        and parameter.requires_grad
        and parameter.numel() > 0
        and parameter.is_contiguous()
    )


class _Series:
    """The samples of what one optimizer trains of one model: `replica`.

    `steps`: how many it has made; every `every`th is sampled, `due` is the next one to be looked
    at. `held_by`: as that of `plain`. `on_its_way`: the step, values and event of a sample that the
    GPU has not yet taken.
    """

    __slots__ = (
        *("_join", "_parameters", "_sampled_ns", "due", "every", "held_by", "model", "on_its_way"),
        *("optimizer", "replica", "steps"),
    )

    def __init__(
        self,
        optimizer: Callable[[], Any],
        model: Callable[[], Any],
        replica: Replica,
        parameters: list[ref[Any]],
        held: Callable[[Any], dict[str, Any]] = held_by,
    ) -> None:
        self.optimizer, self.model, self.replica = optimizer, model, replica
        self._parameters, self.held_by, self.steps = parameters, held, 0
        self.every, self.due, self._sampled_ns = EVERY_STEPS, 1, 0
        self._join: Any = None
        self.on_its_way: tuple[int, Any, Any] | None = None

    def look(self, model: Any, steps: int, torch: Any) -> bool:
        """Take the sample of this step, or the one that is on its way. False if the ranks train
        apart."""
        held = self.held_by(model)
        # Each rank has the same gradients now: not in `join`, which makes a new configuration, nor
        # with a hook of the program, as those that average parameters now and then have.
        join, self._join = self._join, held["_join_config"]
        if (
            (join is not None and join is not self._join)
            or self._join.enable
            or held.get("_comm_hooks", True)
        ):
            return False
        if self.on_its_way is not None:
            # To ask would break the capture of a CUDA graph.
            if not torch.cuda.is_current_stream_capturing() and self.on_its_way[2].query():
                self._keep(*self.on_its_way)
        elif steps % self.every == 0:
            self._sample(torch)
            self._choose_pace(monotonic_ns())
        self.due = steps + (1 if self.on_its_way is not None else self.every - steps % self.every)
        return True

    def _choose_pace(self, now_ns: int) -> None:
        apart_ns, self._sampled_ns = now_ns - self._sampled_ns, now_ns
        if apart_ns < APART_NS:
            self.every = min(2 * self.every, RAREST_STEPS)
        elif apart_ns > 4 * APART_NS:
            self.every = max(self.every // 2, EVERY_STEPS)

    def _sample(self, torch: Any) -> None:
        parameters: list[Any] = [reference() for reference in self._parameters]
        if (
            is_watched(torch)
            or not all(each is not None and _is_plain(each, torch) for each in parameters)
            # A CUDA graph would repeat what follows.
            or (parameters[0].is_cuda and torch.cuda.is_current_stream_capturing())
        ):
            return
        values = torch.stack(
            [each.detach().view(-1)[int(PLACE * each.numel())] for each in parameters]
        )
        if not values.is_cuda:
            self._keep(self.steps, values)
            return
        # On the program's own stream: the next step cannot change them before they are read.
        host = torch.empty(len(parameters), device="cpu", pin_memory=True)
        host.copy_(values, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(values.device))
        self.on_its_way = self.steps, host, event

    def _keep(self, step: int, values: Any, _event: Any = None) -> None:
        """Of older samples, only those at multiples of higher powers of two remain: two ranks have
        some in common, however far apart they are.
        """
        kept = [
            known
            for known in self.replica.taken
            if step - known[0] < min(2 * (known[0] & -known[0]), STEPS_KEPT)
        ]
        taken = (*kept, (step, tuple(values.tolist())))
        self.replica, self.on_its_way = Replica(self.replica.key, taken), None


_UNUSED = _Series(_nothing, _nothing, _NOTHING, [])
"""That of no optimizer."""
