"""Judges the results of the trial: one line per check, with advice for bad ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddtop.policy import Policy
from ddtop.words.units import plural

GOOD, BAD, NOTE = "ok", "bad", "note"
Facts = Mapping[str, Any]
SHOWN = 4
"""Ranks and hosts named in one sentence."""


@dataclass(frozen=True, slots=True)
class Line:
    """A mark, the name of the check, one sentence, and advice if the result is bad."""

    mark: str
    what: str
    text: str
    fix: str = ""


@dataclass(slots=True)
class Trial:
    """The reports of the ranks. The facts of a node come from its first rank."""

    nodes: dict[int, Facts] = field(default_factory=dict)
    started: dict[int, str] = field(default_factory=dict)
    size: int = 0
    tried: dict[str, dict[int, str]] = field(default_factory=dict)
    good: dict[str, dict[int, float]] = field(default_factory=dict)
    failed: dict[str, dict[int, tuple[str, str]]] = field(default_factory=dict)
    """By attempt and rank: (host, why)."""
    ended: set[int] = field(default_factory=set)
    exit_code: int | None = None
    """The exit code of the launcher; None if it was ended because time was up."""
    last_words: tuple[str, ...] = ()
    """The other lines of its output."""

    def take(self, fact: Facts) -> None:
        """Add one line of a rank.

        Raises: KeyError, ValueError, TypeError: no rank of this version writes such a line.
        """
        rank, kind = int(fact["rank"]), fact["kind"]
        if kind == "node":
            self.nodes[rank] = fact
        elif kind == "start":
            self.started[rank] = str(fact["host"])
            self.size = int(fact["size"])
        elif kind == "try":
            self.tried.setdefault(str(fact["what"]), {})[rank] = str(fact["host"])
        elif kind == "good":
            self.good.setdefault(str(fact["what"]), {})[rank] = float(fact["seconds"])
        elif kind == "fail":
            why = str(fact["host"]), str(fact["why"])
            self.failed.setdefault(str(fact["what"]), {})[rank] = why
        elif kind == "end":
            self.ended.add(rank)


def judged(
    trial: Trial, nodes: int, waited_s: float, reduce_s: float, policy: Policy
) -> list[Line]:
    """The lines of all checks of the trial."""
    lines = [_meeting(trial, nodes, waited_s)]
    if trial.nodes:
        lines += [*_versions(trial.nodes), *_clocks(trial.nodes, policy)]
        lines += _nodes(trial, policy)
    return [*lines, *_reductions(trial, reduce_s)]


def _meeting(trial: Trial, nodes: int, waited_s: float) -> Line:
    if trial.failed.get("rendezvous"):
        rank, (host, why) = min(trial.failed["rendezvous"].items())
        fix = "open all ports between the nodes, and see that the first node's name is right"
        return Line(BAD, "meeting", f"rank {rank} on {host} does not meet the others: {why}", fix)
    if trial.nodes:
        count = f"{plural(trial.size, 'rank')} on {plural(len(trial.nodes), 'node')}"
        return Line(GOOD, "meeting", f"{count} have met")
    if trial.exit_code is not None:
        fix = "correct what it says; run the command itself to see all of its output"
        errors = [one for one in trial.last_words if "rror" in one] or trial.last_words
        words = f": {errors[-1]}" if errors else ""
        text = f"the command ends with exit code {trial.exit_code} before the ranks meet{words}"
        return Line(BAD, "meeting", text, fix)
    if trial.started:
        missing = sorted(set(range(trial.size)) - set(trial.started))
        text = f"{len(trial.started)} of {trial.size} ranks were seen within {waited_s:g} s"
        fix = f"see why they do not start: {_ranks(missing)}" if missing else "open the ports"
        return Line(BAD, "meeting", text, fix)
    text = f"no rank has started within {waited_s:g} s"
    fix = (
        f"start the same check on all {nodes} nodes at once, as the job is started"
        if nodes > 1
        else "run the command itself to see all of its output"
    )
    return Line(BAD, "meeting", text, fix)


def _versions(nodes: Mapping[int, Facts]) -> Iterator[Line]:
    for key, name in (("torch", "torch"), ("nccl", "NCCL"), ("driver", "GPU driver")):
        hosts: dict[str, list[str]] = {}
        for facts in nodes.values():
            hosts.setdefault(str(facts.get(key) or "none"), []).append(str(facts["host"]))
        if len(hosts) > 1:
            each = "; ".join(f"{version} on {_named(where)}" for version, where in hosts.items())
            fix = f"install the same {name} on all nodes"
            yield Line(BAD, "versions", f"{name} is not the same: {each}", fix)
        elif "none" not in hosts:
            alike = " on all nodes" if len(nodes) > 1 else ""
            yield Line(GOOD, "versions", f"{name} {next(iter(hosts))}{alike}")


def _clocks(nodes: Mapping[int, Facts], policy: Policy) -> Iterator[Line]:
    first = str(nodes[min(nodes)]["host"])
    for facts in nodes.values():
        if not facts.get("offset"):
            continue
        ahead_s, error_s = facts["offset"]
        host, apart = facts["host"], f"{abs(ahead_s):.3g} s"
        if abs(ahead_s) - error_s > policy.check_clock_s:
            side = "behind" if ahead_s > 0 else "ahead of"
            text = f"the clock of {host} is {apart} {side} that of {first}"
            yield Line(BAD, "clock", text, f"start a time service on both (chrony, ntpd): {host}")
        else:
            text = f"{host} and {first} differ by less than {abs(ahead_s) + error_s:.2g} s"
            yield Line(GOOD, "clock", text)


def _nodes(trial: Trial, policy: Policy) -> list[Line]:
    """The lines of all nodes; of many nodes only those that are bad, and a count."""
    count = len(trial.nodes)
    each = [list(_node(facts, trial.size, count, policy)) for facts in trial.nodes.values()]
    if count <= SHOWN:
        return [one for lines in each for one in lines]
    bad = [[one for one in lines if one.mark == BAD] for lines in each]
    text = f"{bad.count([])} of {count} have enough of /dev/shm, limits and GPUs"
    return [Line(GOOD, "nodes", text), *(one for lines in bad for one in lines)]


def _node(facts: Facts, size: int, nodes: int, policy: Policy) -> Iterator[Line]:
    """The lines about /dev/shm, limits, names and GPUs of one node."""
    host, local = str(facts["host"]), int(facts["local_size"])
    shm, needed = facts.get("shm_bytes"), local * policy.check_shm_bytes_per_rank
    if shm is None or shm < needed:
        has = "is missing" if shm is None else f"has {shm >> 20:,} MiB free"
        text = f"/dev/shm {has} on {host}; {plural(local, 'rank')} may need {needed >> 20:,} MiB"
        fix = "docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm; remove old files"
        yield Line(BAD, "/dev/shm", text, fix)
    else:
        yield Line(GOOD, "/dev/shm", f"{shm >> 20:,} MiB free on {host}")
    yield from _limits(facts, host, local, size, policy)
    loopback = [one for one in facts.get("addresses", ()) if str(one).startswith("127.")]
    if nodes > 1 and loopback and len(loopback) == len(facts["addresses"]):
        text = f"{host} resolves to {loopback[0]} on {host}: other nodes cannot connect there"
        fix = f"give {host} its network address in /etc/hosts, or set GLOO_SOCKET_IFNAME"
        yield Line(NOTE, "host name", text, fix)
    yield from _gpus(facts, host, local, policy)


def _limits(facts: Facts, host: str, local: int, size: int, policy: Policy) -> Iterator[Line]:
    wrong = False
    files = max(policy.check_files, policy.check_files_per_rank * size)
    if facts["nofile"] is not None and facts["nofile"] < files:
        wrong = True
        text = f"a process may open {facts['nofile']:,} files on {host}; {files:,} are needed"
        yield Line(BAD, "limits", text, f"ulimit -n {max(files, 65536)}, where the job starts")
    tasks = local * policy.check_tasks_per_rank
    if facts["nproc"] is not None and facts["nproc"] - facts["user_tasks"] < tasks:
        wrong = True
        left = max(facts["nproc"] - facts["user_tasks"], 0)
        text = f"{left:,} more threads may start on {host}; {tasks:,} are needed"
        yield Line(BAD, "limits", text, "ulimit -u unlimited, or end other processes of this user")
    if facts["infiniband"] and facts["memlock"] is not None:
        wrong = True
        text = f"{facts['memlock'] >> 10:,} KiB may be locked on {host}, which has InfiniBand"
        yield Line(BAD, "limits", text, "ulimit -l unlimited (limits.conf; LimitMEMLOCK of slurmd)")
    if not wrong:
        count = "unlimited" if facts["nofile"] is None else f"{facts['nofile']:,}"
        yield Line(GOOD, "limits", f"{count} open files on {host}; threads and locked memory do")


def _gpus(facts: Facts, host: str, local: int, policy: Policy) -> Iterator[Line]:
    gpus = facts.get("gpus")
    if not gpus:
        note = "cannot be read" if facts.get("driver") else "none"
        yield Line(NOTE, "GPUs", f"{host}: {note}")
        return
    free = [
        one for one in gpus if one["used_mib"] <= policy.gpu_free_ratio * max(one["total_mib"], 1)
    ]
    text = f"{len(free)} of {plural(len(gpus), 'GPU')} are free on {host}"
    if len(free) >= local:
        yield Line(GOOD, "GPUs", text)
    else:
        yield Line(
            BAD,
            "GPUs",
            f"{text}, and {plural(local, 'rank')} start there",
            f"see who holds them: ddtop gpus, on {host}",
        )


def _reductions(trial: Trial, waited_s: float) -> Iterator[Line]:
    for what, hosts in trial.tried.items():
        name = f"all_reduce {what}"
        failed = trial.failed.get(what)
        silent = sorted(set(hosts) - set(trial.good.get(what, ())) - set(failed or ()))
        if failed:
            rank, (host, why) = min(failed.items())
            text = f"rank {rank} on {host}: {why}"
            yield Line(BAD, name, text, _advice(what))
        elif silent:
            text = f"no answer within {waited_s:g} s from {_ranks(silent)}"
            yield Line(BAD, name, text, _advice(what))
        else:
            slowest = max(trial.good[what].values())
            ranks = plural(trial.size, "rank")
            seen = f"; {len(hosts)} of them here" if len(hosts) < trial.size else ""
            text = f"{ranks}, {slowest:.2g} s with connecting{seen}"
            yield Line(GOOD, name, text)


def _advice(what: str) -> str:
    interface = f"{what.upper()}_SOCKET_IFNAME"
    detail = "; NCCL_DEBUG=INFO says more" if what == "nccl" else ""
    return f"open all ports between the nodes; {interface} chooses the network{detail}"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:SHOWN]))
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def _named(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - SHOWN} more" if len(hosts) > SHOWN else ""
    return f"{', '.join(hosts[:SHOWN])}{more}"
