"""The records that are sent: one frozen record per kind of fact, each sent by exactly one room.

Fields may only be appended, with a default: an older reader ignores a longer tail, a newer reader
fills in the default. Anything else is a new major version of the schema (`frames.SCHEMA_MAJOR`).
`None` is "not measured", `0` is "measured zero". Times end in `_unix_ns` (wall clock of the
sender's host) or `_mono_ns` (monotonic clock of the sender's host, comparable only within one
host).
"""

from __future__ import annotations

from typing import Union

import msgspec

from ddtop.wire.gpu import CudaState, Gpu, GpuWatch, RasAnswer
from ddtop.wire.hosts import HostClock, HubLink
from ddtop.wire.load import FailedSave, HostLoad, ProcessLoad
from ddtop.wire.loader import Loader, WorkerEnd
from ddtop.wire.mpi import MpiState
from ddtop.wire.outside import OutsideLook
from ddtop.wire.progress import Expectation, Pace, TrainingProgress
from ddtop.wire.rendezvous import Candidacy, Rendezvous, StoreFile
from ddtop.wire.samples import Catching, GroupArrivals, Spot
from ddtop.wire.stacks import StackFrame, ThreadStack

ACTIVITIES = ("loader", "forward", "backward", "optimizer", "collective", "cuda_sync", "other")
"""The activities of a main thread, in the order of `RankState.activity_samples`."""


