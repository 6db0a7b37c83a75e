"""Starts the command with ddtop's own program in place of the user's, and reads the reports of the
ranks.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from ddtop.cli.check import rank_program
from ddtop.cli.output import BAD, GOOD, NOTE
from ddtop.grouped import grouped
from ddtop.policy import Policy
from ddtop.wire.records import is_loopback
from ddtop.words.units import plural

# -- Reads a command line of torchrun: how many ranks on how many nodes, and where they meet
#
# Source: torch/distributed/run.py, `get_args_parser` and `run`.


WITH_VALUE = (
    *("--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"),
    *("--rdzv-conf", "--max-restarts", "--monitor-interval", "--start-method", "--role"),
    *("--event-log-handler", "--log-dir", "--redirects", "--tee", "--local-ranks-filter"),
    *("--duplicate-stdout-filters", "--duplicate-stderr-filters", "--node-rank"),
    *("--master-addr", "--master-port", "--local-addr", "--logs-specs", "--numa-binding"),
    *("--signals-to-handle", "--shutdown-timeout"),
)
FLAGS = ("--standalone", "--module", "--no-python", "--run-path", "--virtual-local-rank")
SHORT = {"-m": "--module", "-r": "--redirects", "-t": "--tee"}
NOT_FOR_TRIAL = (
    *("--module", "--no-python", "--run-path", "--redirects", "--tee", "--log-dir"),
    *("--local-ranks-filter", "--max-restarts", "--logs-specs"),
    *("--duplicate-stdout-filters", "--duplicate-stderr-filters"),
)
"""Options about the user's program and its output, or that hide the output of ranks."""
MODULES = ("torch.distributed.run", "torch.distributed.launch")
STATIC_PORT, C10D_PORT = 29500, 29400
"""The ports that torchrun uses by default."""


class NotUnderstoodError(Exception):
    """The command line cannot be understood. The text is one sentence."""


@dataclass(frozen=True, slots=True)
class TorchrunLine:
    """A command line of torchrun in parts.

    `before`: all words up to torchrun itself, including a launcher such as srun. `options`: the
    options of torchrun that the trial keeps. `endpoint`: (host, port), None if
    torchrun chooses one on this host.
    """

    before: tuple[str, ...]
    options: tuple[str, ...]
    program: str
    is_module: bool
    nodes: int
    backend: str
    endpoint: tuple[str, int] | None
    node_rank: int

    @property
    def has_other_launcher(self) -> bool:
        """Whether torchrun is started by another launcher and so also runs on other hosts."""
        torchrun = self.before[-3:] if self.before[-2:-1] == ("-m",) else self.before[-1:]
        return self.before[0] not in torchrun

    def trial(self, *program: str) -> list[str]:
        """The same command with `program` and its words instead of the user's."""
        return [*self.before, *self.options, "--max-restarts", "0", *program]


def read(words: Sequence[str], environ: Mapping[str, str]) -> TorchrunLine:
    """The command line as a `TorchrunLine`.

    `environ`: torchrun takes options that are not given from its variables PET_*.

    Raises:
        NotUnderstoodError: there is no torchrun in it, or it is wrong.
    """
    start = _behind_torchrun(words)
    given, kept, rest = _options(words[start:])
    if not rest:
        raise NotUnderstoodError("torchrun has no program to run")

    def value(name: str, default: str = "") -> str:
        variable = "PET_" + name.removeprefix("--").replace("-", "_").upper()
        return given.get(name) or environ.get(variable) or default

    nodes = _nodes(value("--nnodes", "1:1"))
    backend = value("--rdzv-backend", "static")
    rank = _number(value("--node-rank", "0"), "--node-rank", 0)
    nproc = value("--nproc-per-node", "1")
    if nproc not in ("auto", "cpu", "gpu", "xpu"):
        _number(nproc, "--nproc-per-node", 1)
    alone = "--standalone" in given or environ.get("PET_STANDALONE", "0") == "1"
    endpoint = None if alone else _endpoint(value, backend, nodes)
    return TorchrunLine(
        before=tuple(words[:start]),
        options=tuple(kept),
        program=rest[0],
        is_module="--module" in given,
        nodes=1 if alone else nodes,
        backend="c10d" if alone else backend,
        endpoint=endpoint,
        node_rank=rank,
    )


