"""A rank whose parts run when they are asked to: a wake-up of ddtop's thread, a report, the hooks
of a step, the wrapper of a collective and that of a call of MPI.

`main` runs below valgrind's callgrind, which writes its counts at each call of `getloadavg`.
Importing torch takes a minute there, so torch's objects are doubles that cost next to nothing.
`times` are those of the same parts in this process, over torch itself where it is installed.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import ModuleType, SimpleNamespace
from typing import Any

from ddtop.agent import collector, current
from ddtop.agent.identity import RANK, Identity
from ddtop.agent.mpi import wrappers
from ddtop.agent.probe import TICK_NS
from ddtop.agent.probes.replicas import ReplicaNotes
from ddtop.agent.rank import Rank
from ddtop.agent.report import Reporter
from ddtop.agent.wrap import collectives, optimizer
from ddtop.link.rank_side import RankLink
from ddtop.wire import page

ROUNDS = 20
EVICTED_BYTES = 64 << 20
CACHE_BYTES, COLD_BYTES = 1 << 20, 2 << 20
"""The last cache that callgrind makes up, and what empties it."""
PART_BYTES = page.PAGE_BYTES - page.MPI_AT_BYTES
C10D = "torch.distributed.distributed_c10d"
_STACK = (
    ("/home/one/train.py", "main", "call()"),
    ("/home/one/train.py", "fit", "while True:\n        call()\n        call()"),
    ("site-packages/torch/_tensor.py", "backward", "call()"),
    ("site-packages/torch/autograd/__init__.py", "backward", "call()"),
    ("site-packages/torch/autograd/graph.py", "_engine_run_backward", "stops()\n    goes_on()"),
)
"""What the rank's thread is in: each function calls the next one. `fit` is at another line after
each move.
"""


_Run = Callable[[], object]
_SOME = {"one": [1.5, "two"], "three": SimpleNamespace(four=(5,))}


class Parts:
    """One rank, and what can be called of it. `close` ends its thread and removes its page."""

    def __init__(
        self,
        torch: Any,
        world: Any,
        model: Any,
        optimizer_of_rank: Any,
        tensor: Any,
        calls_once: Callable[[], object],
    ) -> None:
        """Torch, `distributed_c10d._world`, a DDP model and its optimizer, a tensor; or doubles.
        `calls_once` makes a collective."""
        self._folder = tempfile.TemporaryDirectory(prefix="ddb-")
        where = Path(self._folder.name) / "relay"
        self._relay = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._relay.bind(str(where))
        self._relay.listen()
        who = Identity(RANK, "train.py", rank=0, local_rank=0, world_size=2)
        rank = self.rank = Rank(who, "job", "run", where, "env", "gloo")
        rank.joined = True
        current.become(rank)
        truce = collector.Truce()
        truce.begin()
        self.link = RankLink(where, truce.sleep)
        self._heard, _ = self._relay.accept()
        self._heard.setblocking(False)
        self._gate, self._stop = threading.Lock(), threading.Lock()
        self._gate.acquire()
        self._stop.acquire()
        thread = threading.Thread(
            target=_stack(self._stop.release, self._gate.acquire), daemon=True
        )
        thread.start()
        self._stop.acquire()
        rank.main_id = rank.lead_id = thread.ident or 0
        self.reporter: Any = Reporter(rank, self.link)
        self._now = time.monotonic_ns()
        self._made, self.calls_once = 0, calls_once
        self._tensor, self._optimizer = tensor, optimizer_of_rank
        hooks: list[Any] = []
        module: Any = SimpleNamespace(
            torch=torch, register_optimizer_step_post_hook=hooks.append, Optimizer=None
        )
        optimizer.wrap(module)
        self.hook: Callable[..., object] = hooks[0]
        module = SimpleNamespace(torch=torch, _world=world, all_reduce=lambda tensor: None)
        collectives.wrap(module)
        self.all_reduce: Callable[[Any], object] = module.all_reduce
        self._mpi, self._bare_mpi = _mpi_call()
        replicas = rank.notes[ReplicaNotes]
        replicas.add(model, "0")
        self.hook(optimizer_of_rank, (), {})
        # Samples are rare: each 1,024th step of this length.
        replicas._series[id(optimizer_of_rank)].due = 1 << 40

    def moves(self) -> None:
        """What a quarter of a second of training changes. It is subtracted from the rest."""
        self.calls_once()
        self._gate.release()
        self._stop.acquire()
        words = self.rank.page.words
        words[page.ITERATION_AT], words[page.ITERATION_SOURCE_AT] = self._made, 2
        words[page.STEP_AT], self._made = self._now, self._made + 10
        self._now += TICK_NS

    def wakes(self, reports: bool = False) -> None:
        """A wake-up of ddtop's thread, in a rank that moves."""
        self.moves()
        reporter, rank = self.reporter, self.rank
        reporter._report_at, reporter._heard_at = 0 if reports else self._now, self._now
        with rank.tick:
            rank.page.words[page.HEARTBEAT_AT] = self._now
            reporter.tick(self._now, False, rank.take_hello())
        self.link.wait(0.0)

    def reports(self) -> None:
        """A wake-up that reports."""
        self.wakes(True)

    def steps(self) -> None:
        """The hooks of one step of DDP: the one of the optimizer."""
        self.hook(self._optimizer, (), {})

    def reduces(self) -> None:
        """A collective that Python makes, without the collective."""
        self.all_reduce(self._tensor)

    def bare(self) -> None:
        """The same without the wrapper."""
        self.all_reduce.__wrapped__(self._tensor)  # type: ignore[attr-defined]

    def each(self) -> Iterator[tuple[str, _Run, _Run, _Run]]:
        """Name, part, what of it is not ddtop's, and what comes before each."""
        yield "a wake-up of the agent's thread", self.wakes, self.moves, _nothing
        yield "a wake-up that reports", self.reports, self.moves, _nothing
        # Each step has made one call, as it does in a training.
        yield "hooks of a DDP step", self.steps, _nothing, self.calls_once
        yield "a collective made in Python", self.reduces, self.bare, _nothing
        yield "a call of MPI (Allreduce)", self._mpi, self._bare_mpi, _nothing

    def drain(self) -> None:
        """Read what the relay has been sent."""
        try:
            while self._heard.recv(1 << 20):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        """No rank any more."""
        current.become(None)
        self.rank.page.remove()
        self._folder.cleanup()


