"""The records that are sent: one frozen record per kind of fact, each sent by exactly one room.

Fields may only be appended, with a default: an older reader ignores a longer tail, a newer reader
fills in the default. Anything else is a new major version of the schema (`frames.SCHEMA_MAJOR`).
`None` is "not measured", `0` is "measured zero". Times end in `_unix_ns` (wall clock of the
sender's host) or `_mono_ns` (monotonic clock of the sender's host, comparable only within one
host).
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Union
from urllib.parse import urlparse

import msgspec

from ddtop.grouped import grouped
from ddtop.wire.mpi import MpiState

# -- How one host is connected to the others of its job: parts of `HostState`


ALONE, HUB, LEAF = "alone", "hub", "leaf"


class HostClock(msgspec.Struct, frozen=True, array_like=True):
    """This host's clock against the hub's.

    A time of this host plus `offset_ns` is the hub's, wrong by at most `error_ns`.

    `error_ns` is half of the fastest of the last round trips.
    """

    offset_ns: int
    error_ns: int


class HubLink(msgspec.Struct, frozen=True, array_like=True):
    """How a relay is connected to the hub of its job.

    `role`: alone (the job is on one host), hub, or leaf. `address`: HOST:PORT where the hub listens
    for others, or where this leaf has found it. `connected`, of a leaf: the hub answers; `why` it
    does not, in a few words. `dropped`: frames that could not be sent to the hub. `leaves`, of a
    hub: relays that are connected now.
    """

    role: str = ALONE
    address: str | None = None
    connected: bool | None = None
    why: str | None = None
    dropped: int = 0
    leaves: int = 0


# -- How loaded a host is, and what its load does to one process
#
# Parts of the relay's records; all of it comes from /proc. `FailedSave` is part of a rank's own.


class Disk(msgspec.Struct, frozen=True, array_like=True):
    """A file system that the job uses.

    `path`: where the job uses it, as its ranks see it. `uses`: what for ("cwd", "TMPDIR", "shm",
    "files": a file there was open for writing within the last minutes). `free_bytes`: what a
    process that is not root may still write. A read-only file system is left out. `ranks`: who
    uses it, empty where that is not known.
    """

    path: str
    uses: str
    total_bytes: int
    free_bytes: int
    inodes: int = 0
    inodes_free: int = 0
    ranks: tuple[int, ...] = ()


class HostLoad(msgspec.Struct, frozen=True, array_like=True):
    """One host. `runnable`: threads that run or want to (procs_running of /proc/stat), the relay's
    own left out.

    `steal_ratio`: share of the CPUs' time that the hypervisor gave to others, since the last look.
    `memory_stall_ratio`: share of the last ten seconds in which some thread waited for memory
    (/proc/pressure/memory: some avg10), None on kernels without. `unanswered`: paths of the job,
    each with for how long (s) a call on its file system has not returned; nothing is known of their
    disks.
    """

    runnable: int | None = None
    steal_ratio: float | None = None
    memory_stall_ratio: float | None = None
    disks: tuple[Disk, ...] = ()
    unanswered: tuple[tuple[str, float], ...] = ()


class Limit(msgspec.Struct, frozen=True, array_like=True):
    """One limit of a process, or of its group, and how much of it is used.

    `name`: "RLIMIT_AS" (used: VmSize) and "RLIMIT_DATA" (VmData), in bytes; "pids.max" of a cgroup
    (pids.current), in threads. Without a limit there is no such struct.
    """

    name: str
    used: int
    limit: int


class ProcessLoad(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One rank's process. `run_delay_ns` of the main thread only grows: ready but without a CPU
    (/proc/PID/task/PID/schedstat). `major_faults` only grows: pages that had to come from a disk.

    `cpus`: those that it may use, as the kernel writes them ("0-3"), `cpus_count` how many.
    `quota_cores`: its cgroup's limit, None without one; `throttled_ns` only grows.
    `memory_limit_bytes`, `memory_used_bytes` are of its cgroup, what the kernel could drop at once
    left out. `files`, `files_limit`: open descriptors, and how many it may have. `threads_delay_ns`
    only grows: the time in which its other threads were ready but without a CPU, added up
    (/proc/PID/task/*/schedstat, read every few seconds; of a thread that has ended what was read
    last). `limits`: the others that it has.
    """

    run_delay_ns: int | None = None
    major_faults: int | None = None
    cpus: str | None = None
    cpus_count: int | None = None
    quota_cores: float | None = None
    throttled_ns: int | None = None
    memory_limit_bytes: int | None = None
    memory_used_bytes: int | None = None
    files: int | None = None
    files_limit: int | None = None
    threads_delay_ns: int | None = None
    limits: tuple[Limit, ...] = ()


