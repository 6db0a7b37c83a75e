"""Reads a command line of torchrun: how many ranks on how many nodes, and where they meet.

Source: torch/distributed/run.py, `get_args_parser` and `run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

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
    options of torchrun that the trial keeps. `nproc`: as typed; it may be `gpu` or `auto`.
    `endpoint`: (host, port), None if torchrun chooses one on this host.
    """

    before: tuple[str, ...]
    options: tuple[str, ...]
    program: str
    is_module: bool
    nodes: int
    nproc: str
    backend: str
    endpoint: tuple[str, int] | None
    node_rank: int

    @property
    def launched(self) -> bool:
        """Whether torchrun is started by another launcher and so also runs on other hosts."""
        return self.before[0] not in self._torchrun()

    def _torchrun(self) -> tuple[str, ...]:
        return self.before[-3:] if self.before[-2:-1] == ("-m",) else self.before[-1:]

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
        raise NotUnderstoodError("torchrun is given no program")

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
        nproc=nproc,
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
        option = _known(name)
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


def _known(name: str) -> str:
    """The full name of the option; argparse also accepts its beginning."""
    name = SHORT.get(name, name.replace("_", "-"))
    every = (*WITH_VALUE, *FLAGS)
    found = [name] if name in every else [one for one in every if one.startswith(name)]
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


def _endpoint(value: Value, backend: str, nodes: int) -> tuple[str, int] | None:
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


TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Value(Protocol):
        """Returns the value of an option, or of its variable."""

        def __call__(self, name: str, default: str = "") -> str: ...
