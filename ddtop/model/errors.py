"""What the texts of libraries' exceptions say: they are written for people, and change."""

from __future__ import annotations

import re
from enum import Enum


class Says(Enum):
    """Something that such a text may say."""

    WORKER_GONE = re.compile(
        r"DataLoader worker \(pid.{0,40}(killed by signal|exited unexpectedly)"
    )
    """Torch raises this in the rank within five seconds after a worker's death."""
    TIMEOUT = re.compile(r"timed out|timeout", re.IGNORECASE)
    TRUNCATED = re.compile(r"MPI_ERR_TRUNCATE|message truncated", re.IGNORECASE)

    def within(self, text: str) -> bool:
        """Whether the text says it."""
        return bool(self.value.search(text))


_NAMED = re.compile(
    r"\branks? ((?:\d{1,7}, ?)*\d{1,7}) failed to pass|\bsend/recv from rank (\d{1,7})",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"\bpeer (?:\[([^\]\s]{1,80})\]:|([\w.-]{1,80})[:<])(\d{1,5})\b")


def named_in(text: str) -> tuple[int, ...]:
    """The ranks that an error of torch blames: "Ranks 1, 2 failed to pass monitoredBarrier"."""
    found: set[int] = set()
    for match in _NAMED.finditer(text):
        found |= {int(number) for number in re.findall(r"\d+", match[1] or match[2])}
    return tuple(sorted(found))


def address_in(text: str) -> str | None:
    """The peer's address in an error text: "Connection closed by peer [10.0.0.2]:41233"."""
    match = _ADDRESS.search(text)
    return f"{match[1] or match[2]}:{match[3]}" if match is not None else None


def reason_in(text: str) -> str:
    """The reason alone: gloo writes the path of its own source file before it, and general advice
    after it."""
    return re.sub(r"^\[[^\]]*\]:?\s*", "", text).partition(". ")[0]