def _behind_torchrun(words: Sequence[str]) -> int:
    """The index at which the options of torchrun begin."""
    for number, word in enumerate(words):
        if PurePath(word).name == "torchrun":
            return number + 1
        if word == "-m" and words[number + 1 : number + 2] and words[number + 1] in MODULES:
            return number + 2
    raise NotUnderstoodError(
        f"there is no torchrun in {' '.join(words)[:80]!r}; give the command as it starts the job:"
        " ddtop check -- torchrun --nproc-per-node 4 train.py"
    )


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """(options with their values, the words that the trial keeps, the program and its words)."""
    given: dict[str, str] = {}
    kept: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, text = words[at].partition("=")
        if words[at] == "--":
            at += 1
            break
        if name[:2] in SHORT and not name.startswith("--") and len(name) > 2:
            name, equals, text = name[:2], "=", name[2:] + equals + text
        option = _full_option(name)
        taken = 1
        if option in WITH_VALUE and not equals:
            if at + 1 >= len(words):
                raise NotUnderstoodError(f"{name} of torchrun needs a value")
            text, taken = words[at + 1], 2
        given[option] = text
        if option not in NOT_FOR_TRIAL:
            kept += words[at : at + taken]
        at += taken
    return given, kept, list(words[at:])


def _full_option(name: str) -> str:
    """The full name of the option; argparse also accepts its beginning."""
    name = SHORT.get(name, name.replace("_", "-"))
    every = (*WITH_VALUE, *FLAGS)
    found = [name] if name in every else [option for option in every if option.startswith(name)]
    if len(found) != 1 or not name.startswith("--"):
        raise NotUnderstoodError(f"{name} is not an option of torchrun")
    return found[0]


def _nodes(text: str) -> int:
    """The smallest number of nodes with which the job starts: `2`, or `2:4`."""
    low, _, high = text.partition(":")
    number = _number(low, "--nnodes", 1)
    if high and _number(high, "--nnodes", 1) < number:
        raise NotUnderstoodError(f"--nnodes {text} asks for more nodes than it allows")
    return number


