"""What a rank says of the DataLoader that feeds it: a part of its state."""

from __future__ import annotations

import msgspec


class Feed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From what the DataLoader takes its data.

    `sampler`, `batch_sampler`, `dataset`: class names. `plain`: torch's own sequential or random
    sampler in torch's own BatchSampler over a dataset with a length, so that nothing in the loader
    gives each rank a part of its own; then `length` is how many samples it takes and `first` a
    digest of the dataset's attributes. `epoch`: of a DistributedSampler that shuffles, what
    set_epoch last said. `epochs`: passes that have begun with this sampler, `same_epoch`: the last
    two with the same epoch. `steps`: optimizer steps made between its batches. `group`: in which
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
