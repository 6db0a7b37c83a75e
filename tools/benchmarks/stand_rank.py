"""A training that stops now and then on one rank: `stand_rank.py FIRST COUNT SEED SHAPES`, one
process a rank.

Stand number n happens in the n-th window of WINDOW iterations, on a rank, at a place and in a way
that follow from SEED and n, so that all ranks know the plan without a word. SIGUSR1 ends it. The
standing rank prints a JSON line as it begins, with what torch's recorder says at that moment.
SHAPES, comma separated, take turns.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any

WINDOW, EARLIEST = 24, 6
"""Iterations in which a stand happens, and before which it does not."""
WAYS = ("sleep", "pipe", "lock", "child")
SHAPES = ("buckets", "unused", "static", "fsdp2", "objects", "threads", "groups", "accumulates")
IN_FORWARD, IN_BACKWARD, AFTER_STEP = "forward", "backward", "step"


class GoOn(Exception):  # noqa: N818 - an order, not an error
    """The harness wants the stand to end."""


def plan(number: int, seed: int, shapes: list[str], world_size: int) -> dict[str, Any]:
    """Which rank stands where and how. The result is the same on all ranks and in the harness."""
    draw = random.Random(seed * 1_000_003 + number)
    shape = shapes[number % len(shapes)]
    places = (AFTER_STEP, AFTER_STEP, IN_FORWARD) + (
        (IN_BACKWARD,) if shape in ("buckets", "unused") else ()
    )
    return {
        "number": number,
        "shape": shape,
        "rank": draw.randrange(world_size),
        "way": draw.choice(WAYS),
        "place": draw.choice(places),
        "seeks_lag": draw.random() < 0.7,
    }


def lag() -> bool:
    """Whether the recorder has an open collective."""
    from torch._C._distributed_c10d import _dump_fr_trace_json

    found = json.loads(_dump_fr_trace_json(False, False)).get("pg_status", {})
    return any(
        int(one["last_enqueued_collective"]) != int(one["last_completed_collective"])
        for one in found.values()
    )


def stand(way: str) -> None:
    """Do nothing until the signal comes."""
    if way == "sleep":
        time.sleep(3600)
    elif way == "pipe":
        reader, _ = os.pipe()
        os.read(reader, 1)
    elif way == "lock":
        threading.Event().wait(3600)
    else:
        with subprocess.Popen(["sleep", "600"]) as child:
            try:
                child.wait()
            except GoOn:
                child.kill()
                raise


class Course:
    """Which stand is due in this rank, and whether it is due now."""

    def __init__(
        self, first: int, count: int, seed: int, shapes: list[str], rank: int, world_size: int
    ) -> None:
        self.plans = [
            plan(number, seed, shapes, world_size) for number in range(first, first + count)
        ]
        self.rank, self.at, self.stood, self.open = rank, -1, -1, False

    def begins(self, iteration: int) -> dict[str, Any]:
        """The plan of this window."""
        self.at = iteration % WINDOW
        self.window = iteration // WINDOW
        return self.plans[self.window]

    def here(self, place: str) -> None:
        """The training is at this place. Stand here if that is planned."""
        due = self.plans[self.window]
        if (
            due["rank"] != self.rank
            or due["place"] != place
            or self.stood == self.window
            or self.at < EARLIEST
        ):
            return
        lags = False
        if place == AFTER_STEP:
            # The recorder may note the last completion a moment later.
            time.sleep(0.02)
            lags = lag()
        if due["seeks_lag"] and place == AFTER_STEP and not lags and self.at < WINDOW - 1:
            return
        self.stood = self.window
        line = {"stand": due["number"], "unix_ns": time.time_ns(), "pid": os.getpid(), "lags": lags}
        try:
            print(json.dumps(line), flush=True)
            stand(due["way"])
        except GoOn:
            return
        # The wait ended without the signal. That must not happen, and after this line the harness
        # sends none.
        print(json.dumps({"returned": due["number"]}), flush=True)


class Layers:
    """Makes models that pass `course` in their forward, and in the backward of a layer in the
    middle.
    """

    def __init__(self, course: Course) -> None:
        import torch
        from torch import nn

        self.torch, self.course = torch, course

        class Stack(nn.Module):
            def __init__(self, width: int, depth: int, skips: bool = False) -> None:
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
                self.skips, self.turn = skips, 0

            def forward(self, x: Any) -> Any:
                self.turn += 1
                course.here(IN_FORWARD)
                for number, layer in enumerate(self.layers):
                    if self.skips and (number + self.turn) % 3 == 0:
                        continue
                    x = layer(x).relu()
                    if number == len(self.layers) // 2 and x.requires_grad:
                        x.register_hook(lambda grad: course.here(IN_BACKWARD))
                return x

        self.stack = Stack


def steps_of(
    shape: str, course: Course, pool: ThreadPoolExecutor, rank: int
) -> Callable[[int], None]:
    """One iteration of this shape, as a callable."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    stack = Layers(course).stack
    if shape == "objects":
        return _objects(course, torch, dist, rank)
    if shape == "groups":
        return _groups(course, torch, dist)
    if shape == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model: Any = stack(192, 5)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        width = 192
    else:
        width = 384
        settings: dict[str, Any] = {"bucket_cap_mb": 1}
        if shape == "unused":
            settings["find_unused_parameters"] = True
        if shape == "static":
            settings["static_graph"] = True
        model = DistributedDataParallel(stack(width, 10, shape == "unused"), **settings)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    waits: list[Any] = []

    def step(iteration: int) -> None:
        quiet = shape == "accumulates" and iteration % 4 != 3
        with model.no_sync() if quiet else nullcontext():
            model(torch.randn(4, width)).sum().backward()
        if not quiet:
            optimizer.step()
            optimizer.zero_grad()
        if shape == "threads":
            for done in waits:
                done.result()
            work = dist.all_reduce(torch.ones(16), async_op=True)
            waits[:] = [pool.submit(work.wait)]
        course.here(AFTER_STEP)

    return step