def _number(text: str, option: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 7 or int(text) < least:
        raise NotUnderstoodError(f"{option} {text!r} is not a number from {least} on")
    return int(text)


def _endpoint(value: Callable[..., str], backend: str, nodes: int) -> tuple[str, int] | None:
    text, port = value("--rdzv-endpoint"), value("--master-port")
    if backend == "static" and not text:
        if nodes == 1 and not port:
            return None
        host = value("--master-addr", "127.0.0.1")
        return host, _port(port or str(STATIC_PORT), "--master-port")
    if not text:
        if nodes > 1:
            raise NotUnderstoodError(
                f"--nnodes {nodes} with --rdzv-backend {backend} needs --rdzv-endpoint HOST:PORT"
            )
        return None
    host, colon, port = text.rpartition(":")
    if not colon or (port and "]" in port):
        host, port = text, ""
    default = STATIC_PORT if backend == "static" else C10D_PORT
    number = _port(port or str(default), "--rdzv-endpoint")
    return (host.strip("[]"), number) if number else None


def _port(text: str, option: str) -> int:
    number = _number(text, option, 0)
    if number > 65535:
        raise NotUnderstoodError(f"{option} {text} is not a port: they end at 65535")
    return number


# -- Judges the results of the trial: one line per check, with advice for bad ones


Facts = Mapping[str, Any]
SHOWN = 4
"""Ranks and hosts named in one sentence."""


@dataclass(frozen=True, slots=True)
class TrialLine:
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


def judge_trial(
    trial: Trial, nodes: int, waited_s: float, reduce_s: float, policy: Policy
) -> list[TrialLine]:
    """The lines of all checks of the trial."""
    lines = [_meeting(trial, nodes, waited_s)]
    if trial.nodes:
        lines += [*_versions(trial.nodes), *_clocks(trial.nodes, policy)]
        lines += _judged_nodes(trial, policy)
    return [*lines, *_reductions(trial, reduce_s)]


def _meeting(trial: Trial, nodes: int, waited_s: float) -> TrialLine:
    if trial.failed.get("rendezvous"):
        rank, (host, why) = min(trial.failed["rendezvous"].items())
        fix = "open all ports between the nodes, and see that the first node's name is right"
        return TrialLine(
            BAD, "meeting", f"rank {rank} on {host} does not meet the others: {why}", fix
        )
    if trial.nodes:
        count = f"{plural(trial.size, 'rank')} on {plural(len(trial.nodes), 'node')}"
        return TrialLine(GOOD, "meeting", f"{count} have met")
    if trial.exit_code is not None:
        fix = "fix what it reports; run the command itself to see all of its output"
        errors = [
            last_word for last_word in trial.last_words if "rror" in last_word
        ] or trial.last_words
        words = f": {errors[-1]}" if errors else ""
        text = f"the command ends with exit code {trial.exit_code} before the ranks meet{words}"
        return TrialLine(BAD, "meeting", text, fix)
    if trial.started:
        missing = sorted(set(range(trial.size)) - set(trial.started))
        text = f"{len(trial.started)} of {trial.size} ranks were seen within {waited_s:g} s"
        fix = f"find out why they do not start: {_ranks(missing)}" if missing else "open the ports"
        return TrialLine(BAD, "meeting", text, fix)
    text = f"no rank has started within {waited_s:g} s"
    fix = (
        f"start the same check on all {nodes} nodes at once, as the job is started"
        if nodes > 1
        else "run the command itself to see all of its output"
    )
    return TrialLine(BAD, "meeting", text, fix)


def _versions(nodes: Mapping[int, Facts]) -> Iterator[TrialLine]:
    for key, name in (("torch", "torch"), ("nccl", "NCCL"), ("driver", "GPU driver")):
        hosts = grouped(
            (str(facts.get(key) or "none"), str(facts["host"])) for facts in nodes.values()
        )
        if len(hosts) > 1:
            each = "; ".join(f"{version} on {_first(where)}" for version, where in hosts.items())
            fix = f"install the same {name} on all nodes"
            yield TrialLine(BAD, "versions", f"{name} differs: {each}", fix)
        elif "none" not in hosts:
            alike = " on all nodes" if len(nodes) > 1 else ""
            yield TrialLine(GOOD, "versions", f"{name} {next(iter(hosts))}{alike}")


def _clocks(nodes: Mapping[int, Facts], policy: Policy) -> Iterator[TrialLine]:
    first = str(nodes[min(nodes)]["host"])
    for facts in nodes.values():
        if not facts.get("offset"):
            continue
        ahead_s, error_s = facts["offset"]
        host, apart = facts["host"], f"{abs(ahead_s):.3g} s"
        if abs(ahead_s) - error_s > policy.check_clock_s:
            side = "behind" if ahead_s > 0 else "ahead of"
            text = f"the clock of {host} is {apart} {side} that of {first}"
            yield TrialLine(
                BAD, "clock", text, f"start a time service on both (chrony, ntpd): {host}"
            )
        else:
            text = f"{host} and {first} differ by less than {abs(ahead_s) + error_s:.2g} s"
            yield TrialLine(GOOD, "clock", text)


def _judged_nodes(trial: Trial, policy: Policy) -> list[TrialLine]:
    """The lines of all nodes; of many nodes only those that are bad, and a count."""
    count = len(trial.nodes)
    each = [list(_node(facts, trial.size, count, policy)) for facts in trial.nodes.values()]
    if count <= SHOWN:
        return [line for lines in each for line in lines]
    bad = [[line for line in lines if line.mark == BAD] for lines in each]
    text = (
        f"{bad.count([])} of {count} have enough room in /dev/shm, high enough limits and free GPUs"
    )
    return [TrialLine(GOOD, "nodes", text), *(line for lines in bad for line in lines)]


def _node(facts: Facts, size: int, nodes: int, policy: Policy) -> Iterator[TrialLine]:
    """The lines about /dev/shm, limits, names and GPUs of one node."""
    host, local = str(facts["host"]), int(facts["local_size"])
    shm, needed = facts.get("shm_bytes"), local * policy.check_shm_bytes_per_rank
    if shm is None or shm < needed:
        has = "is missing" if shm is None else f"has {shm >> 20:,} MiB free"
        text = f"/dev/shm {has} on {host}; {plural(local, 'rank')} may need {needed >> 20:,} MiB"
        fix = "docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm; remove old files"
        yield TrialLine(BAD, "/dev/shm", text, fix)
    else:
        yield TrialLine(GOOD, "/dev/shm", f"{shm >> 20:,} MiB free on {host}")
    yield from _limits(facts, host, local, size, policy)
    loopback = [
        address for address in facts.get("addresses", ()) if str(address).startswith("127.")
    ]
    if nodes > 1 and loopback and len(loopback) == len(facts["addresses"]):
        text = f"{host} resolves to {loopback[0]} on {host}: other nodes cannot connect there"
        fix = f"give {host} its network address in /etc/hosts, or set GLOO_SOCKET_IFNAME"
        yield TrialLine(NOTE, "host name", text, fix)
    yield from _gpus(facts, host, local, policy)


def _limits(facts: Facts, host: str, local: int, size: int, policy: Policy) -> Iterator[TrialLine]:
    files = max(policy.check_files, policy.check_files_per_rank * size)
    tasks = local * policy.check_tasks_per_rank
    low: list[tuple[str, str]] = []
    if facts["nofile"] is not None and facts["nofile"] < files:
        text = f"a process may open {facts['nofile']:,} files on {host}; {files:,} are needed"
        low.append((text, f"ulimit -n {max(files, 65536)}, where the job starts"))
    if facts["nproc"] is not None and facts["nproc"] - facts["user_tasks"] < tasks:
        left = max(facts["nproc"] - facts["user_tasks"], 0)
        text = f"{left:,} more threads may start on {host}; {tasks:,} are needed"
        low.append((text, "ulimit -u unlimited, or end other processes of this user"))
    if facts["infiniband"] and facts["memlock"] is not None:
        text = f"{facts['memlock'] >> 10:,} KiB may be locked on {host}, which has InfiniBand"
        low.append((text, "ulimit -l unlimited (limits.conf; LimitMEMLOCK of slurmd)"))
    yield from (TrialLine(BAD, "limits", text, fix) for text, fix in low)
    if not low:
        count = "unlimited" if facts["nofile"] is None else f"{facts['nofile']:,}"
        yield TrialLine(
            GOOD, "limits", f"{count} open files on {host}; enough threads and locked memory"
        )


def _gpus(facts: Facts, host: str, local: int, policy: Policy) -> Iterator[TrialLine]:
    gpus = facts.get("gpus")
    if not gpus:
        note = "cannot be read" if facts.get("driver") else "none"
        yield TrialLine(NOTE, "GPUs", f"{host}: {note}")
        return
    free = [
        gpu for gpu in gpus if gpu["used_mib"] <= policy.gpu_free_ratio * max(gpu["total_mib"], 1)
    ]
    text = f"{len(free)} of {plural(len(gpus), 'GPU')} are free on {host}"
    if len(free) >= local:
        yield TrialLine(GOOD, "GPUs", text)
    else:
        yield TrialLine(
            BAD,
            "GPUs",
            f"{text}, and {plural(local, 'rank')} start there",
            f"see who holds them: ddtop gpus, on {host}",
        )


def _reductions(trial: Trial, waited_s: float) -> Iterator[TrialLine]:
    for what, hosts in trial.tried.items():
        name = f"all_reduce {what}"
        failed = trial.failed.get(what)
        silent = sorted(set(hosts) - set(trial.good.get(what, ())) - set(failed or ()))
        if failed:
            rank, (host, why) = min(failed.items())
            text = f"rank {rank} on {host}: {why}"
            yield TrialLine(BAD, name, text, _advice(what))
        elif silent:
            text = f"no answer within {waited_s:g} s from {_ranks(silent)}"
            yield TrialLine(BAD, name, text, _advice(what))
        else:
            slowest = max(trial.good[what].values())
            ranks = plural(trial.size, "rank")
            seen = f"; {len(hosts)} of them here" if len(hosts) < trial.size else ""
            text = f"{ranks}, {slowest:.2g} s including the connection{seen}"
            yield TrialLine(GOOD, name, text)


def _advice(what: str) -> str:
    interface = f"{what.upper()}_SOCKET_IFNAME"
    detail = "; NCCL_DEBUG=INFO says more" if what == "nccl" else ""
    return f"open all ports between the nodes; {interface} chooses the network{detail}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {_first(ranks)}"


def _first(of: Sequence[object]) -> str:
    more = f" and {len(of) - SHOWN} more" if len(of) > SHOWN else ""
    return f"{', '.join(map(str, of[:SHOWN]))}{more}"


# -- The trial itself: it starts the command and reads the reports


PROGRAM = Path(rank_program.__file__)
END_S = 10.0
"""torchrun ends its ranks before it ends. After this time it is killed with them."""
LINES_KEPT = 20
READ_BYTES = 1 << 16


def run(command: Sequence[str], start_s: float, reduce_s: float) -> Trial:
    """Run the command until it ends or time is up, and end all of its processes.

    `start_s`: how long the ranks may take until all have met, in seconds. `reduce_s`: how long one
    all_reduce may take, in seconds.

    Raises:
        OSError: the command cannot be started.
    """
    environ = dict(os.environ) | {"PYTHONUNBUFFERED": "1"}
    environ.pop("DDTOP", None)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
        # The launcher and its ranks are ended together.
        start_new_session=True,
    )
    reader = _Reader(process)
    try:
        reader.read(start_s, reduce_s)
        return reader.trial
    finally:
        _end(process)