class Record(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all records: positional on the wire, distinguished by the class name."""


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
    `polls`: the path for which a loop in the function polls, if it sleeps and wakes.
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


class LastException(msgspec.Struct, frozen=True, array_like=True):
    """An exception that nothing caught; `text` is one line, at most 500 characters.

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


class HelperEnd(msgspec.Struct, frozen=True, array_like=True):
    """The end of a process that is no rank and runs beside the ranks, or has started them
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


class RankState(Record, frozen=True, array_like=True, gc=False):
    """What a rank does now. Sent once a second, and twice while the rank makes no progress; the
    newest one replaces one that is still queued.

    `phase`: starting, joining, running or leaving. `activity`: one of ACTIVITIES, at the last
    sample. `wait_samples` of `all_samples` found a collective pending. `activity_samples` follows
    ACTIVITIES. `gil_held_ns`: how late samples were because C code held the GIL. All of these only
    grow, so any two records give a window. `progress_unix_ns`: when a sequence number, an iteration
    or a batch last moved. `healthy_wait_max_ms`: the longest of the last 100 waits of half a second
    or more that ended, `usual_wait_ms` the second longest. `recorder`: why the flight recorder
    reports nothing; `recorder_skips`: reads left out while a group was about to get its first
    entry. `gc_total_ns`: time in garbage collections. `spots`: where the last `spots_samples` (half
    a minute) found the main thread most often. `held_samples` were late because something held the
    GIL (or the CPU); `held_spot` is where the last of them found it most often. `cuda`: the numbers
    of torch's CUDA. `progress`: what the program's framework counts. `pipeline`: the stages of
    torch's pipelining that it runs. `outside`: the rank has no agent, and this was read of it from
    outside. `pace`: how fast it trains, now and before. `expected`: the region that the program has
    announced and is in. `failed_save`: the last save that raised an exception. `stayed_s`: while it
    makes no progress, the longest time for which it has stood at its line before and then went on.
    `writes_since_unix_ns`: since when it has handled one exception, while a file that it has open
    for writing grows. `sleeps_until_unix_ns`: the end of the sleep that its thread is in. `trains`:
    of a rank that makes optimizer steps and has no process group, a digest of the parameters'
    shapes, the optimizer's settings and the seed.
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
    gil_held_ns: int = 0
    place: Place | None = None
    loader: Loader | None = None
    exception: LastException | None = None
    progress_unix_ns: int | None = None
    healthy_wait_max_ms: float | None = None
    cuda_allocated_bytes: int | None = None
    cuda_reserved_bytes: int | None = None
    agent_cpu_ns: int = 0
    drops: int = 0
    probes_off: tuple[str, ...] = ()
    recorder: str | None = None
    recorder_skips: int = 0
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
    this address (HOST:PORT or a path, empty where it has none); then `ranks` is empty. None: it is
    a group of this job.
    """

    name: str
    description: str
    ranks: tuple[int, ...]
    backend: str
    runs: tuple[tuple[int, int, int], ...] = ()
    meanings: tuple[str, ...] = ()
    foreign: str | None = None


class Groups(Record, frozen=True, array_like=True):
    """All process groups of which this rank is a member; sent when the set changes."""

    groups: tuple[Group, ...]


class ProcessState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The process of one rank as the relay sees it in /proc.

    `state`: the letter of /proc/PID/stat. `cpu_ns` and `io_bytes` only grow and include the living
    children. `switches`: how often the main thread went to sleep of its own accord.
    `agent_age_ms`: since the agent was last heard. `wchan` is None where the kernel does not say.
    `syscall`: the system call in which the main thread sleeps ("read", "futex"), None while it runs
    or where it cannot be read. `file`: what the descriptor of that call is ("/data/a.tar", "stdin",
    "socket", "pipe"); `remote`: the peer of that socket ("10.0.0.7:443"). `frozen`: its cgroup is
    frozen. From the state page: `gc_since_unix_ns`, a garbage collection runs since then;
    `exiting`, the interpreter has begun to exit; `init_since_unix_ns`, it is inside
    init_process_group since then. `became`: the name of the program that has replaced it by exec
    since its Hello; None: it is still the same program. `child_wakes_per_s`: while it waits for a
    child process, how often that one's main thread sleeps and wakes, of several the busiest.
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
    agent_age_ms: int | None = None
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


class HostState(Record, frozen=True, array_like=True):
    """One host and the ranks on it. Sent once a second. `relay_*`: what the relay costs and lost.

    `rendezvous`: of the ranks inside init_process_group. `candidates`: processes with the marks of
    the job that have not said who they are; looked for only while a rank is inside. Their `rank` is
    that of their environment. `candidacies`: one for each candidate. `launching`: what started the
    ranks inside still lives and is no interactive shell, so it may start more; None while no rank
    is inside. `clock`: None on the hub itself, and where it has not been measured.
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
    viewers: int = 0
    rendezvous: tuple[Rendezvous, ...] = ()
    candidates: tuple[ProcessState, ...] = ()
    load: HostLoad | None = None
    gpu_watch: GpuWatch | None = None
    clock: HostClock | None = None
    hub: HubLink | None = None
    candidacies: tuple[Candidacy, ...] = ()
    launching: bool | None = None
    helpers: tuple[HelperEnd, ...] = ()


class Exit(Record, frozen=True, array_like=True):
    """The process of a rank is gone.

    Exactly one of `code` and `signal` is set, or neither where the kernel did not tell (`how` =
    "unknown"). `order` counts the exits that this relay saw, from 0: the first to go is 0.
    `exiting`: it had begun an orderly exit of the interpreter, at `exiting_unix_ns`. `oom`: the OOM
    killer of its cgroup counted a kill at that time; None where that cannot be read. `orphans`:
    children that outlived it (DataLoader workers keep its sockets open); `orphan_sockets`: how many
    sockets they hold. `oom_line`: the line of the kernel's log about it, where that may be read.
    `iteration`: how many it had finished, and `walking`: the agent's thread was reading the frames
    of its other threads, both from its state page.
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
    last_state: str | None = None
    exiting_unix_ns: int | None = None
    oom_line: str | None = None
    orphan_sockets: int | None = None
    mpi: MpiState | None = None
    iteration: int | None = None
    walking: bool = False


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
    omitted_threads: int = 0


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

    A viewer sends `join`, `ping`, `stacks`, `signal` and `mute`; a relay sends `alive`, `dump` and
    `arrivals`. `history_s`: how many seconds of history a joining viewer wants. `arguments`: of
    `stacks` the name of the request, the ranks ("0,3-5", empty for all) and NATIVE, BY_SIGNAL or
    neither; of `signal` the rank, the pid and the number of the signal; of `mute` the kind, the
    ranks, for how many seconds (0 ends it) and the reason; of `dump` the name of the request and
    "auto" where nobody asked; of `arrivals` the name of the request; of `alive` what the relay
    cannot do. `pid`: the relay's own. In a viewer's order `instance` and `pid` say who gives it, in
    its own words.
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
