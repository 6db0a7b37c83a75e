"""The parts about jobs: ddtop's findings about trainings on a GPU, healthy and not, and what
watching costs a step.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import time
from typing import Any

from ddtop.relay.gpus.nvml import Nvml, library
from ddtop.relay.gpus.ras import ADDRESS, ask
from tools.gpu.stage import GIB, claim, job, program, say, see, skip, smi_cards, smi_processes, told


def untouched() -> None:
    """Watched ranks that never use a GPU: the agent does not initialise CUDA, opens no device, and
    takes no GPU memory.
    """
    before = smi_cards(["memory.used"])[0].get("memory.used")
    with job("gpu-untouched", 2, "untouched.py", 12) as one:
        one.until_says("TRAINS", 40)
        time.sleep(5)
        ranks = one.ranks()
        pids = [rank.get("pid") for rank in ranks]
        listed = smi_processes()
        during = smi_cards(["memory.used"])[0].get("memory.used")
        lines = [line.strip() for line in one.output(30).splitlines() if "CUDA" in line]
    claim(
        "both are watched",
        len(ranks) == 2,
        f"pids {pids}, GPU {[rank.get('gpu') for rank in ranks]}",
    )
    with job("gpu-control", 2, "untouched.py", 4, watched=False) as one:
        control = [line.strip() for line in one.output(40).splitlines() if "CUDA" in line]
    claim(
        "CUDA stays down in them, and no device is open that torch does not open by itself",
        len(lines) == 2
        and all(line.startswith("CUDA False") for line in lines)
        and {_devices(line) for line in lines} <= {_devices(line) for line in control},
        f"watched {lines}, not watched {control}",
    )
    claim(
        "they are not on the card",
        not set(pids) & set(listed),
        f"{listed}; memory of the card {before} MiB before, {during} MiB with them",
    )


def _devices(line: str) -> frozenset[str]:
    return frozenset(re.findall(r"/dev/nvidia[\w-]*", line))


def samples() -> None:
    """The samples of a model's parameters that `diverged` compares, on a stream of the program that
    is far behind its host, and beside the capture of a CUDA graph.
    """
    weights = {}
    for watched in (False, True):
        with job("gpu-samples", 1, "samples.py", watched=watched) as one:
            lines = one.output(40).splitlines()
        told = {line.split()[0]: line for line in lines if line.startswith(("WEIGHTS", "SAMPLES"))}
        weights[watched] = told.get("WEIGHTS", " ".join(lines)[-300:])
        if watched:
            words = told.get("SAMPLES", "SAMPLES 0 0 0").split()
            claim(
                "each sample is the value right after its step",
                int(words[1]) > 5 and words[1] == words[2],
                f"{words[2]} of {words[1]}",
            )
            see("a sample", f"{words[3]} us")
    claim(
        "the same weights, bit by bit, as without ddtop, also after replays of a captured graph",
        weights[True].startswith("WEIGHTS") and weights[True] == weights[False],
        weights,
    )


def training() -> None:
    """A healthy training under NCCL with one rank: its numbers beside nvidia-smi's, the status
    service, no finding.
    """
    with job("gpu-train", 1, "train.py", "nccl", 25, "local", 2) as one:
        one.until_says("TRAINS", 50)
        time.sleep(8)
        rank: dict[str, Any] = next(iter(one.ranks()), {})
        told_by_smi = smi_cards(
            ["uuid", "utilization.gpu", "memory.used", "clocks.current.sm", "power.draw"]
        )[0]
        gpu = rank.get("gpu") or {}
        say(gpu)
        say(told_by_smi)
        claim(
            "status has the rank's card, by torch's word",
            gpu.get("known_by") == "torch" and gpu.get("uuid") == told_by_smi.get("uuid"),
            gpu.get("known_by"),
        )
        used, theirs = (gpu.get("used_bytes") or 0) / 2**20, _number(told_by_smi.get("memory.used"))
        claim(
            "memory of the card as in nvidia-smi",
            abs(used - theirs) <= max(64, 0.03 * theirs),
            f"{used:.0f} and {theirs:.0f} MiB",
        )
        util, theirs = (
            (gpu.get("util_ratio") or 0) * 100,
            _number(told_by_smi.get("utilization.gpu")),
        )
        claim(
            "utilisation as in nvidia-smi",
            abs(util - theirs) <= 15,
            f"{util:.0f} and {theirs:.0f} %",
        )
        allocated, reserved = gpu.get("allocated_bytes") or 0, gpu.get("reserved_bytes") or 0
        claim(
            "allocated (2 GiB held) <= reserved <= used",
            2 * GIB <= allocated <= reserved <= (gpu.get("used_bytes") or 0),
            f"{allocated}, {reserved}",
        )
        see(
            "the NCCL word of the rank",
            f"{rank.get('nccl')!r}, state {rank.get('state')!r}, iteration {rank.get('iteration')}",
        )
        _ras(rank.get("pid"))
        for line in one.command("status", "gpu-train").stdout.splitlines()[:6]:
            say(line)
        found = one.ddtop("diagnose", "gpu-train", "--for", "5")
        claim(
            "a healthy training is silent",
            found.get("findings") == [],
            [told(finding) for finding in found.get("findings", [found])],
        )
        say(*[line for line in one.output(40).splitlines() if "STEP_MS" in line])


def _number(text: str | None) -> float:
    return float(text) if text is not None and re.fullmatch(r"[\d.]+", text) else 0.0


def _ras(pid: int | None) -> None:
    took = []
    for _ in range(3):
        began = time.monotonic()
        answer = ask(ADDRESS)
        took.append((time.monotonic() - began) * 1000)
    pids = [rank.pid for communicator in answer.communicators for rank in communicator.ranks]
    claim(
        "NCCL's status service answers",
        answer.why is None and bool(answer.communicators),
        f"{'/'.join(f'{one:.0f}' for one in took)} ms, NCCL {answer.nccl}, text {answer.text}, {answer.why}",  # noqa: E501
    )
    if answer.communicators and not answer.text:
        claim("and has our rank", pid in pids, f"{pids}, rank's pid {pid}")
    say(answer)


def waits() -> None:
    """A collective of NCCL that waits behind a kernel that spins. On one GPU a single rank can show
    no more than that.
    """
    with job("gpu-waits", 1, "waits.py", 22) as one:
        if not one.until_says("STANDS", 45):
            claim("the program came to its wait", False, one.output(1)[-300:])
            return
        time.sleep(9)
        rank: dict[str, Any] = next(iter(one.ranks()), {})
        stands = rank.get("collective")
        claim(
            "the all_reduce of NCCL that stands is seen",
            stands is not None,
            f"state {rank.get('state')!r}, {stands}",
        )
        say({key: rank.get(key) for key in ("phase", "nccl", "place", "gpu")})
        see("findings meanwhile", [told(finding) for finding in one.findings()])


def busy() -> None:
    """A second process fills the GPU: gpu-busy with its pid."""
    total = (Nvml(library()).sample()[0].total_bytes or 0) / GIB
    with program("hold.py", total * 0.5) as (pid, line):
        say("holder", pid, line)
        listed = smi_processes()
        with job("gpu-busy", 1, "train.py", "gloo", 60, "0", 0) as one:
            found, seconds = one.until(("gpu-busy",), 45)
        if found is None and not listed:
            skip("gpu-busy", "the driver lists no processes here, nvidia-smi neither")
        else:
            claim(
                "gpu-busy, with the holder's pid",
                found is not None and str(pid) in str(found),
                f"{told(found)}; after {seconds:.0f} s; listed {listed}, its pid here {pid}",
            )


def memory() -> None:
    """An allocation that fails."""
    with job("gpu-oom", 1, "too_much.py") as one:
        one.output(40)
        time.sleep(1)
        found = one.findings()
        right = [
            one
            for one in found
            if one["kind"] in ("gpu-unavailable", "rank-crashed") and "memory" in str(one).lower()
        ]
        claim(
            "a failed allocation is named",
            bool(right),
            told(right[0]) if right else [told(one) for one in found],
        )


def shared() -> None:
    """Two ranks on one GPU with gloo: gpu-shared; then one of them is stopped."""
    with job("gpu-shared", 2, "train.py", "gloo", 80, "0", 0) as one:
        found, seconds = one.until(("gpu-shared",), 40)
        claim(
            "gpu-shared, with both ranks",
            found is not None and sorted(found["ranks"]) == [0, 1],
            f"{told(found)}; after {seconds:.0f} s",
        )
        pids = {rank["rank"]: rank["pid"] for rank in one.ranks()}
        if 1 not in pids:
            claim("both ranks are seen", False, pids)
            return
        os.kill(pids[1], signal.SIGSTOP)
        try:
            found, seconds = one.until(
                ("rank-stopped", "not-in-collective", "rank-frozen", "interpreter-frozen"), 20
            )
        finally:
            os.kill(pids[1], signal.SIGCONT)
        claim(
            "a rank that is stopped on a card is named",
            found is not None and found["ranks"] == [1],
            f"{told(found)}; after {seconds:.0f} s",
        )


def twice() -> None:
    """Two ranks on one GPU with NCCL: refused, and named."""
    with job("gpu-twice", 2, "train.py", "nccl", 20, "0", 0) as one:
        text = one.output(40)
        time.sleep(1)
        found = one.findings()
    refused = re.search(r"Duplicate GPU[^\n]*", text)
    claim(
        "NCCL refuses",
        refused is not None,
        refused.group()[:120] if refused else text.strip()[-150:],
    )
    named = [
        finding
        for finding in found
        if finding["kind"] == "gpu-shared" or "uplicate GPU" in str(finding)
    ]
    claim("and why is named", bool(named), [told(finding) for finding in named or found])


def steps() -> None:
    """The step with the agent and without, in the order ABBA: as many pairs as there is time
    for.
    """
    ends = time.monotonic() + 250
    with job("gpu-steps", 1, "steps.py", 0, 0, watched=False) as one:
        words = one.output(60).split()
    if "PASSES" not in words:
        claim("steps were timed", False, " ".join(words)[-200:])
        return
    passes = words[words.index("PASSES") + 1]
    pairs: list[tuple[list[float], list[float]]] = []
    took = 0.0
    while len(pairs) < 10 and time.monotonic() + took < ends:
        began = time.monotonic()
        order = (False, True) if len(pairs) % 2 == 0 else (True, False)
        spent = {watched: _step_ms(passes, watched) for watched in order}
        if not all(spent.values()):
            claim("steps were timed", False, spent)
            return
        pairs.append((spent[False], spent[True]))
        took = time.monotonic() - began
    mean, median, cpu = ([on[number] - off[number] for off, on in pairs] for number in range(3))
    size = statistics.median(off[0] for off, _ in pairs)
    for name, values in (("mean", mean), ("median", median), ("CPU", cpu)):
        say(
            f"{name} of the step, with less without, ms:",
            ", ".join(f"{value:+.4f}" for value in values),
        )
    share = statistics.median(mean) / size * 100
    spread = (max(mean) - min(mean)) / size * 100
    text = (
        f"{share:+.2f} % of {size:.2f} ms, median of {len(pairs)} pairs, spread {spread:.2f}"
        f" points; by medians {statistics.median(median) / size * 100:+.2f} %"
    )
    if len(pairs) < 3 or spread > 2:
        see(
            "the agent's cost of a step, in too few or too different pairs for a verdict (bar"
            " 0.5 %)",
            text,
        )
    else:
        claim("the agent costs at most 0.5 % of a 5 ms step", share <= 0.5, text)


def _step_ms(passes: str, watched: bool) -> list[float]:
    with job("gpu-steps", 1, "steps.py", 5, passes, watched=watched) as one:
        words = one.output(50).split()
    number = words.index("STEP_MS") if "STEP_MS" in words else None
    return [float(word) for word in words[number + 1 : number + 4]] if number is not None else []