class FailedSave(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A save that raised an exception. `call`: "torch.save". `path`: absolute, as its rank sees it.

    `error`: type and text, one line. `free_bytes`: what was left on that file system afterwards for
    a process that is not root, None where the folder is not there.
    """

    call: str
    path: str
    error: str
    unix_ns: int
    free_bytes: int | None = None
    total_bytes: int | None = None


# -- What a rank says of the DataLoader that feeds it: a part of its state


class Feed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From what the DataLoader takes its data.

    `sampler`, `batch_sampler`, `dataset`: class names. `plain`: torch's own sequential or random
    sampler in torch's own BatchSampler over a dataset with a length, so that nothing in the loader
    gives each rank a part of its own; then `length` is how many samples it takes and `first` a
    digest of the dataset's attributes. `epoch`: of a DistributedSampler that shuffles, what
    set_epoch last said. `epochs`: passes that have begun with this sampler, `same_epoch`: all with
    the same epoch, and the optimizer has made steps in two of them. `steps`: optimizer steps made
    between its batches. `group`: in which
    DistributedDataParallel averages gradients, None where it is not used. `holds`: the dataset
    holds what samples are made of (values, a path), and its code does not ask for the rank.
    `batch`: a digest of the first batch of this pass, None where it has no numbers. `taken`:
    batches taken while `steps` were counted.
    """

    sampler: str
    batch_sampler: str
    dataset: str
    plain: bool
    length: int | None = None
    epoch: int | None = None
    epochs: int = 0
    steps: int = 0
    first: str | None = None
    same_epoch: bool = False
    group: str | None = None
    holds: bool = False
    batch: int | None = None
    taken: int = 0


class Waited(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The DataLoader for whose batches the rank has waited most over the last 20 s, of several that
    it uses in turn.

    `dataset`: class name. `feeds`: optimizer steps follow its batches, so it is that of the
    training. The rest as of `Loader`.
    """

    dataset: str
    workers: int
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    feeds: bool = False


class Loader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The DataLoader iterator that this rank used last.

    `feed` is that of the loader that feeds the optimizer, if one does.

    `owed_most_pid`: the worker that was waited for most often lately, in `owed_most_ratio` of these
    looks. `depth`: batches ready (in the queue, or held back out of order); None with `workers` 0,
    where there is no queue. `wait_total_ns`, `batches`, `exhausted` only grow. `owing_pid`: the
    worker that must deliver the next batch, or that does not end while the iterator is `closing`;
    `owing_state` is its letter, None if there is no such process any more.

    Only while a batch has been waited for longer than a second, or the iterator closes:
    `owing_wchan`, where that worker sleeps; `workers_cpu_ns`, of all workers and of what that one
    has started; `owing_io_bytes` and `owing_switches` (voluntary context switches of its threads),
    of that worker and what it has started; `locked`: how many workers sleep in a lock (futex).
    """

    workers: int
    depth: int | None = None
    capacity: int | None = None
    workers_alive: int | None = None
    owing_pid: int | None = None
    owing_state: str | None = None
    waiting_since_unix_ns: int | None = None
    wait_total_ns: int = 0
    batches: int = 0
    exhausted: int = 0
    exhausted_unix_ns: int | None = None
    pin_memory: bool | None = None
    prefetch_factor: int | None = None
    owing_wchan: str | None = None
    workers_cpu_ns: int | None = None
    owing_io_bytes: int | None = None
    owing_switches: int | None = None
    locked: int | None = None
    closing: bool = False
    feed: Feed | None = None
    owed_most_pid: int | None = None
    owed_most_ratio: float | None = None
    waited: Waited | None = None


class WorkerEnd(msgspec.Struct, frozen=True, array_like=True):
    """How a DataLoader worker of a rank has ended.

    `code`: its exit code, negative for a signal. `method`: how it was started ("fork", "spawn",
    "forkserver"). `reruns`: it had to run the rank's script again, which has no `__main__` guard.
    """

    pid: int
    code: int
    method: str
    reruns: bool = False


# -- What can be known from outside about a rank without an agent: where its main thread is


COLLECTIVE, P2P, INIT, UNCLEAR = "collective", "p2p", "init", "unclear"
"""Of `OutsideLook.kind`. `unclear`: a call into C that may wait for other ranks, such as a
synchronization with a GPU."""
RUN = "outside"
"""The run of ranks that are read from outside, in their Hello."""
OF_LOOKS = "outside-looks"
"""The request name of the stacks of such a rank that nobody asked for: those of the last look."""


class OutsideLook(msgspec.Struct, frozen=True, array_like=True):
    """The main thread of a rank, read from outside: by its frames and by /proc.

    `kind`: COLLECTIVE to UNCLEAR, None if the thread is in no communication call; `call` is that
    call ("all_reduce"). `since_unix_ns`: since when the thread is known to be in this place without
    a break. `asleep`: it has not run since then; False where it runs at one line, as in a library
    that spins. `communicated_unix_ns`: it made calls for other ranks until then, at least.
    `apart_looks`: how many looks in a row have found it in no such call. `quiet_since_unix_ns`:
    since when the threads that run gloo's collectives have run none, as far as was looked; None
    without such threads.

    Of the last looks, a tenth of a second apart or more: `looks`, over `looks_s` seconds; of these
    `call_looks` found it in a call for other ranks and `wait_looks` in a collective to which all
    ranks contribute.
    `one_wait_looks`: how many of these belong to one and the same wait, the longest.

    `arguments`: the call with the arguments that say whom it is with, `recv(src=2)`; None where
    nobody asked for variables (`--locals`).
    """

    kind: str | None = None
    call: str | None = None
    since_unix_ns: int | None = None
    asleep: bool = False
    communicated_unix_ns: int | None = None
    apart_looks: int = 0
    quiet_since_unix_ns: int | None = None
    looks: int = 0
    looks_s: float = 0.0
    call_looks: int = 0
    wait_looks: int = 0
    one_wait_looks: int = 0
    arguments: str | None = None

    @property
    def waits(self) -> bool:
        """It is in a call for other ranks, after the start."""
        return self.kind in (COLLECTIVE, P2P)


# -- How far the training is, as the program or its framework counts it: a part of a rank's state


TRAIN, VALIDATE, TEST, CHECKPOINT, COMPILE, SANITY_CHECK, IDLE = PHASES = (
    "train",
    "validate",
    "test",
    "checkpoint",
    "compile",
    "sanity-check",
    "idle",
)
"""What a training does. A program may give `ddtop.phase()` a word of its own."""
EXPECTED_CHARACTERS, EXPECTED_MOST_S = 64, 7 * 86_400.0
"""The longest name and the longest time of an expected region. As with a mute, a week is enough."""


class TrainingProgress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far the training of this rank is. Numbers are those that the program's own CPU code has
    computed; None where nobody counts them.

    `source`: who counts steps ("hf-trainer", "user", "tqdm"), else who named the phase. `epoch` may
    be a fraction. `phase`: one of PHASES or the program's own word, since `since_unix_ns`.
    `samples_per_s`, `tokens_per_s`: of the whole job, over the last half minute of this phase.
    `loss` may be nan or infinite. `eta_s`: seconds until `total_steps`, at the speed of the last
    ten minutes. `steps_per_s`: as `samples_per_s`. `usual_s`, `longest_s`: the median and the
    longest of the last 16 phases of this name that ended in this process; `phases_ended`: how many
    did.
    """

    source: str
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    total_epochs: float | None = None
    phase: str | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    loss: float | None = None
    lr: float | None = None
    eta_s: float | None = None
    since_unix_ns: int | None = None
    steps_per_s: float | None = None
    usual_s: float | None = None
    longest_s: float | None = None
    phases_ended: int = 0


class Speed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How fast a rank trained in two minutes of training.

    `unit`: tokens or samples of the whole job, or steps. `per_s`: the median of four pieces,
    `least_per_s` and `most_per_s` the slowest and the fastest. `step_ms`: the length of a step,
    `loader_ms` of it waiting for the DataLoader; `wait_ratio`: the share of the time in which a
    collective was pending. `parts_ms`: what a step spends in each of ACTIVITIES, by samples.
    """

    unit: str
    per_s: float
    least_per_s: float
    most_per_s: float
    step_ms: float
    loader_ms: float = 0.0
    wait_ratio: float = 0.0
    parts_ms: tuple[float, ...] = ()


class Fall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last steps of a rank take several times as long as its steps before.

    `then` is the speed before, and `now` since `step`, which began at `since_unix_ns`.
    """

    now: Speed
    then: Speed
    step: int
    since_unix_ns: int


class Pace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How fast the training of a rank is, without validations, checkpoints and compilations.

    `now`: the last two minutes of training, which began at `since_unix_ns`. `before`: two minutes
    that ended ten minutes earlier. `start`: the first two minutes after half a minute of warm-up.
    """

    now: Speed
    start: Speed | None = None
    before: Speed | None = None
    since_unix_ns: int | None = None


class Expectation(msgspec.Struct, frozen=True, array_like=True):
    """A region of the program that was announced: `ddtop.expected("export", up_to_s=600)`.

    The rank is in it since `since_unix_ns`, and the program expects it to take `up_to_s` seconds at
    most.
    """

    name: str
    since_unix_ns: int
    up_to_s: float

    @property
    def until_unix_ns(self) -> int:
        """The end of the time that was expected."""
        # In this order the result is 0 for a nan, which an agent of ours does not send.
        seconds = min(max(0.0, self.up_to_s), EXPECTED_MOST_S)
        return self.since_unix_ns + int(seconds * 1e9)


# -- What agents have seen often enough, or exactly enough, to name a straggler: parts of records


NONE_US = 0xFFFFFFFF
"""Stands in `GroupArrivals.after_us` for a collective of which there is no entry."""
SYMMETRIC, ROOTED, REDUCING = 1, 2, 3
"""Kinds of collectives in `GroupArrivals.kinds`: all wait for all, some wait for one, all_reduce or
barrier; 0 is not an entry."""
ARRIVALS_MAX = 2048
"""Collectives kept a group: 10 KB, and what torch's recorder holds by default."""


class Spot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line of the program's own code, and in how many of the agent's last samples the main thread
    was there.

    `waits_on` as of `Place`. Of `by_function` the line at which it was most often.
    """

    function: str
    file: str
    line: int
    samples: int
    waits_on: str | None = None


def by_function(spots: Iterable[Spot]) -> list[Spot]:
    """The lines of each function added up, the most frequent first."""
    found = grouped(((spot.function, spot.file), spot) for spot in spots)
    most = [
        (sum(one.samples for one in same), max(same, key=lambda one: one.samples))
        for same in found.values()
    ]
    ranked = sorted(most, key=lambda each: -each[0])
    return [msgspec.structs.replace(spot, samples=samples) for samples, spot in ranked]


CATCHES_TOLD = 8
"""Places that a rank reports; each is a line of text in every report."""


class Caught(msgspec.Struct, frozen=True, array_like=True):
    """An exception of one type that the program's own code caught at one line, again and again.

    `line` is that of the handler ("except ..."). `count` of them in `windows` of the windows of
    `Catching`; `ago`: how many windows have closed since the last in which it was seen.
    """

    type: str
    file: str
    function: str
    line: int
    count: int
    windows: int
    ago: int = 0


class Catching(msgspec.Struct, frozen=True, array_like=True):
    """What the last `windows` short looks saw being caught on the main thread, in `watched_ns`
    altogether; the most frequent first.

    `omitted`: further places that are left out, so what is not in `caught` may still be there.
    """

    windows: int = 0
    watched_ns: int = 0
    caught: tuple[Caught, ...] = ()
    omitted: int = 0


class GroupArrivals(msgspec.Struct, frozen=True, array_like=True):
    """When one rank enqueued the last collectives of one group, by torch's flight recorder.

    `first_seq` is the `collective_seq_id` of the first; `after_us` are four bytes each,
    little-endian: microseconds after `base_unix_ns` (the rank's wall clock), NONE_US where there is
    no entry. `kinds` is one byte each. Use `times`. `call_bytes`: input of a collective, the mean
    of all; None where that is not known.
    """

    group: str
    first_seq: int
    base_unix_ns: int
    after_us: bytes
    kinds: bytes
    call_bytes: float | None = None

    def times(self) -> dict[int, tuple[int, int]]:
        """(microseconds since the epoch, kind) by sequence number.

        Bytes that do not fit together are left out.
        """
        after = array("I")
        after.frombytes(self.after_us[: min(len(self.after_us) // 4, ARRIVALS_MAX) * 4])
        if sys.byteorder == "big":
            after.byteswap()
        base = self.base_unix_ns // 1000
        found = zip(after, self.kinds, strict=False)
        return {
            self.first_seq + at: (base + us, kind)
            for at, (us, kind) in enumerate(found)
            if us != NONE_US
        }


def arrivals_of(
    group: str, entered: Mapping[int, tuple[int, int]], call_bytes: float | None = None
) -> GroupArrivals | None:
    """The last of these collectives as a record: (unix ns, kind) by sequence number.

    None where there are none.
    """
    if not entered:
        return None
    last = max(entered)
    first = max(min(entered), last - ARRIVALS_MAX + 1)
    kept = [entered.get(seq) for seq in range(first, last + 1)]
    base = min(call[0] for call in kept if call is not None)
    after = array("I", _after_us(kept, base))
    if sys.byteorder == "big":
        after.byteswap()
    kinds = bytes(call[1] if call else 0 for call in kept)
    return GroupArrivals(group, first, base, after.tobytes(), kinds, call_bytes)


def _after_us(kept: Iterable[tuple[int, int] | None], base_unix_ns: int) -> Iterable[int]:
    for watched in kept:
        # More than an hour before the last: as good as none.
        after = (watched[0] - base_unix_ns) // 1000 if watched is not None else NONE_US
        yield min(after, NONE_US)


# -- Parts of the record of stacks


class StackFrame(msgspec.Struct, frozen=True, array_like=True):
    """One frame; `file` is empty for native frames without a source.

    `user`: the program's own code, as the agent judges it (not standard library, not
    site-packages); None where nobody has judged.
    """

    function: str
    file: str
    line: int
    user: bool | None = None


class ThreadStack(msgspec.Struct, frozen=True, array_like=True):
    """One thread, innermost frame first.

    `name` is None where the source does not say (faulthandler before 3.14).

    `omitted`: outer frames that were left out because the stack is deep. `main`: the rank's thread,
    which is the main thread unless another one trains. `has_gil`: it had the GIL when it was read,
    as py-spy says.
    """

    frames: tuple[StackFrame, ...]
    name: str | None = None
    thread_id: int | None = None
    main: bool = False
    omitted: int = 0
    has_gil: bool = False


# -- How a rank finds the others
#
# Parts of records about the time up to the end of init_process_group.


_LOOPBACK = re.compile(
    r"^(localhost(\.localdomain)?|ip6-localhost|127\.[0-9.]+|0\.0\.0\.0|::1?|\[::1?\])$"
)


class StoreFile(msgspec.Struct, frozen=True, array_like=True):
    """The file of a `file://` store as its rank found it right before it entered
    init_process_group.

    `bytes` None: there was none yet. `modified_unix_ns` is the file server's clock; `writable` is
    asked of its folder where there is no file. `wrong`: why it could not be looked at.
    """

    path: str
    bytes: int | None = None
    modified_unix_ns: int | None = None
    owner: str | None = None
    writable: bool | None = None
    wrong: str | None = None


class Rendezvous(msgspec.Struct, frozen=True, array_like=True):
    """The way of one rank inside init_process_group to its store, seen from outside by the relay of
    its host.

    `address`, `port`: where its environment or its arguments say that the store is. `sockets`: the
    states of its TCP sockets to that port ("ESTABLISHED", "SYN_SENT"), None where they cannot be
    read. `dials`: other addresses that it tries to reach in vain; `listens`: those at which its own
    peers find it. `probe`: how a connection by the relay went: "open", "refused", "timed out",
    "unreachable", "name not found", None where it was not tried. `local`: the address is one of
    this host's. `listener_*`: who listens on that port of this host, whether or not the address
    leads here; pid None: nobody, or somebody whose descriptors may not be read (then
    `listener_user` is set); `listener_ours`: it is a rank of this run or its launcher, None where
    that is not known.
    """

    rank: int | None
    pid: int
    address: str
    port: int
    sockets: tuple[str, ...] | None = None
    dials: tuple[str, ...] = ()
    probe: str | None = None
    local: bool | None = None
    listener_pid: int | None = None
    listener_command: str | None = None
    listener_user: str | None = None
    listener_ours: bool | None = None
    listener_started_unix_ns: int | None = None
    listens: tuple[str, ...] = ()


class Candidacy(msgspec.Struct, frozen=True, array_like=True):
    """Why a process that is not a rank yet belongs to the job, seen from outside by the relay of
    its host.

    `mark`: the evidence ("started by rank 0", "of the same parent"). `command`: its command line,
    shortened. `started_unix_ns`: wall clock, None if it could not be read. `torch_loaded`: libtorch
    is mapped into it (`grep libtorch /proc/PID/maps`), None where the job does not use torch or
    where that cannot be read. `frames`: of its main thread, innermost first, read by py-spy while
    it slept (`py-spy dump --nonblocking`); empty where not read.
    """

    pid: int
    mark: str
    command: str | None = None
    started_unix_ns: int | None = None
    torch_loaded: bool | None = None
    frames: tuple[StackFrame, ...] = ()


def is_loopback(name: str) -> bool:
    """Whether this name or address means each host itself.

    On Linux the addresses that stand for any address (0.0.0.0, ::) lead there too.
    """
    return _LOOPBACK.match(name) is not None


def store_address(
    init_method: str | None, environment: Mapping[str, str]
) -> tuple[str, int] | None:
    """(address, port) of the TCP store that these name.

    None if they name another kind of store, or none.
    """
    try:
        parts = urlparse(init_method or "env://")
        address, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme == "env":
        address, text = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT", "")
        port = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
    elif parts.scheme != "tcp":
        return None
    return (address, port) if address and port and port < 1 << 16 else None


# -- Facts about GPUs: what the driver, torch inside a rank, and NCCL report


NVIDIA, AMD = "nvidia", "amd"
"""Makers of GPUs, `Gpu.vendor`."""


class GpuProcess(msgspec.Struct, frozen=True, array_like=True):
    """A process that has memory or a context on a GPU.

    `rank`: it is that rank of the job, or a child of it. `local`: a process with this pid is there
    for the relay; False: NVML reports pids of another namespace (a container), so the owner is not
    known. `orphan`: its parent has ended. `ours`: it does not belong to a rank, but the launcher of
    the job has started it.
    """

    pid: int
    used_bytes: int | None = None
    rank: int | None = None
    local: bool = True
    user: str | None = None
    command: str | None = None
    orphan: bool = False
    ours: bool = False


class Xid(msgspec.Struct, frozen=True, array_like=True):
    """An error that the driver reported while the relay listened. Check: `dmesg | grep -i xid`."""

    code: int
    unix_ns: int


class Gpu(msgspec.Struct, frozen=True, array_like=True):
    """One GPU, or one MIG instance (`parent` is the GPU's uuid then), as its driver has it: through
    NVML, or amdsmi where `vendor` is AMD.

    None: the driver does not report it.

    `index` is NVML's, in the order of PCI addresses, or amdsmi's. `util_ratio`: share of the last
    sample period in which some kernel ran, a kernel of NCCL that waits included. `throttle`: of
    THROTTLES. `ecc_uncorrected`: since the driver was loaded. `remap_failed`,
    `remap_pending` (a reset is wanted): rows of memory with uncorrectable errors (retired pages on
    AMD). `nvlinks`: active ones (XGMI on AMD), of `nvlinks_total`. `exclusive`: only one process
    may have a context, `prohibited`: none may. `lost`: it no longer answers.
    """

    index: int
    uuid: str
    util_ratio: float | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    name: str = ""
    pci: str | None = None
    processes: tuple[GpuProcess, ...] | None = None
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    power_watts: float | None = None
    power_cap_watts: float | None = None
    celsius: int | None = None
    throttle: tuple[str, ...] | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlinks: int | None = None
    nvlinks_total: int | None = None
    xids: tuple[Xid, ...] = ()
    mig: bool | None = None
    parent: str | None = None
    exclusive: bool | None = None
    lost: bool = False
    prohibited: bool = False
    vendor: str = NVIDIA


class GpuWatch(msgspec.Struct, frozen=True, array_like=True):
    """The state of the relay's connection to the driver.

    `age_ms`: of the numbers in `HostState.gpus`; it grows while the driver does not answer. `why`:
    there is a driver, but it does not answer.
    """

    age_ms: int | None = None
    why: str | None = None


class CudaState(msgspec.Struct, frozen=True, array_like=True):
    """What torch reports about its device in a rank, once the program has initialised CUDA.

    `uuid` as NVML has it but without the "GPU-" or "MIG-" before it, `pci` as `Gpu.pci`; `index` is
    torch's, among the visible ones. `retries`: how often memory had to be given back and asked for
    again (fragmentation), `ooms`: how often that failed. `gloo_bytes`: of parameters on a GPU whose
    gradients DistributedDataParallel averages through gloo, though torch has NCCL.
    """

    index: int
    uuid: str | None = None
    pci: str | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    allocated_peak_bytes: int | None = None
    retries: int | None = None
    ooms: int | None = None
    nccl: str | None = None
    gloo_bytes: int | None = None


class RasRank(msgspec.Struct, frozen=True, array_like=True):
    """One rank of a communicator as NCCL's status service has it.

    `number` is its number in the communicator (-1: not reported), `host` the IP address of its
    bootstrap interface, never a name.

    `state`: ok, init, error, abort, finalize, behind, unresponsive, dead, or left (its process
    answers and is not in this communicator). `counts`: launches of each kind of collective; what a
    CUDA graph replays is not counted.
    """

    number: int
    host: str
    pid: int
    state: str = "ok"
    gpu: int | None = None
    counts: dict[str, int] = {}


class Communicator(msgspec.Struct, frozen=True, array_like=True):
    """One communicator of NCCL.

    `ranks`: all of its ranks where the answer was JSON; of the older text only those that differ.

    `usual`: how many launches of each kind most ranks have. `problems`: what the text says about
    ranks that it does not name.
    """

    name: str
    size: int
    ranks: tuple[RasRank, ...] = ()
    state: str = "ok"
    problems: tuple[str, ...] = ()
    usual: dict[str, int] = {}


class RasAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer of NCCL's status service, or why there is none (`why`).

    `same_ms`: for how long the answer about all communicators has been
    the same.
    """

    communicators: tuple[Communicator, ...] = ()
    nccl: str | None = None
    why: str | None = None
    text: bool = False
    same_ms: int | None = None


# -- The records of ranks, hosts, relays and viewers


ACTIVITIES = ("loader", "forward", "backward", "optimizer", "collective", "cuda_sync", "other")
"""The activities of a main thread, in the order of `RankState.activity_samples`."""


class Record(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all records: positional on the wire, distinguished by the class name."""


class Asked(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An actor of Ray for whose answer a rank waits.

    `actor`: its name, else its class; `a task` for a function. `pid`: None before it has started.
    `method`: what it runs; None for nothing, and on another host. `state`: Ray's word. `others`:
    how many further actors have not answered. `here`: it is on the host of the rank. `idle`: it is
    known that it does nothing for the answer: it is dead, or has used no CPU for a while.
    """

    actor: str
    pid: int | None = None
    method: str | None = None
    state: str = "ALIVE"
    others: int = 0
    here: bool = False
    idle: bool = False


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The innermost frame of the user's own code, outside site-packages and the standard library.

    `waits_on` is one word for what the frame does (`agent.probes.place` has the list).
    `since_unix_ns`: since when all samples found this function in this frame. `callee`: the
    innermost frame below it, if any. `line_since_unix_ns`: since when all samples found this line
    and this callee. `waits_for`: the path of the lock file whose end the library below waits for,
    None where there is none. `owner`: the class that the function is a method of, None if Python
    does not report it (before 3.11). `framework`: the package of a training framework
    (`wire.frameworks`) on this stack, and `framework_call` its function: with `framework_inside`
    the innermost one that the frame has called, else the nearest one that has called the frame.
    `polls`: the path for which a loop in the function polls, if it sleeps and wakes. `asked`: the
    actor of Ray for whose answer it waits.
    """

    function: str
    file: str
    line: int
    waits_on: str | None = None
    since_unix_ns: int | None = None
    callee: str | None = None
    line_since_unix_ns: int | None = None
    waits_for: str | None = None
    owner: str | None = None
    framework: str | None = None
    framework_call: str | None = None
    framework_inside: bool = False
    polls: str | None = None
    asked: Asked | None = None


_BYTES = {
    "float64": 8, "double": 8, "int64": 8, "long": 8, "complex64": 8,
    "float32": 4, "float": 4, "int32": 4, "int": 4,
    "float16": 2, "half": 2, "bfloat16": 2, "int16": 2,
    "int8": 1, "uint8": 1, "bool": 1, "char": 1, "byte": 1,
}  # fmt: skip


def bytes_of(sizes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> int | None:
    """Bytes of all tensors; None if a type or a size is not known."""
    widths = [_BYTES.get(name.lower()) for name in dtypes]
    if len(widths) == 1:
        widths *= len(sizes)
    if not sizes or len(widths) != len(sizes):
        return None
    total = 0
    for shape, width in zip(sizes, widths, strict=True):
        if width is None:
            return None
        total += prod(shape) * width
    return total


class Collective(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One collective of one process group as torch's flight recorder has it.

    `seq` is `collective_seq_id` (comparable across ranks), `op_id` also counts p2p (not
    comparable). `sizes`: shapes of the input tensors. `state`: scheduled, started, completed or
    retired. `thread_id`: Python's ident of the thread that called it (as in `ThreadStack`).
    `thread`: the name of that thread, of autograd's thread ("pt_autograd_0"), or "native"; None
    where torch does not say. `root`: a world rank, for MPI's rooted collectives and for torch's
    broadcast while a thread is in it.
    """

    group: str
    op: str
    seq: int
    op_id: int
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    state: str = "scheduled"
    created_unix_ns: int | None = None
    timeout_ms: int | None = None
    thread_id: int | None = None
    thread: str | None = None
    root: int | None = None


class GroupProgress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far this rank is in one process group.

    `enqueued` counts what was enqueued (on gloo also p2p), `completed` what has completed; None
    where only the sequence number could be read. `p2p_offset` = op_id - collective_seq_id of the
    newest entry read: subtract it to compare ranks. `pending_since_unix_ns`: something is open and
    `completed` has not moved since then. `error`: what the backend itself reports about its
    connections while it is pending ("TIMEOUT", "REMOTE_ERROR"); None where it reports nothing
    (gloo). `building`: NCCL builds its communicator. `p2p_calls`: how often the program has called
    send, recv and the like in this group, whatever the backend counts.
    """

    group: str
    enqueued: int
    completed: int | None = None
    p2p_offset: int | None = None
    pending_since_unix_ns: int | None = None
    last_op: str | None = None
    error: str | None = None
    building: bool = False
    p2p_calls: int = 0


class OpenCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call that the flight recorder does not see and that has not returned.

    `init_process_group`, `recv` and others. In MPI `group` is its communicator. `within`: the Wait
    or Sendrecv that it is one part of; `any_of`: one such part is enough.
    """

    name: str
    since_unix_ns: int
    peer: int | None = None
    tag: int | None = None
    thread_id: int = 0
    group: str | None = None
    within: str | None = None
    any_of: bool = False


LEFT = "SystemExit"
"""`LastException.type` of a program that has called `sys.exit` or `os._exit`, and handled no
exception then."""


class LastException(msgspec.Struct, frozen=True, array_like=True):
    """An exception that nothing caught, or that the program handled when it ended itself; `text` is
    one line, at most 500 characters.

    `leads`: it ended the thread that trained, which was not the main thread. `frames`: its
    traceback, innermost first; of a deep one `omitted` frames in the middle were left out.
    `worker`: the DataLoader worker whose end it reports.
    """

    type: str
    text: str
    unix_ns: int
    place: Place | None = None
    thread: str = "main"
    leads: bool = False
    frames: tuple[StackFrame, ...] = ()
    omitted: int = 0
    worker: WorkerEnd | None = None


class Handling(msgspec.Struct, frozen=True, array_like=True):
    """An exception that the rank's thread handles while it makes no progress. `text`: its
    arguments, one line. `place`: where it was raised, the innermost line of the program's own
    code. `path`: the file of an OSError that has one."""

    type: str
    text: str
    place: Place | None = None
    path: str | None = None


class HelperEnd(msgspec.Struct, frozen=True, array_like=True):
    """The end of a process that is not a rank and runs beside the ranks, or has started them
    (`launcher`).

    `code`, `signal`: from its pidfd, None where the kernel did not say. `exception`: what it left
    in its file. `unix_ns`: when it raised, else when the relay saw that it was gone, up to a second
    later.
    """

    pid: int
    unix_ns: int
    code: int | None = None
    signal: int | None = None
    exception: LastException | None = None
    command: str | None = None
    launcher: bool = False


class Hello(Record, frozen=True, array_like=True, gc=False):
    """The identity of this process. Sent first, again when it changes, and again to every new
    relay.

    `rank` None: a candidate without a number. `claim`: where the number comes from, `env`
    (launcher) or `init` (the arguments of init_process_group). `start_ticks`: field 22 of
    /proc/PID/stat, so that a recycled pid is not taken for this process. Secrets are redacted
    before they get here. `dump_signal` makes faulthandler write all stacks to `dump_path`, which
    the process has open as descriptor `dump_fd`; without them `dump_off` says why. `init_method`
    and `init_timeout_ms` are the arguments of init_process_group (None: not given),
    `init_unix_ns` is when it entered. `script_digest`: of the text of its script. `role`: what the
    process is to a system such as vLLM, Monarch or torchft, in that system's words. `joined`: it is
    a member of a process group. `above`: the pid of the rank of this host that has started it,
    directly or through others; None where none has. `saves_to`: folders in which it has saved.
    """

    job: str
    run: str
    attempt: int
    rank: int | None
    local_rank: int | None
    world_size: int | None
    host: str
    pid: int
    start_ticks: int
    claim: str = "env"
    script: str = ""
    argv: tuple[str, ...] = ()
    python: str = ""
    torch: str | None = None
    backend: str | None = None
    environment: dict[str, str] = {}
    page_path: str | None = None
    launcher_pid: int | None = None
    started_unix_ns: int = 0
    agent_version: str = ""
    page_fallback: str | None = None
    dump_signal: int | None = None
    dump_path: str | None = None
    dump_fd: int | None = None
    dump_off: str | None = None
    init_method: str | None = None
    init_timeout_ms: int | None = None
    init_unix_ns: int | None = None
    store_file: StoreFile | None = None
    script_digest: str | None = None
    role: str | None = None
    joined: bool = False
    above: int | None = None
    saves_to: tuple[str, ...] = ()


class RpcState(msgspec.Struct, frozen=True, array_like=True):
    """A worker of torch.distributed.rpc.

    `waits`: calls of its own that have no answer yet. `serves`: calls of others that it runs now.
    None where this torch does not count them. The target of a call is not known. `spins_ns`: CPU of
    its threads that poll for messages without rest, which does not count as work.
    """

    name: str
    id: int
    waits: int | None = None
    serves: int | None = None
    spins_ns: int = 0


class Stage(msgspec.Struct, frozen=True, array_like=True):
    """One stage of torch's pipelining that this rank runs.

    `index` counts from 0. `microbatches`: of one step, None before the first. `in_flight`: those
    whose forward is done and whose backward is not. `pass_`: forward or backward, and `microbatch`
    the one that is in it; None where that is not known or nothing runs.
    """

    index: int
    stages: int
    microbatches: int | None = None
    in_flight: tuple[int, ...] = ()
    pass_: str | None = None
    microbatch: int | None = None


class Replica(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Values of parameters that DistributedDataParallel keeps equal on the ranks of a group.

    `key`, equal on all of them: the group, how many models the process had wrapped before, the
    names of the parameters. `taken`: steps of the optimizer since then, each with one element of
    each parameter right after it; the latest is last.
    """

    key: tuple[str, int, tuple[str, ...]]
    taken: tuple[tuple[int, tuple[float, ...]], ...] = ()


class RankState(Record, frozen=True, array_like=True, gc=False):
    """What a rank does now. Sent once a second, and twice while the rank makes no progress; the
    newest one replaces one that is still queued.

    `phase`: starting, joining, running or leaving. `activity`: one of ACTIVITIES, at the last
    sample. `wait_samples` of `all_samples` found a collective pending. `activity_samples` follows
    ACTIVITIES. All of these only grow, so any two records give a window. `progress_unix_ns`: when a
    sequence number, an iteration or a batch last moved. `healthy_wait_max_ms`: the longest of the
    last 100 waits of half a second or more that ended, `usual_wait_ms` the second longest.
    `recorder`: why the flight recorder reports nothing. `gc_total_ns`: time in garbage collections.
    `spots`: where the last `spots_samples` (half a minute) found the main thread most often.
    `held_samples` were late because something held the GIL (or the CPU); `held_spot` is where the
    last of them found it most often, `held_by` where another thread of the program computed at half
    of them. `cuda`: the numbers of torch's CUDA. `progress`: what the
    program's framework counts. `pipeline`: the stages of torch's pipelining that it runs.
    `outside`: the rank has no agent, and this was read of it from outside. `pace`: how fast it
    trains, now and before. `expected`: the region that the program has announced and is in.
    `failed_save`: the last save that raised an exception. `stayed_s`: while it makes no progress,
    the longest time for which it has stood at its line before and then went on. `handling`: the
    exception that its thread handles while it makes no progress. `writes_since_unix_ns`: since when
    it has handled one exception, while a file that it has open for writing grows.
    `sleeps_until_unix_ns`: the end of the sleep that its thread is in; `sleeps_since_unix_ns`:
    since when it is known to be in that one. `trains`: of a rank that makes optimizer steps and has
    no process group, a digest of the parameters' shapes, the optimizer's settings and the seed.
    `calls`: the last two collective calls, while it is stuck or has raised. `replicas`: values of
    its parameters, one for each optimizer. `in_handler`: while it makes no progress, the signal
    (`type`) whose handler is on its thread's stack, and the handler's line. `moves_since_unix_ns`:
    since when it has read or written files that it has open, or has got from other threads what it
    waited for, while it makes no progress. `chain`: while it makes none, what its thread waits for
    in Python.
    """

    phase: str
    activity: str | None = None
    iteration: int | None = None
    iteration_source: str | None = None
    step_ms: float | None = None
    groups: tuple[GroupProgress, ...] = ()
    open_collectives: tuple[Collective, ...] = ()
    retired_collectives: tuple[Collective, ...] = ()
    open_calls: tuple[OpenCall, ...] = ()
    wait_samples: int = 0
    all_samples: int = 0
    activity_samples: tuple[int, ...] = ()
    place: Place | None = None
    loader: Loader | None = None
    exception: LastException | None = None
    progress_unix_ns: int | None = None
    healthy_wait_max_ms: float | None = None
    agent_cpu_ns: int = 0
    drops: int = 0
    probes_off: tuple[str, ...] = ()
    recorder: str | None = None
    gc_total_ns: int = 0
    spots: tuple[Spot, ...] = ()
    spots_samples: int = 0
    mpi: MpiState | None = None
    held_samples: int = 0
    held_spot: Spot | None = None
    cuda: CudaState | None = None
    catching: Catching | None = None
    usual_wait_ms: float | None = None
    progress: TrainingProgress | None = None
    pipeline: tuple[Stage, ...] = ()
    outside: OutsideLook | None = None
    pace: Pace | None = None
    rpc: RpcState | None = None
    expected: Expectation | None = None
    failed_save: FailedSave | None = None
    stayed_s: float | None = None
    writes_since_unix_ns: int | None = None
    sleeps_until_unix_ns: int | None = None
    trains: str | None = None
    handling: Handling | None = None
    calls: tuple[LastCall, ...] = ()
    replicas: tuple[Replica, ...] = ()
    in_handler: Handling | None = None
    sleeps_since_unix_ns: int | None = None
    moves_since_unix_ns: int | None = None
    chain: tuple[Link, ...] = ()
    fall: Fall | None = None
    step_unix_ns: int | None = None
    held_by: Spot | None = None


class Arrivals(Record, frozen=True, array_like=True):
    """When a rank enqueued its last collectives.

    The exact answer to a relay that has seen waits that differ.

    `request` is the same for all ranks that were asked together, `iteration` how many the rank has
    finished.
    """

    request: str
    groups: tuple[GroupArrivals, ...]
    iteration: int | None = None


class Group(msgspec.Struct, frozen=True, array_like=True):
    """A process group; `name` is torch's group_name, the only key that is the same on all ranks.

    `runs`: on the wire in place of the `ranks` of a large one, each first, count and step
    (`wire.rank_runs`). `meanings`: what the program uses it for, the narrowest first: names of
    dimensions of a DeviceMesh ("tp"), or those of Megatron and DeepSpeed in the same words.
    `foreign`: its members are not ranks of this job, and the store in which they have met is at
    this address (HOST:PORT or a path, empty where it has none); then `ranks` is empty, `size` says
    how many members there are, and `number` which of them this rank is. None: it is a group of this
    job.
    """

    name: str
    description: str
    ranks: tuple[int, ...]
    backend: str
    runs: tuple[tuple[int, int, int], ...] = ()
    meanings: tuple[str, ...] = ()
    foreign: str | None = None
    size: int = 0
    number: int = 0


class CallSite(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call of the program: the operation and the innermost line that is its own.

    `file` is empty where no frame of the program was seen. `op` "step": the optimizer's, and
    `calls` is how many collective calls lie between it and the step before. `caller_line`: the line
    that has called the function.
    """

    op: str
    file: str = ""
    line: int = 0
    function: str = ""
    calls: int | None = None
    caller_line: int = 0


class Turn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A collective call that followed another one for the first time in this rank.

    `number`: its sequence number in the group, of a step of the optimizer (`BY_STEPS`) that of the
    call before it; UNORDERED: the calls of this group change too often to be compared. `instead`:
    the call that ranks in step make at that number, if this turn has changed the number of calls;
    None if it may stand in its place. `step`: which step it is. `open`: no call has followed it
    yet. `more`: how many calls more than ranks in step the rank has made, below zero: fewer.
    """

    group: str
    number: int
    made: CallSite
    instead: CallSite | None = None
    step: int | None = None
    open: bool = False
    unix_ns: int = 0
    more: int = 0


class LastCall(msgspec.Struct, frozen=True, array_like=True):
    """One of the last two collective calls of a rank, as it stood on the page before torch got it.

    `count`: how many it has made in that group, `numel`: elements of its tensor.
    """

    group: str
    op: str
    dtype: str | None = None
    site: CallSite = CallSite("")
    count: int = 0
    numel: int = 0


class Whereabouts(msgspec.Struct, frozen=True, array_like=True):
    """What a rank writes on its state page for the relays of other jobs, whose ranks may wait for
    it. `place`: where its thread is. `moved_mono_ns`: when it last made progress, 0 if never."""

    job: str
    rank: int | None = None
    world_size: int | None = None
    moved_mono_ns: int = 0
    place: Place | None = None


class FarEnd(msgspec.Struct, frozen=True, array_like=True):
    """A rank of another job on this host to which a rank that makes no progress is connected.

    `where`: as it says itself. `address`: its end of the connection. `still_since_unix_ns`: since
    when no rank of that job makes progress, or runs; None if one does, or not all are on this host.
    """

    pid: int
    address: str
    where: Whereabouts
    still_since_unix_ns: int | None = None


class GroupMade(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call that has made a process group, or makes one: new_group or split_group.

    `number`: the one that torch gives to the group, which is its name too. Of a `local` one, for
    which only its members come: how many groups the rank was in, which torch puts into the name. Of
    split_group, which of these calls it is. `world`: how often the rank had destroyed all groups
    before. `group`: what the rank has passed, packed; of split_group the members of all parts.
    `place`: the line of the program, and as `callee` the function that it calls there, if that is
    another one ("init_device_mesh").
    """

    call: str
    number: int
    world: int
    group: Group
    local: bool = False
    place: Place | None = None

    @property
    def key(self) -> tuple[int, str, bool, int]:
        """Under what the members meet: it has to be the same call on all of them."""
        return self.world, self.call, self.local, self.number

    @property
    def passed(self) -> tuple[object, ...]:
        """What has to be equal on all ranks that make this call."""
        return self.group.ranks, self.group.runs, self.group.backend


class Groups(Record, frozen=True, array_like=True):
    """All process groups of which this rank is a member; sent when a field changes.

    `turns`: those of its calls in them. `made`: the last calls that have made groups, also those of
    which it is not a member, oldest first; None where nobody noted them.
    """

    groups: tuple[Group, ...]
    turns: tuple[Turn, ...] = ()
    made: tuple[GroupMade, ...] | None = None


class ProcessState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The process of one rank as the relay sees it in /proc.

    `state`: the letter of /proc/PID/stat. `cpu_ns` and `io_bytes` only grow and include the living
    children. `switches`: how often the main thread went to sleep of its own accord.
    `wchan` is None where the kernel does not say.
    `syscall`: the system call in which the main thread sleeps ("read", "futex"), None while it runs
    or where it cannot be read. `file`: what the descriptor of that call is ("/data/a.tar", "stdin",
    "socket", "pipe"); `remote`: the peer of that socket ("10.0.0.7:443"). `frozen`: its cgroup is
    frozen. From the state page: `gc_since_unix_ns`, a garbage collection runs since then;
    `exiting`, the interpreter has begun to exit; `init_since_unix_ns`, it is inside
    init_process_group since then. `became`: the name of the program that has replaced it by exec
    since its Hello; None: it is still the same program. `child_wakes_per_s`: while it waits for a
    child process, how often that one's main thread sleeps and wakes, of several the busiest;
    `child_moved_unix_ns`: when one of them last read or wrote some KB between two looks.
    `far_ends`: while it makes no progress, those of `remote`; where that is not known, of all its
    connections. `chain`: while it makes no progress, what it waits for in the kernel, as it was at
    `chain_unix_ns`. `outputs`: in some looks, what its standard output and its standard error are:
    the path of a file, or a name of the kernel ("pipe:[4711]"); empty in the others.
    """

    rank: int | None
    pid: int
    state: str
    wchan: str | None = None
    cpu_ns: int | None = None
    rss_bytes: int | None = None
    threads: int | None = None
    io_bytes: int | None = None
    children: int | None = None
    switches: int | None = None
    syscall: str | None = None
    file: str | None = None
    frozen: bool | None = None
    gc_since_unix_ns: int | None = None
    exiting: bool = False
    init_since_unix_ns: int | None = None
    load: ProcessLoad | None = None
    mpi: MpiState | None = None
    remote: str | None = None
    iteration: int | None = None
    became: str | None = None
    child_wakes_per_s: float | None = None
    far_ends: tuple[FarEnd, ...] = ()
    chain: tuple[Link, ...] = ()
    outputs: tuple[str, ...] = ()
    chain_unix_ns: int | None = None
    child_moved_unix_ns: int | None = None


CHILD, PIPE, FILE_LOCK, CONNECTION = "child", "pipe", "file lock", "connection"
LOCK, THREAD, TASK, LOOP, KEY = "lock", "thread", "task", "loop", "store key"
OBJECT, PROCESS, RPC = "object", "process", "rpc"
MOUNT, LOOKUP, SIGNAL, DEBUGGER = "mount", "name lookup", "signal", "debugger"
ITSELF, RETRY, SHARED, ENDING = "itself", "retry", "shared lock", "ending"
"""What a process or a thread may wait for: `Link.resource`. RETRY: that a statement, `named`, which
has raised an exception, does not raise it the next time. SHARED: a lock in memory that processes
share. ENDING: that another thread or task comes to a line of the program, `at`, that ends the call
`named`."""
TIMED, CHANGES, REPLACES, UNDONE = "has a time limit", "that changes", "replaces", "undone"
LISTENS, TAKES, ALONE, MAY, TWICE = "listens", "takes", "alone", "may", "twice"
BACKLOG, INHERITED, STARVED, TAKEN = "backlog", "inherited", "starved", "taken"
ENDS_AGAIN, CALL, KEPT, BLOCKS = "ends again", "call", "kept", "blocks"
"""`Link.does`.

Of a loop TIMED and CHANGES are the end of a longer text.

TIMED: the await or the loop ends by itself. CHANGES: a value in the condition of the loop has
changed, or another thread has the lock now. REPLACES: a worker of a pool has taken the place of one
that ended. ENDS_AGAIN: so did each worker before it. UNDONE: items of a queue were taken, and
nobody has marked them as done. LISTENS: nobody connects to the socket. TAKES: a rank takes the key
as a lock. ALONE: the only thread of the program waits for the object. MAY: no other process can
have the lock. TWICE: the same thread or task has taken the lock before, at `place`. BACKLOG: the
server has not accepted the connection. INHERITED: the standard input is that of the parent.
STARVED: all threads of the pool wait for futures. TAKEN: all connections of the pool are in use.
CALL: `named` is the call in which a thread waits for another thread of its process. KEPT: the
process that had the pipe has ended, and another one that it has started still has it open. BLOCKS:
the thread that waits for the lock runs an event loop, and no other thread has it.
"""
ENDLESS = "True"
"""`Link.named` of a loop that only sleeps and has no end."""
OF_TASK = "task "
"""How the name of a thread begins that is a task of asyncio."""


FROZEN = "F"
"""`Sleeper.state` of a process in a frozen cgroup."""


class Sleeper(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where the main thread of a process is: as in `ProcessState`, or FROZEN."""

    state: str
    wchan: str | None = None
    syscall: str | None = None
    file: str | None = None


class Link(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One step of a wait chain: what is awaited, and who has it.

    `named`: a path, an address, the text of a loop's condition or of a statement; empty if it has
    no name. `who`: the program or the thread that has it, of a retry the exception; None if that is
    not known. `pid`, `process`: of a process, which waits for the next link of the chain; `process`
    is None where another user's may not be read. `rank`: that of the process, in this job. `host`:
    that of the process, if it is another one than that of the rank. `place`: where the thread is
    that has it.
    `nobody`: every process of this user, or every thread of this process, was looked at, and none
    has it. `circle`: the one that has it stands earlier in the chain. `does`: of a connection its
    state, of a pipe what the other end must do, of an object what the thread does with it, of a
    loop, a retry or a key the values in its text, of a child that has ended how, of an ending the
    text of its line.
    """

    resource: str
    named: str = ""
    who: str | None = None
    pid: int | None = None
    process: Sleeper | None = None
    place: Place | None = None
    nobody: bool = False
    does: str = ""
    rank: int | None = None
    circle: bool = False
    host: str | None = None
    at: Place | None = None


class HostState(Record, frozen=True, array_like=True):
    """One host and the ranks on it. Sent once a second. `relay_*`: what the relay costs and lost.

    `rendezvous`: of the ranks inside init_process_group. `candidates`: processes with the marks of
    the job that have not said who they are; looked for only while a rank is inside. Their `rank` is
    that of their environment. `candidacies`: one for each candidate. `launching`: what started the
    ranks inside still lives and is not an interactive shell, so it may start more; None while no
    rank is inside. `clock`: None on the hub itself, and where it has not been measured.

    `served`: for each address of this host at which a rank of another host waits, the process there
    and what that one waits for.

    Of a job that was started without ddtop: `looks`, how its ranks are looked at, and `notes`, what
    the look cannot see, one sentence each.
    """

    host: str
    cores: int
    cpu_ratio: float | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    processes: tuple[ProcessState, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    launcher_alive: bool | None = None
    relay_pid: int = 0
    relay_cpu_ns: int = 0
    relay_rss_bytes: int = 0
    dropped: int = 0
    refused: int = 0
    garbled: int = 0
    rendezvous: tuple[Rendezvous, ...] = ()
    candidates: tuple[ProcessState, ...] = ()
    load: HostLoad | None = None
    gpu_watch: GpuWatch | None = None
    clock: HostClock | None = None
    hub: HubLink | None = None
    candidacies: tuple[Candidacy, ...] = ()
    launching: bool | None = None
    helpers: tuple[HelperEnd, ...] = ()
    notes: tuple[str, ...] = ()
    looks: str = ""
    served: tuple[tuple[Link, ...], ...] = ()


class Exit(Record, frozen=True, array_like=True):
    """The process of a rank is gone.

    Exactly one of `code` and `signal` is set, or neither where the kernel did not tell (`how` =
    "unknown"). `order` counts the exits that this relay saw, from 0: the first to go is 0.
    `exiting`: it had begun an orderly exit of the interpreter, at `exiting_unix_ns`. `oom`: the OOM
    killer of its cgroup counted a kill at that time; None where that cannot be read. `orphans`:
    children that outlived it (DataLoader workers keep its sockets open); `orphan_sockets`: how many
    sockets they hold. `oom_line`: the line of the kernel's log about it, where that may be read.
    `iteration`: how many it had finished, and `walking`: the agent's thread was reading the frames
    of its other threads, `calls`: its last collectives, all from its state page.
    """

    rank: int | None
    pid: int
    code: int | None
    signal: int | None
    oom: bool | None
    order: int
    how: str
    exiting: bool = False
    exception: LastException | None = None
    orphans: tuple[int, ...] = ()
    exiting_unix_ns: int | None = None
    oom_line: str | None = None
    orphan_sockets: int | None = None
    mpi: MpiState | None = None
    iteration: int | None = None
    walking: bool = False
    calls: tuple[LastCall, ...] = ()


class Stacks(Record, frozen=True, array_like=True):
    """The stacks of one process, or why there are none.

    `method`: agent, signal or py-spy; empty for a process that did not answer, then `why` says why
    in a few words; with a method, `why` says how this is less than was asked for. `request` names
    the dump that it belongs to. `of_rank` is the rank, also for its DataLoader worker (`worker`
    True, and `pid` the worker's). `pause_ns`: how long the agent held the GIL for it. `automatic`:
    nobody asked, something was stuck.
    """

    request: str
    of_rank: int | None
    pid: int
    taken_unix_ns: int
    method: str = ""
    threads: tuple[ThreadStack, ...] = ()
    why: str | None = None
    worker: bool = False
    pause_ns: int | None = None
    automatic: bool = False


class CommStatus(Record, frozen=True, array_like=True):
    """What NCCL's own status service (RAS) says.

    Asked for by the relay while something is stuck.
    """

    answer: RasAnswer = RasAnswer()


class Mute(msgspec.Struct, frozen=True, array_like=True):
    """A finding that a person knows of and does not want to hear of, until `until_unix_ns`.

    `kind`: of the finding, empty for all. `ranks`: "0,3-5", empty for all; a finding is meant that
    blames only such ranks. `because`: the reason that the person gave. `by`: who.
    """

    kind: str
    ranks: str
    until_unix_ns: int
    because: str = ""
    by: str = ""


class Order(Record, frozen=True, array_like=True):
    """What a viewer or the relay had done to ranks; sent by the relay that did it.

    `what`: stacks, native, stacks-by-signal, signal or mute. `ranks`: "0,3-5", empty for all. `by`:
    who, one text each: the role of the key, what that ddtop says about itself, and its address.
    `text`: the result. `ok` False: it was refused. `mutes`: all that this relay has been told to
    mute, None where nobody has told it any; each order has them, because a viewer that joins gets
    the last one.
    """

    what: str
    ranks: str = ""
    by: tuple[str, ...] = ()
    text: str = ""
    ok: bool = True
    mutes: tuple[Mute, ...] | None = None


NATIVE, BY_SIGNAL = "native", "signal"
"""How stacks may be taken besides by the agent: with py-spy, or by the dump signal."""


class Command(Record, frozen=True, array_like=True):
    """A request: a viewer's to the relay, or a relay's to its agents.

    A viewer sends `join`, `ping`, `stacks`, `signal` and `mute`; a relay sends `alive`, `dump`,
    `arrivals` and `ring`. `history_s`: how many seconds of history a joining viewer wants.
    `arguments`: of `stacks` the name of the request, the ranks ("0,3-5", empty for all) and NATIVE,
    BY_SIGNAL or neither; of `signal` the rank, the pid and the number of the signal; of `mute` the
    kind, the ranks, for how many seconds (0 ends it) and the reason; of `dump` the name of the
    request and "auto" where nobody asked; of `arrivals` the name of the request; of `ring` "closer"
    where somebody looks; of `alive` what the relay cannot do. `pid`: the relay's own. In a viewer's
    order `instance` and `pid` say who gives it, in its own words.
    """

    name: str
    history_s: float = 0.0
    instance: str = ""
    arguments: tuple[str, ...] = ()
    pid: int = 0


class Reply(Record, frozen=True, array_like=True):
    """The relay's answer to a Command; `count` frames of history follow a `joined`.

    After `stacks` (`text`: the request's name, or why not) `count` Stacks follow, one a process
    that was asked.
    """

    name: str
    ok: bool = True
    text: str = ""
    count: int = 0
    instance: str = ""


AnyRecord = Union[
    Hello, RankState, Groups, HostState, Exit, Stacks, Command, Reply, Arrivals, CommStatus, Order
]
"""Every record that may come in from outside."""


# -- Encodes the members of a large group in few bytes
#
# Ten thousand ranks that each report the same ten thousand members would be 300 MB for every
# viewer. Most groups are regular: all ranks, every eighth, eight in a row. Other groups are sent
# rank by rank.


TOLD_ONE_BY_ONE = 16
BY_STEPS, UNORDERED = "/steps", -1
"""The steps of the optimizer are one more order of calls, of the group of all ranks."""
BESIDE = "/gloo"
"""What gloo counts in a group of another backend (`cpu:gloo,cuda:nccl`) is reported as a group of
its own: under the group's name and this."""
MEMBERS_MAX = 1 << 17
"""More are refused, because a few bytes from outside must not become gigabytes."""

Runs = tuple[tuple[int, int, int], ...]


def pack(group: Group) -> Group:
    """The group for sending: `runs` instead of `ranks` if that is much shorter."""
    if len(group.ranks) <= TOLD_ONE_BY_ONE:
        return group
    runs = _runs(group.ranks)
    shorter = 6 * len(runs) <= len(group.ranks)
    return msgspec.structs.replace(group, ranks=(), runs=runs) if shorter else group


def unpack(group: Group) -> Group:
    """The same group with its `ranks`. Groups with the same members share one tuple.

    A group whose runs are not valid has no members.
    """
    runs = group.runs
    return msgspec.structs.replace(group, ranks=_ranks(runs), runs=()) if runs else group


def place_in(group: Group, rank: int) -> int | None:
    """How many members come before the rank, packed or not; None if it is not a member."""
    if not group.runs:
        return group.ranks.index(rank) if rank in group.ranks else None
    before = 0
    for first, count, step in group.runs:
        place, rest = divmod(rank - first, step) if step else (0, rank - first)
        if rest == 0 and 0 <= place < count:
            return before + place
        before += max(count, 0)
    return None


def size_of(group: Group) -> int:
    """How many members it has, packed or not."""
    return sum(max(count, 0) for _, count, _ in group.runs) if group.runs else len(group.ranks)


@lru_cache(maxsize=256)
def _runs(ranks: tuple[int, ...]) -> Runs:
    runs: list[tuple[int, int, int]] = []
    at = 0
    while at < len(ranks):
        step = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        end = at + 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        runs.append((ranks[at], end - at, step))
        at = end
    return tuple(runs)


@lru_cache(maxsize=4096)
def _ranks(runs: Runs) -> tuple[int, ...]:
    if any(count < 0 for _, count, _ in runs) or sum(count for _, count, _ in runs) > MEMBERS_MAX:
        return ()
    return tuple([first + at * step for first, count, step in runs for at in range(count)])
