"""`python -m zoo.random_calls --programs 3000`: what `calls-differ` says of random programs.

Half of them are healthy, though each rank draws for itself which lines it calls from: each branch
makes equally many calls, and loops are padded. In the others all ranks take the same lines, but
rank 1 makes calls too many or leaves some out, once or always. They run on the real note-taking and
the real comparison, without torch. What counts: which rank is named, and in which direction.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from ddtop.agent.probes.calls import CallNotes
from ddtop.model.call_order import compare
from ddtop.model.facts import Parting
from ddtop.wire.records import Group, Turn
from tools.benchmarks import table

RANKS, ODD = 3, 1
"""Ranks of a program, and the one that is at fault."""
DEEPEST, CALLS_MAX, CALLS_AFTER = 3, 4000, 30
"""Blocks in blocks; calls of a rank, so that a run ends soon; calls after the fault."""
FAULTS = ("one call more", "some calls more", "the same again", "left out")
Block = list[str]


def _indented(block: Block) -> Block:
    return [f"    {line}" for line in block]


@dataclass
class Writer:
    """Writes one program. `draws`: its ranks draw branches for themselves."""

    random: Random
    draws: bool
    functions: list[Block] = field(default_factory=list)

    def program(self) -> Block:
        """All of its lines; `main` is the first function that runs."""
        steps = self._steps()
        if self.random.random() < 0.5:
            steps = [f"for _ in range({self.random.randint(3, 12)}):", *_indented(steps)]
            steps += ["call()"] * self.random.choice((0, 0, 1, 2))
        main = [f"for _ in range({self.random.choice((8, 20, 60))}):", *_indented(steps)]
        blocks = {f"function_{number}": block for number, block in enumerate(self.functions)}
        blocks["main"] = main
        return [line for name, block in blocks.items() for line in _function(name, block)]

    def _steps(self) -> Block:
        if self.draws and self.random.random() < 0.3:
            count = self.random.randint(1, 3)
            early = [*self._block(count, 1), "continue"]
            return ["if own(0.1):", *_indented(early), *self._block(count, 1)]
        return self._block(self.random.randint(1, 4), 0, shared=True)

    def _block(self, calls: int, depth: int, shared: bool = False) -> Block:
        """As many calls on each rank; where it is `shared`, also parts with calls of any number."""
        lines: Block = []
        while calls > 0:
            count = self.random.randint(1, min(calls, 3))
            made, part = self._part(count, depth + 1, shared)
            calls, lines = calls - made, lines + part
        return lines

    def _part(self, count: int, depth: int, shared: bool) -> tuple[int, Block]:
        kinds: list[Callable[[int, int], Block]] = [self._loop]
        if self.draws:
            kinds += [self._branch, self._other_function, self._padded]
        choice = self.random.random()
        if depth > DEEPEST or choice < 0.35:
            return 1, ["call()"]
        if choice < 0.5:
            return count, [f"{self._named(self._block(count, depth, shared))}()"]
        if choice < 0.7 and shared:
            more = _indented(self._block(self.random.randint(1, 3), depth, shared))
            head = self.random.choice(("if all_ranks(0.1):", "for _ in range(4):"))
            return 0, [head, *more]
        return count, self.random.choice(kinds)(count, depth)

    def _loop(self, count: int, depth: int) -> Block:
        return [f"for _ in range({count}):", *_indented(self._block(1, depth))]

    def _branch(self, count: int, depth: int) -> Block:
        one, other = (_indented(self._block(count, depth)) for _ in range(2))
        return [f"if own({self.random.choice((0.1, 0.3, 0.5))}):", *one, "else:", *other]

    def _other_function(self, count: int, depth: int) -> Block:
        one, other = (self._named(self._block(count, depth)) for _ in range(2))
        return [f"({one} if own(0.3) else {other})()"]

    def _padded(self, count: int, depth: int) -> Block:
        some, pads = (_indented(self._block(1, depth)) for _ in range(2))
        return [
            *(f"some_{depth} = up_to({count})", f"for _ in range(some_{depth}):", *some),
            *(f"for _ in range({count} - some_{depth}):", *pads),
        ]

    def _named(self, block: Block) -> str:
        self.functions.append(block)
        return f"function_{len(self.functions) - 1}"


def _function(name: str, block: Block) -> Block:
    return [f"def {name}():", *_indented(block)]


def with_fault(program: Block, fault: str, random: Random) -> Block:
    """The program, with a call that rank 1 makes too often or leaves out."""
    places = [at for at, line in enumerate(program) if line.endswith("()") and "own(" not in line]
    at = random.choice(places)
    line = program[at]
    indent = line[: -len(line.lstrip())]
    more = {"one call more": "call()", "some calls more": "evaluate()"}.get(fault, line.lstrip())
    faulty = [line, f"{indent}if at_fault():", f"{indent}    {more}"]
    if fault == "left out":
        faulty = [f"{indent}if not at_fault():", f"    {line}"]
    evaluate = _function("evaluate", ["call()"] * random.randint(2, 4))
    return [*evaluate, *program[:at], *faulty, *program[at + 1 :]]


@dataclass
class Ran:
    """What a rank has done. `fault_at`: how many calls it had made before the fault."""

    turns: tuple[Turn, ...] = ()
    calls: int = 0
    fault_at: int | None = None


def run(program: Block, seed: int, rank: int) -> Ran:
    """One rank of the program, to its end or to its last call."""
    notes, ran, seen = CallNotes(), Ran(), 0
    order = notes.of("0", lambda: ran.calls + 1)
    shared, own = Random(seed), Random(f"{seed} {rank}")
    faults = Random(f"{seed} fault")
    once, begins = faults.random() < 0.5, faults.randint(8, 14)

    def call() -> None:
        if ran.calls == CALLS_MAX:
            raise StopIteration
        notes.note(order, "all_reduce", sys._getframe(1))
        ran.calls += 1

    def at_fault() -> bool:
        nonlocal seen
        seen += 1
        odd = rank == ODD and (seen == begins or (seen > begins and not once))
        if odd and ran.fault_at is None:
            ran.fault_at = ran.calls
        return odd

    scope = {
        "call": call,
        "at_fault": at_fault,
        "own": lambda share: own.random() < share,
        "all_ranks": lambda share: shared.random() < share,
        "up_to": lambda count: own.randint(0, count),
    }
    exec(compile("\n".join(program), "/w/program.py", "exec"), scope)
    main: Callable[[], None] = scope["main"]  # type: ignore[assignment]
    with contextlib.suppress(StopIteration):
        main()
    ran.turns = notes.turns()
    return ran


def partings(ranks: list[Ran]) -> list[Parting]:
    """What the model finds."""
    group = Group("0", "", tuple(range(RANKS)), "gloo")
    turns = {rank: ran.turns for rank, ran in enumerate(ranks)}
    return [found.parting for found in compare(turns, frozenset({"0"}), (group,))]


def healthy(seeds: range) -> Iterator[tuple[int, Block, list[Parting]]]:
    """Healthy programs, and what is said of them."""
    for seed in seeds:
        program = Writer(Random(seed), draws=True).program()
        ranks = [run(program, seed, rank) for rank in range(RANKS)]
        assert len({ran.calls for ran in ranks}) == 1, "it is not healthy"
        yield seed, program, partings(ranks)


def faulty(seeds: range) -> Iterator[tuple[int, str, str]]:
    """(seed, fault, what it got) of programs in which the fault makes a difference."""
    for seed in seeds:
        random = Random(seed)
        fault = random.choice(FAULTS)
        program = with_fault(Writer(random, draws=False).program(), fault, random)
        ranks = [run(program, seed, rank) for rank in range(RANKS)]
        odd = ranks[ODD]
        if odd.fault_at is None or odd.calls - odd.fault_at < CALLS_AFTER:
            continue
        found = partings(ranks)
        right = found and found[0].ranks == (ODD,)
        sign = found and (found[0].more < 0) == (fault == "left out")
        yield seed, fault, "missed" if not found else "right" if right and sign else "wrong"


def main() -> int:
    """Run as many programs, and print the table. 1 if one healthy program in 100 is accused."""
    parser = argparse.ArgumentParser(prog="python -m zoo.random_calls", description=__doc__)
    parser.add_argument("--programs", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    first = options.seed * 1_000_000
    seeds = range(first, first + options.programs // 2)
    accused = [f"{seed}: {found[0]}" for seed, _, found in healthy(seeds) if found]
    got = Counter((fault, what) for _, fault, what in faulty(seeds))
    share = 100 * len(accused) / max(len(seeds), 1)
    rows = [
        table.Row("healthy programs", str(len(seeds))),
        table.limited("healthy programs that are accused", share, 1, "%", "\n".join(accused), 2),
    ]
    for fault in FAULTS:
        counts = [got[fault, what] for what in ("right", "missed", "wrong")]
        rows.append(table.Row(fault, "{} right, {} missed, {} wrong".format(*counts)))
    print(table.machine())
    print(table.shown(rows))
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
