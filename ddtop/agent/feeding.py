"""From what a DataLoader takes its data: sampler, dataset, epoch. Read from torch's own objects, an iterator at a time.

Of the dataset only its length is asked, once a loader: `__getitem__` may read a disk, so only what stands in attributes is
looked at.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from typing import Any
from weakref import ref

import msgspec

from ddtop.wire.loader import Feed

SOURCES_MAX = 64
_ATTRIBUTES, _VALUES, _CHARACTERS = 40, 3, 80


@dataclass
class _Source:
    """What is known of one sampler. `same_epoch`: the last two passes began with the same one."""

    feed: Feed
    passes: int = 0
    epoch: int | None = None
    same_epoch: bool = False
    steps: int = 0


class Feeding:
    """Remembers samplers by their id; used by the agent's thread only, holds no reference to any of them."""

    def __init__(self) -> None:
        self._sources: dict[int, _Source] = {}
        self._pass: ref[Any] | None = None
        self._yielded = 0
        self._last: tuple[int, int, int] = (0, 0, 0)

    def look(self, iterator: Any, steps: int, batches: int, group: str | None) -> Feed | None:
        """What feeds that iterator; `steps` and `batches` are the rank's counts so far, `group` where gradients are averaged."""
        index = getattr(iterator, "_index_sampler", None)
        if index is None:
            return None
        sampler, yielded = getattr(index, "sampler", index), getattr(iterator, "_num_yielded", 0)
        source = self._sources.get(id(sampler))
        if source is None:
            if len(self._sources) >= SOURCES_MAX:
                self._sources.clear()
            source = self._sources[id(sampler)] = _Source(
                _described(index, sampler, getattr(iterator, "_dataset", None))
            )
        # Not by its id: the next epoch's iterator often has that of the last.
        if self._pass is None or self._pass() is not iterator or yielded < self._yielded:
            # A new pass over the data; persistent workers keep the iterator.
            _begin(source, sampler)
        if self._last[0] == id(sampler):
            # Between two looks at the same loader both have grown: it feeds the optimizer.
            source.steps += max(0, min(steps - self._last[1], batches - self._last[2]))
        self._pass, self._yielded, self._last = ref(iterator), yielded, (id(sampler), steps, batches)
        return msgspec.structs.replace(
            source.feed,
            epoch=source.epoch,
            epochs=source.passes,
            steps=source.steps,
            same_epoch=source.same_epoch,
            group=group,
        )


def _begin(source: _Source, sampler: Any) -> None:
    shuffles = _is(sampler, "torch.utils.data.distributed", "DistributedSampler") and getattr(sampler, "shuffle", False)
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


def _described(index: Any, sampler: Any, dataset: Any) -> Feed:
    plain = (
        _exactly(index, "BatchSampler", "SequentialSampler", "RandomSampler")
        and _exactly(sampler, "SequentialSampler", "RandomSampler")
        and dataset is not None
        and not _is(dataset, "torch.utils.data.dataset", "IterableDataset")
    )
    source = getattr(sampler, "data_source", dataset)
    length = _length(sampler) if plain else None
    return Feed(
        type(sampler).__name__,
        type(index).__name__,
        type(dataset).__name__,
        plain and source is dataset,
        length,
        first=_fingerprint(dataset) if plain else None,
    )


def _length(sampler: Any) -> int | None:
    """How many samples it takes; torch's samplers ask their dataset for it."""
    try:
        return len(sampler)
    except Exception:  # noqa: BLE001 - a dataset that does not know yet
        return None


def _fingerprint(dataset: Any) -> str:
    """A digest of what stands in the dataset's attributes: equal for the same data, different for a part of it on each rank."""
    found = hashlib.blake2b(digest_size=8)
    held = getattr(dataset, "__dict__", {})
    for name in sorted(held)[:_ATTRIBUTES]:
        found.update(f"{name}={_value(held[name])};".encode("utf-8", "replace"))
    return found.hexdigest()


def _value(value: Any, deep: int = 2) -> str:
    """Text of plain values; of others their class, length, and some of what they hold."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value[:_CHARACTERS] if isinstance(value, (str, bytes)) else value)
    kind = type(value)
    name = kind.__name__
    # Exactly these: a class of the program's own may do anything when it is asked.
    if kind in (list, tuple, range):
        ends = [*value[:_VALUES], *value[-_VALUES:]] if deep else []
        return f"{name}[{len(value)}]({','.join(_value(one, deep - 1) for one in ends)})"
    if kind is dict:
        return f"{name}[{len(value)}]({_some(value, deep)})"
    if kind.__module__ in ("torch", "numpy") and name in ("Tensor", "ndarray"):
        return f"{name}{tuple(value.shape)}{_numbers(value)}"
    held = getattr(value, "__dict__", None) if deep else None
    return f"{name}({_some(held, deep)})" if type(held) is dict else name


def _some(held: dict[Any, Any], deep: int) -> str:
    keys = list(held)[:_VALUES] if deep else ()
    return ",".join(f"{key if isinstance(key, (str, int)) else '?'}:{_value(held.get(key), deep - 1)}" for key in keys)


def _numbers(value: Any) -> str:
    """The first and last numbers of an array, or of a tensor in main memory, without a copy of it."""
    try:
        if type(value).__name__ == "ndarray":
            return repr([value.flat[at].item() for at in (0, -1)])
        if value.device.type != "cpu" or not value.is_contiguous():
            return ""
        flat = value.detach().view(-1)
        return repr([*flat[:_VALUES].tolist(), *flat[-_VALUES:].tolist()])
    except Exception:  # noqa: BLE001 - empty, or of objects: its shape is all that is told
        return ""
