"""What the texts of libraries' exceptions say: they are written for people, and change."""

from __future__ import annotations

import re
from enum import Enum

_QUOTED = re.compile(r"\(RANK (\d{1,7})\)")


class Says(Enum):
    """Something that such a text may say."""

    WORKER_GONE = re.compile(
        r"DataLoader worker \(pid.{0,40}(killed by signal|exited unexpectedly)"
    )
    """Torch raises this in the rank within five seconds after a worker's death."""
    GAVE_UP = re.compile(
        r"connectfullmesh|timed out|timeout|failed to (connect|listen)|client socket|EADDRINUSE"
        r"|address already in use|name or service|name resolution|getaddrinfo|gai error|hostname"
        r"|connection (refused|reset|closed)|clients joined|permission denied|no such file"
        r"|broken pipe|socket",
        re.IGNORECASE,
    )
    """The ranks did not meet: the store, the network, or the others failed."""
    NO_STORE = re.compile(
        r"client socket|failed to connect|name or service|name resolution|getaddrinfo|gai error"
        r"|hostname",
        re.IGNORECASE,
    )
    """It never had a connection to the store. The error about missing peers is a different one."""
    PORT_TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
    MESH = re.compile(r"connectfullmesh", re.IGNORECASE)
    """It failed while the ranks connected to each other."""
    CONSEQUENCE = re.compile(
        r"connection (closed|reset|refused)|closed by peer|broken pipe|recvvalue failed|"
        r"sendbytes failed|failed to recv|socket (closed|timeout)|remote process exited|"
        r"peer.*(closed|gone)|connectfullmesh|read error|write error|timed out waiting|"
        r"store.*(closed|unreachable)|monitoredbarrier|pair closure|"
        r"nccl(remote|system)error|collective operation timeout|communicator was aborted",
        re.IGNORECASE,
    )
    """Another rank has ended or does not join: this failure follows from it."""
    OF_BACKEND = re.compile(
        r"gloo|nccl|c10d|closed by peer|reset by peer|pair closure|timed out waiting|recvvalue|"
        r"sendbytes|monitoredbarrier|"
        r"collective operation timeout|communicator was aborted",
        re.IGNORECASE,
    )
    """The process group says so, and not a connection of the program itself."""
    TIMEOUT = re.compile(r"timed out|timeout", re.IGNORECASE)
    TRUNCATED = re.compile(r"MPI_ERR_TRUNCATE|message truncated", re.IGNORECASE)
    GPU_SHARED = re.compile(
        r"duplicate GPU detected ?: ?rank (\d{1,7}) and rank (\d{1,7})"
        r"|multiple ranks are using the same gpu",
        re.IGNORECASE,
    )
    """Older versions of NCCL name two ranks, 2.30 names none. Source: the texts in libnccl.so."""
    GPU_BUSY = re.compile(r"devices?(\(s\))? (are|is|is/are) busy or unavailable", re.IGNORECASE)
    NO_GPU = re.compile(
        r"no (CUDA|HIP) GPUs are available|found no NVIDIA driver|CUDA driver initialization failed"
        r"|no (CUDA|ROCm)-capable device|system not yet initialized|CUDA unknown error",
        re.IGNORECASE,
    )
    NO_SUCH_GPU = re.compile(r"invalid device ordinal", re.IGNORECASE)
    GPU_MEMORY = re.compile(
        r"(CUDA|HIP) out of memory|(CUDA|HIP) error: out of memory|_STATUS_ALLOC_FAILED",
        re.IGNORECASE,
    )
    NO_NCCL = re.compile(
        r"doesn't have NCCL built in|NCCL is only supported with GPUs|no GPUs? found",
        re.IGNORECASE,
    )

    def within(self, text: str) -> bool:
        """Whether the text says it."""
        return bool(self.value.search(text))


_NAMED = re.compile(
    r"\branks? ((?:\d{1,7}, ?)*\d{1,7}) failed to pass|\bsend/recv from rank (\d{1,7})",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"\bpeer (?:\[([^\]\s]{1,80})\]:|([\w.-]{1,80})[:<])(\d{1,5})\b")
_REMOTE = re.compile(r"remote=\[([^\]]{1,60})\]:(\d{1,5})")


def named_in(text: str) -> tuple[int, ...]:
    """The ranks that an error of torch blames: "Ranks 1, 2 failed to pass monitoredBarrier"."""
    found: set[int] = set()
    for match in _NAMED.finditer(text):
        found |= {int(number) for number in re.findall(r"\d+", match[1] or match[2])}
    return tuple(sorted(found))


def quoted_ranks(text: str) -> tuple[int, ...]:
    """The ranks whose exceptions the text passes on: torch's checkpoints raise those of some ranks
    on all of them."""
    return tuple(dict.fromkeys(int(number) for number in _QUOTED.findall(text)))


def without_rank(text: str) -> str:
    """The text of the first exception that it passes on."""
    parts = _QUOTED.split(text, maxsplit=1)
    return parts[-1].strip()


def address_in(text: str) -> str | None:
    """The peer's address in an error text: "Connection closed by peer [10.0.0.2]:41233"."""
    match = _ADDRESS.search(text)
    return f"{match[1] or match[2]}:{match[3]}" if match is not None else None


def remote_in(text: str) -> str | None:
    """The address to which gloo could not connect: "remote=[10.0.0.2]:41233"."""
    match = _REMOTE.search(text)
    return ":".join(match.groups()) if match is not None else None


def reason_in(text: str) -> str:
    """The reason alone: gloo writes the path of its own source file before it, and general advice
    after it."""
    return without_source(text).partition(". ")[0]


def without_source(text: str) -> str:
    """gloo puts the path of its own source file before the reason."""
    return re.sub(r"^\[[^\]]*\]:?\s*", "", text)


def sharing_a_gpu(text: str) -> tuple[int, ...]:
    """The two ranks that NCCL names; empty if it names none."""
    found = [match for match in Says.GPU_SHARED.value.finditer(text) if match[1]]
    return tuple(sorted({int(found[0][1]), int(found[0][2])})) if found else ()