def _objects(course: Course, torch: Any, dist: Any, rank: int) -> Callable[[int], None]:
    def step(iteration: int) -> None:
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, {"rank": rank, "loss": iteration})
        course.here(IN_FORWARD)
        dist.broadcast_object_list([{"at": iteration}], src=iteration % dist.get_world_size())
        dist.all_reduce(torch.ones(8))
        time.sleep(0.01)
        course.here(AFTER_STEP)

    return step


def _groups(course: Course, torch: Any, dist: Any) -> Callable[[int], None]:
    groups = [dist.new_group(list(range(dist.get_world_size()))) for _ in range(8)]

    def step(iteration: int) -> None:
        works = [
            dist.broadcast(torch.ones(10 + 1000 * (turn % 2)), src=0, group=group, async_op=True)
            for group in groups
            for turn in range(4)
        ]
        course.here(IN_FORWARD)
        for work in works:
            work.wait()
        time.sleep(0.01)
        course.here(AFTER_STEP)

    return step


def main() -> None:
    """Run all windows, then end."""
    first, count, seed, shapes = (
        int(sys.argv[1]),
        int(sys.argv[2]),
        int(sys.argv[3]),
        sys.argv[4].split(","),
    )

    def go_on(*_: object) -> None:
        raise GoOn

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    course = Course(first, count, seed, shapes, rank, dist.get_world_size())
    signal.signal(signal.SIGUSR1, go_on)
    pool = ThreadPoolExecutor(2)
    course.begins(0)
    steps = {shape: steps_of(shape, course, pool, rank) for shape in dict.fromkeys(shapes)}
    for iteration in range(count * WINDOW):
        with suppress(GoOn):
            steps[course.begins(iteration)["shape"]](iteration)
    dist.barrier()
    pool.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