def _nothing() -> None:
    pass


def _stack(stops: Callable[[], object], goes_on: Callable[[], object]) -> Callable[[], object]:
    """The outermost function of `_STACK`, whose code looks as if it came from those files."""
    call: Any = None
    for file, name, body in reversed(_STACK):
        names: dict[str, Any] = {"call": call, "stops": stops, "goes_on": goes_on}
        exec(compile(f"def {name}():\n    {body}\n", file, "exec"), names)
        call = names[name]
    return call  # type: ignore[no-any-return]


def _mpi_call() -> Any:
    """An Allreduce of all ranks whose MPI does nothing."""
    group = SimpleNamespace(Get_size=lambda: 2, Free=_nothing)
    world, own = (
        SimpleNamespace(Get_group=lambda: group, Get_size=lambda: 2, Get_rank=lambda: 0)
        for _ in range(2)
    )
    translate = SimpleNamespace(Translate_ranks=lambda _own, ranks, _other: ranks)
    mpi = SimpleNamespace(
        COMM_WORLD=world, COMM_SELF=own, COMM_NULL=None, _handleof=id, Group=translate
    )
    lines = wrappers.Lines(mpi, memoryview(bytearray(PART_BYTES)), "openmpi")
    lines.communicators.add_world()
    call: Any = wrappers.collective(lines, "Allreduce", lambda _self, _give, _take: None)
    give, take = [bytearray(8), 1, None], [bytearray(8), 1, None]

    def reduces() -> None:
        call(world, give, take)

    def bare() -> None:
        call.__wrapped__(world, give, take)

    return reduces, bare


# -- Doubles of torch, for callgrind


class _Group:
    """A process group of gloo."""

    number = 0
    group_desc = "undefined"

    def call(self) -> None:
        self.number += 1

    def _get_sequence_number_for_group(self) -> int:
        return self.number

    def name(self) -> str:
        return "gloo"