class _Reader:
    """Reads the output line by line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.trial = Trial()
        self._process = process
        self._rest = b""
        self._other: deque[str] = deque(maxlen=LINES_KEPT)

    def read(self, start_s: float, reduce_s: float) -> None:
        """Read until the output ends or a time limit is exceeded."""
        assert self._process.stdout is not None
        until = time.monotonic() + start_s
        tried = 0
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while selector.select(max(until - time.monotonic(), 0)):
                data = os.read(self._process.stdout.fileno(), READ_BYTES)
                if not data:
                    self._keep_last_words()
                    return
                self._take(data)
                if len(self.trial.tried) > tried:
                    tried = len(self.trial.tried)
                    # The ranks have shorter limits: they give up first, and report why.
                    until = time.monotonic() + reduce_s + END_S
        self.trial.last_words = tuple(self._other)

    def _keep_last_words(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.trial.exit_code = self._process.wait(END_S)
        self.trial.last_words = tuple(self._other)

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            # srun -l and torchrun --tee write the rank before the line.
            _, mark, fact = text.partition(rank_program.MARK)
            try:
                self.trial.take(json.loads(fact))
            except (ValueError, KeyError, TypeError):
                if not mark and text.strip():
                    self._other.append(text.strip())


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the launcher and everything that it has started on this host."""
    for number, seconds in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    if process.stdout is not None:
        process.stdout.close()


