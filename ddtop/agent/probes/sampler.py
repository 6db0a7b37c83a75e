"""The source of a DataLoader's data: sampler, dataset, epoch.

Source: attributes of torch's own objects, read once per iterator; of the dataset only the length,
read once per loader. Caveat: a sampler of the program's own has no epoch. Check: print
`loader.sampler` and its `epoch`.
"""

from __future__ import annotations

import sys
import zlib
from dataclasses import dataclass
from typing import Any
from weakref import ref

import msgspec

from ddtop.agent.notes import attribute_of
from ddtop.agent.probes import dataset_digest
from ddtop.wire.loader import Feed

SOURCES_MAX = 64
_PARTS, _BATCH_VALUES = 3, 64


@dataclass
class _Source:
    """What is known of one sampler.

    `same_epoch`: the last two passes began with the same epoch. `at`: the iterator of the last
    pass, `yielded`: how many batches it had given then.
    """

    feed: Feed
    sampler: ref[Any] | None = None
    at: ref[Any] | None = None
    yielded: int = 0
    passes: int = 0
    epoch: int | None = None
    same_epoch: bool = False
    steps: int = 0
    taken: int = 0


class SamplerHistory:
    """Remembers samplers by their id. It holds no reference to any of them."""

    def __init__(self) -> None:
        self._sources: dict[int, _Source] = {}
        self._last: tuple[int, int, int] = (0, 0, 0)

    def look(
        self,
        iterator: ref[Any],
        steps: int,
        batches: int,
        group: str | None,
        first_batch: int | None = None,
    ) -> Feed | None:
        """What feeds that iterator.

        `steps`, `batches`: the rank's counts so far. `group`: where gradients are averaged.
        `first_batch`: a digest of the first batch of this pass.
        """
        index = attribute_of(iterator, "_index_sampler")
        if index is None:
            return None
        sampler = getattr(index, "sampler", index)
        yielded = attribute_of(iterator, "_num_yielded", 0)
        source = self._sources.get(id(sampler))
        # A sampler that is created again for each epoch often has the id of the last one.
        if source is None or (source.sampler is not None and source.sampler() is not sampler):
            if len(self._sources) >= SOURCES_MAX:
                self._sources.clear()
            feed = _described(iterator, index, sampler, attribute_of(iterator, "_dataset"))
            source = self._sources[id(sampler)] = _Source(feed, _reference(sampler))
            self._last = (0, 0, 0)
        # Not compared by id, for the same reason: an object has one weak reference without a
        # callback. Each loader has its own entry, because a validation may come in between.
        if source.at is not iterator or yielded < source.yielded:
            # A new pass over the data; persistent workers keep the iterator.
            _begin(source, sampler)
        source.at, source.yielded = iterator, yielded
        if self._last[0] == id(sampler):
            # If both have grown between two samples of the same loader, it feeds the optimizer.
            source.steps += max(0, min(steps - self._last[1], batches - self._last[2]))
            source.taken += max(0, batches - self._last[2])
        self._last = (id(sampler), steps, batches)
        return msgspec.structs.replace(
            source.feed,
            epoch=source.epoch,
            epochs=source.passes,
            steps=source.steps,
            taken=source.taken,
            same_epoch=source.same_epoch,
            group=group,
            batch=first_batch or None,
        )


def _reference(one: Any) -> ref[Any] | None:
    try:
        return ref(one)
    except TypeError:
        return None


def _begin(source: _Source, sampler: Any) -> None:
    shuffles = _is(sampler, "torch.utils.data.distributed", "DistributedSampler") and getattr(
        sampler, "shuffle", False
    )
    epoch = getattr(sampler, "epoch", None) if shuffles else None
    epoch = epoch if isinstance(epoch, int) else None
    source.same_epoch = source.passes > 0 and epoch is not None and epoch == source.epoch
    source.passes, source.epoch = source.passes + 1, epoch


def _is(one: Any, module: str, name: str) -> bool:
    """Whether it is of that class of torch's or derived from it."""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(one, cls)


def _exactly(one: Any, *names: str) -> bool:
    return type(one).__module__ == "torch.utils.data.sampler" and type(one).__name__ in names


def _described(iterator: ref[Any], index: Any, sampler: Any, dataset: Any) -> Feed:
    plain = (
        _exactly(index, "BatchSampler", "SequentialSampler", "RandomSampler")
        and _exactly(sampler, "SequentialSampler", "RandomSampler")
        and dataset is not None
        and getattr(sampler, "data_source", dataset) is dataset
        and not getattr(sampler, "replacement", False)
        and not _is(dataset, "torch.utils.data.dataset", "IterableDataset")
    )
    length = _length(sampler) if plain else None
    programs = (
        dataset,
        attribute_of(iterator, "_collate_fn"),
        attribute_of(iterator, "_worker_init_fn"),
    )
    return Feed(
        type(sampler).__name__,
        type(index).__name__,
        type(dataset).__name__,
        plain and getattr(sampler, "_num_samples", None) is None,
        length,
        first=dataset_digest.fingerprint(dataset) if plain else None,
        holds=plain
        and dataset_digest.holds(dataset, length)
        and not dataset_digest.asks_rank(*programs),
    )


def digest_of_batch(batch: Any, deep: int = 3) -> int:
    """A digest of the first numbers of a batch, 0 if there are none.

    Called once a pass, on the training thread: some 20 us.
    """
    if type(batch) in (list, tuple):
        parts = (digest_of_batch(one, deep - 1) for one in batch[:_PARTS]) if deep else ()
        return next((one for one in parts if one), 0)
    if type(batch) is dict:
        return digest_of_batch(list(batch.values()), deep - 1) if deep else 0
    if dataset_digest.is_array(batch):
        some = dataset_digest.numbers(batch, _BATCH_VALUES)
        # Padding, a mask or one label are the same on all ranks, whatever data they read.
        if len(set(some)) > 1:
            return zlib.crc32(f"{tuple(batch.shape)}{some}".encode()) or 1
    return 0


def _length(sampler: Any) -> int | None:
    """How many samples it draws; torch's samplers ask their dataset for it."""
    try:
        return len(sampler)
    except Exception:  # noqa: BLE001 - a dataset that does not know yet
        return None