class _Tensor:
    """Stands for tensors, parameters, modules and optimizers."""

    dtype, layout, device = "float32", "strided", SimpleNamespace(type="cpu")
    requires_grad, parameters_to_ignore = True, ()

    def __init__(self, **held: Any) -> None:
        self.__dict__ |= {"_parameters": {}, "_modules": {}, "require_backward_grad_sync": True}
        self.__dict__ |= {"_join_config": SimpleNamespace(enable=False), "_comm_hooks": (), **held}

    def numel(self) -> int:
        return 16

    def is_contiguous(self) -> bool:
        return True


def doubles() -> tuple[Any, ...]:
    """Torch, its world, a model, its optimizer, a tensor: as much as ddtop reads of them."""
    group = _Group()
    world = SimpleNamespace(
        default_pg=group,
        pg_names={group: "0"},
        pg_group_ranks={group: {0: 0, 1: 1}},
        pg_map={group: ("gloo", None)},
    )
    numbers = '"last_enqueued_collective": "%d", "last_completed_collective": "%d"'
    brief = f'{{"pg_status": {{"0": {{{numbers}}}}}}}'
    native = SimpleNamespace(
        _dump_fr_trace_json=lambda _entries, _active: brief % (group.number, group.number)
    )
    torch: Any = ModuleType("torch")
    torch.__version__, torch.version = "2.13.0", SimpleNamespace(hip=None)
    torch.Tensor, torch.nn = _Tensor, SimpleNamespace(Parameter=_Tensor, Module=_Tensor)
    torch.float32, torch.strided = _Tensor.dtype, _Tensor.layout
    torch.compiler = SimpleNamespace(is_dynamo_compiling=lambda: False)
    torch._C = SimpleNamespace(
        _len_torch_function_stack=int, _len_torch_dispatch_stack=int, _distributed_c10d=native
    )
    sys.modules |= {"torch": torch, "torch._C": torch._C, C10D: SimpleNamespace(_world=world)}
    weight = _Tensor()
    model = _Tensor(_modules={"module": _Tensor(_parameters={"weight": weight})})
    optimizer_of_rank = _Tensor(param_groups=[{"params": [weight]}])
    return torch, world, model, optimizer_of_rank, _Tensor(), group.call


# -- Times, over torch itself


def of_torch() -> tuple[Any, ...]:
    """The same as `doubles`, of a rank that is alone in its group of gloo."""
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
    own = torch.optim.SGD(model.parameters(), lr=0.01)
    tensor = torch.zeros(4)
    return torch, distributed_c10d._world, model, own, tensor, lambda: dist.all_reduce(tensor)


def times(rounds: int) -> Iterator[tuple[str, float, float]]:
    """Name of each part, and its CPU time in us: cold, warm. Medians of the differences."""
    objects = doubles() if find_spec("torch") is None else of_torch()
    parts, walked = Parts(*objects), bytearray(EVICTED_BYTES)
    for name, part, other, before in parts.each():
        cold: tuple[list[int], list[int]] = ([], [])
        warm: tuple[list[int], list[int]] = ([], [])
        # Not in turns: then there would be more calls before some steps than before others.
        for run, colds, warms in zip((part, other), cold, warm, strict=True):
            for _ in range(rounds):
                parts.drain()
                for found in (colds, warms):
                    before()
                    # Reads each line of it, and of what is in the caches leaves nothing.
                    walked.find(1 if found is colds else 0)
                    began = time.thread_time_ns()
                    run()
                    found.append(time.thread_time_ns() - began)
        yield name, *(median(one) / 1e3 - median(two) / 1e3 for one, two in (cold, warm))
    parts.close()


def main() -> None:
    """Run each part `ROUNDS` times, then twice as often, between two calls of `getloadavg`."""
    parts = Parts(*doubles())
    print(json.dumps([name for name, *_ in parts.each()]))
    walked = bytearray(COLD_BYTES)

    def cold() -> None:
        """What is called in the program comes from Python code, so the interpreter is not cold."""
        walked.find(1)
        deepcopy(_SOME)

    for _, part, other, before in parts.each():
        for evicts in (_nothing, cold):
            for run in (part, other):
                for times in (4 * ROUNDS, ROUNDS, 2 * ROUNDS):
                    gc.collect()
                    parts.drain()
                    os.getloadavg()
                    for _ in range(times):
                        before()
                        evicts()
                        run()
                    os.getloadavg()
    parts.close()


if __name__ == "__main__":
    main()