# -- Checks the rendezvous address from this host, before anything is started


REACH_S = 5.0
"""A host that answers at all does so within a second; a lost packet is resent after three."""
LISTENS = "0A"
"""State of a listening socket in /proc/net/tcp."""


def checks(line: TorchrunLine) -> list[TrialLine]:
    """The lines about names and the port."""
    return [*_own_name(line), *_program(line), *_endpoint_here(line)]


def addresses_of(name: str) -> list[str]:
    """The addresses of a name, without duplicates.

    Raises:
        OSError: it has none.
    """
    return list(dict.fromkeys(str(address[4][0]) for address in socket.getaddrinfo(name, None)))


def _program(line: TorchrunLine) -> list[TrialLine]:
    if line.is_module or line.has_other_launcher or Path(line.program).exists():
        return []
    fix = "correct the path, or change to the folder of the program"
    return [TrialLine(BAD, "program", f"{line.program} does not exist here", fix)]


def _own_name(line: TorchrunLine) -> list[TrialLine]:
    name = socket.gethostname()
    try:
        found = addresses_of(name)
    except OSError:
        fix = f"add a line for {name} to /etc/hosts, or set GLOO_SOCKET_IFNAME"
        return [TrialLine(NOTE, "host name", f"{name} does not resolve on its own host", fix)]
    if line.nodes > 1 and all(map(is_loopback, found)) and not line.has_other_launcher:
        if "GLOO_SOCKET_IFNAME" in os.environ:
            text = f"{name} resolves to {found[0]} here; GLOO_SOCKET_IFNAME is used instead"
            return [TrialLine(NOTE, "host name", text)]
        fix = f"give {name} the address of its network in /etc/hosts, or set GLOO_SOCKET_IFNAME"
        text = f"{name} resolves to {found[0]}: ranks here tell other nodes to connect there"
        # The all_reduce shows whether this job works with it.
        return [TrialLine(NOTE, "host name", text, fix)]
    return [TrialLine(GOOD, "host name", f"{name} resolves to {', '.join(found[:3])}")]


def _endpoint_here(line: TorchrunLine) -> list[TrialLine]:
    if line.endpoint is None:
        return [TrialLine(GOOD, "rendezvous", "torchrun chooses a free port on this host")]
    host, port = line.endpoint
    try:
        found = addresses_of(host)
    except OSError as error:
        fix = "correct the name in --rdzv-endpoint or --master-addr, or add it to /etc/hosts"
        return [TrialLine(BAD, "rendezvous", f"{host} does not resolve: {error.strerror}", fix)]
    place = f"{host}:{port}"
    if line.nodes > 1 and all(map(is_loopback, found)):
        fix = f"give {host} an address that the other nodes reach, in /etc/hosts or on the command"
        text = f"{host} resolves to {found[0]}: each node would look for the others on itself"
        return [TrialLine(BAD, "rendezvous", text, fix)]
    if any(map(_is_here, found)):
        return [_port_here(line, place, port)]
    return [_check_port(found[0], place, port)]


def _is_here(address: str) -> bool:
    """Whether a socket on this host can be bound to the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family) as one:
        one.bind((address, 0))
        return True
    return False


def _port_here(line: TorchrunLine, place: str, port: int) -> TrialLine:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("", port))
            one.listen(1)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return TrialLine(BAD, "port", f"{place}: {error.strerror}", "use a port above 1023")
        else:
            return TrialLine(GOOD, "port", f"{place} is on this host, and free")
    holder = _holder(port)
    text = f"{place} is taken on this host by {holder or 'another user'}"
    if line.nodes > 1 and (line.node_rank > 0 or line.backend != "static"):
        return TrialLine(
            NOTE,
            "port",
            f"{text}; this is right if that is another node of this job",
        )
    return TrialLine(BAD, "port", text, "end the process that holds it, or use another port")


def _holder(port: int) -> str | None:
    """The process that listens on this port, if this user may see it.

    Source: /proc/net/tcp and /proc/PID/fd.
    """
    wanted = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for row in Path(table).read_text().splitlines()[1:]:
                words = row.split()
                if words[3] == LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    wanted.add(f"socket:[{words[9]}]")
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(os.readlink(path) in wanted for path in folder.iterdir()):
                command = (folder.parent / "cmdline").read_bytes().replace(b"\0", b" ")
                return f"process {folder.parent.name} ({command.decode(errors='replace')[:60]})"
    return None


def _check_port(address: str, place: str, port: int) -> TrialLine:
    try:
        socket.create_connection((address, port), REACH_S).close()
    except ConnectionRefusedError:
        return TrialLine(GOOD, "port", f"{place} is reached, and nobody listens there yet")
    except OSError as error:
        why = error.strerror or "no answer"
        fix = "ask for that port to be opened between the nodes, or correct the address"
        return TrialLine(BAD, "port", f"{place} cannot be reached from here: {why}", fix)
    return TrialLine(GOOD, "port", f"{place} is reached, and takes connections")
