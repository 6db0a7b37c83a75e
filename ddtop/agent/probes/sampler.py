"""The source of a DataLoader's data: sampler, dataset, epoch.

Source: attributes of torch's own objects, read once per iterator; of the dataset only the length,
read once per loader. Caveat: a sampler of the program's own has no epoch. Check: print
`loader.sampler` and its `epoch`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType
from typing import Any
from weakref import ref

import msgspec

from ddtop.agent.notes import attribute_of
from ddtop.wire.records import Feed

# -- The content of a dataset, as far as its attributes and its code show it
#
# Source: the dataset's `__dict__` and the names in its code. It decides whether two ranks read the
# same data. Caveat: `__getitem__` may read a disk, so it is never called. Check: print the
# dataset's attributes on two ranks.


_ATTRIBUTES, _VALUES, _CHARACTERS, _NUMBERS = 40, 8, 200, 64
_LEAST = 16
"""A container with this many values holds data, not only a shape or options."""
_FUNCTIONS = 40
_BY_RANK = re.compile(
    r"\A(environ|getenv|get_(\w+_)?rank|(local_|global_)?process_index|randn|randn_like"
    r"|standard_normal)\Z"
)
"""Names that give each rank its own samples: the code asks for the rank, or invents samples."""
_LIBRARIES = ("torch", "numpy", "datasets", "torchvision")
_GOLDEN = 0.6180339887
_ARRAYS = ("Tensor", "ndarray")


def holds(dataset: Any, length: int | None) -> bool:
    """Whether it holds data: enough values, or a path.

    A dataset that holds only sizes and shapes invents its samples.
    """
    return any(_holds(value, length or 0, 3) for value in _attributes_of(dataset).values())


def asks_rank(*programs: Any) -> bool:
    """Whether the code that makes samples asks for the rank, or for random numbers as content."""
    return any(
        _BY_RANK.match(name)
        for program in programs
        for code in _codes(program)
        for name in code.co_names
    )


def fingerprint(dataset: Any) -> str:
    """A digest of the dataset's attributes and of the constants that its code uses.

    It is equal for the same data, and differs if each rank holds a part.
    """
    found = hashlib.blake2b(digest_size=8)
    held = _attributes_of(dataset)
    for name in sorted(held)[:_ATTRIBUTES]:
        found.update(f"{name}={_value(held[name])};".encode("utf-8", "replace"))
    for name, value in sorted(_constants(dataset)):
        found.update(f"{name}:{value};".encode("utf-8", "replace"))
    return found.hexdigest()


def numbers(value: Any, most: int = _NUMBERS) -> list[Any]:
    """Some numbers from all over an array or a tensor in main memory, without a copy of it."""
    try:
        if type(value).__name__ == "ndarray":
            return [value.flat[at].item() for at in _scatter(value.size, most)]
        if value.device.type != "cpu" or not value.is_contiguous():
            return []
        found: list[Any] = value.detach().view(-1)[_scatter(value.numel(), most)].tolist()
    except Exception:  # noqa: BLE001 - empty, or of objects: only its shape is known
        return []
    return found


def _scatter(size: int, most: int) -> list[int]:
    """Indices that do not hit the same column of every row.

    Equal steps would, for example the black corner of each image.
    """
    if size <= most:
        return list(range(size))
    return [0, size - 1, *(int(at * _GOLDEN * size) % size for at in range(1, most - 1))]


def is_array(value: Any) -> bool:
    """A tensor of torch's or an array of numpy's, by its class alone."""
    return type(value).__module__ in ("torch", "numpy") and type(value).__name__ in _ARRAYS


def _attributes_of(thing: Any) -> dict[str, Any]:
    held = getattr(thing, "__dict__", None)
    return held if type(held) is dict else {}


def _spread(size: int, most: int) -> list[int]:
    return sorted({at * (size - 1) // max(most - 1, 1) for at in range(most)}) if size else []


def _holds(value: Any, length: int, deep: int) -> bool:
    if isinstance(value, (str, PurePath)):
        return not isinstance(value, str) or "/" in value or os.sep in value
    if is_array(value):
        # If all values are equal, they cannot distinguish two datasets.
        return (
            bool(value.shape)
            and value.shape[0] >= min(length, _LEAST)
            and len(set(numbers(value))) > 1
        )
    if type(value) in (list, tuple):
        some = [value[at] for at in _spread(len(value), _VALUES)]
        # Whole numbers are a shape, labels or indices.
        if len(value) >= min(length, _LEAST) and any(
            type(one) not in (int, bool, float, type(None)) for one in some
        ):
            return True
    else:
        # Datasets of Hugging Face have their own digest.
        if type(_attributes_of(value).get("_fingerprint")) is str:
            return True
        # A callable transforms samples and holds none.
        held = value if type(value) is dict else {} if callable(value) else _attributes_of(value)
        some = [held[key] for key in list(held)[:_ATTRIBUTES]]
    return deep > 0 and any(_holds(one, length, deep - 1) for one in some)


def _codes(thing: Any) -> Iterator[CodeType]:
    """Code that runs when a sample is made: functions of the program, a few calls deep."""
    for function in _functions(thing):
        yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    yield from (const for const in code.co_consts if isinstance(const, CodeType))


def _functions(thing: Any) -> list[FunctionType]:
    found: list[FunctionType] = []
    waiting: list[tuple[Any, type]] = [(item, type(item)) for item in _makers(thing, 3)]
    while waiting and len(found) < _FUNCTIONS:
        item, owner = waiting.pop(0)
        if isinstance(item, (FunctionType, MethodType)):
            function: Any = getattr(item, "__func__", item)
            if (
                function not in found
                and str(function.__module__).partition(".")[0] not in _LIBRARIES
            ):
                found.append(function)
                named = (value for _, value in _named_values(function, owner))
                waiting += [(value, owner) for value in named if isinstance(value, FunctionType)]
            continue
        methods = (
            getattr(type(item), name, None) for name in ("__getitem__", "__getitems__", "__call__")
        )
        waiting += [(method, type(item)) for method in methods if isinstance(method, FunctionType)]
    return found


def _makers(thing: Any, deep: int) -> Iterator[Any]:
    """The object and the parts of it that have code: a dataset in a Subset, a transform."""
    yield thing
    if deep and not isinstance(thing, (FunctionType, MethodType)):
        for value in list(_attributes_of(thing).values())[:_ATTRIBUTES]:
            for part in value[:_VALUES] if type(value) in (list, tuple) else (value,):
                if callable(part) or hasattr(type(part), "__getitem__"):
                    yield from _makers(part, deep - 1)


def _named_values(function: FunctionType, owner: type) -> Iterator[tuple[str, Any]]:
    """The values of the names in its code, as far as no code has to run to find them."""
    for code in _with_inner(function.__code__):
        for name in code.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]
            yield from ((name, vars(cls)[name]) for cls in owner.__mro__ if name in vars(cls))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents


def _constants(dataset: Any) -> set[tuple[str, str]]:
    """Plain values outside the dataset's attributes that its code names: a module's RANK."""
    return {
        (name, repr(value)[:_CHARACTERS])
        for function in _functions(dataset)
        for name, value in _named_values(function, type(dataset))
        if type(value) in (bool, int, float, str)
    }


def _value(value: Any, deep: int = 2) -> str:
    """Text of plain values; of others their class, length, and some of what they hold."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value[:_CHARACTERS] if isinstance(value, (str, bytes)) else value)
    if isinstance(value, PurePath):
        return str(value)
    kind = type(value)
    name = kind.__name__
    # Exactly these types: a class of the program may run any code.
    if kind in (list, tuple, range):
        return f"{name}[{len(value)}]({_texts(value, deep)})"
    if kind is dict:
        return f"{name}[{len(value)}]({_describe_arguments(value, deep)})"
    if is_array(value):
        return f"{name}{tuple(value.shape)}{numbers(value)}"
    held = getattr(value, "__dict__", None) if deep else None
    return f"{name}({_describe_arguments(held, deep)})" if type(held) is dict else name


def _texts(values: Sequence[Any], deep: int) -> str:
    return (
        ",".join(_value(values[at], deep - 1) for at in _spread(len(values), _VALUES))
        if deep
        else ""
    )


def _describe_arguments(held: dict[Any, Any], deep: int) -> str:
    keys = list(held)[:_VALUES] if deep else ()
    return ",".join(
        f"{key if isinstance(key, (str, int)) else '?'}:{_value(held.get(key), deep - 1)}"
        for key in keys
    )


# -- The sampler and the dataset of the DataLoader


SOURCES_MAX = 64
_PARTS, _BATCH_VALUES = 3, 64


@dataclass
class _Source:
    """What is known of one sampler.

    `at`: the iterator of the last pass, `yielded`: how many batches it had given then. `moved`: two
    passes have begun with different epochs. `trained`: the numbers of the first two passes in which
    the optimizer has made steps.
    """

    feed: Feed
    sampler: ref[Any] | None = None
    at: ref[Any] | None = None
    yielded: int = 0
    passes: int = 0
    epoch: int | None = None
    moved: bool = False
    trained: set[int] = field(default_factory=set)
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
            feed = _describe(iterator, index, sampler, attribute_of(iterator, "_dataset"))
            source = self._sources[id(sampler)] = _Source(feed, _reference(sampler))
            self._last = (0, 0, 0)
        # Not compared by id, for the same reason: an object has one weak reference without a
        # callback. Each loader has its own entry, because a validation may come in between.
        # Persistent workers keep the iterator.
        began = source.at is not iterator or yielded < source.yielded
        if began:
            _begin(source, sampler)
        source.at, source.yielded = iterator, yielded
        if self._last[0] == id(sampler):
            # If both have grown between two samples of the same loader, it feeds the optimizer.
            source.steps += max(0, min(steps - self._last[1], batches - self._last[2]))
            source.taken += max(0, batches - self._last[2])
            if steps > self._last[1] and len(source.trained) < 2:
                # A pass that only measures makes none. Steps since the last look are those of the
                # pass that it saw.
                source.trained.add(source.passes - began)
        self._last = (id(sampler), steps, batches)
        return msgspec.structs.replace(
            source.feed,
            epoch=source.epoch,
            epochs=source.passes,
            steps=source.steps,
            taken=source.taken,
            same_epoch=len(source.trained) > 1 and not source.moved and source.epoch is not None,
            group=group,
            batch=first_batch or None,
        )


def _reference(thing: Any) -> ref[Any] | None:
    try:
        return ref(thing)
    except TypeError:
        return None


def _begin(source: _Source, sampler: Any) -> None:
    shuffles = _is_of(sampler, "torch.utils.data.distributed", "DistributedSampler") and getattr(
        sampler, "shuffle", False
    )
    epoch = getattr(sampler, "epoch", None) if shuffles else None
    epoch = epoch if isinstance(epoch, int) else None
    source.moved |= source.passes > 0 and epoch != source.epoch
    source.passes, source.epoch = source.passes + 1, epoch


def _is_of(thing: Any, module: str, name: str) -> bool:
    """Whether it is of that class of torch's or derived from it."""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(thing, cls)


def _is_torch_sampler(thing: Any, *names: str) -> bool:
    return type(thing).__module__ == "torch.utils.data.sampler" and type(thing).__name__ in names


def _describe(iterator: ref[Any], index: Any, sampler: Any, dataset: Any) -> Feed:
    plain = (
        _is_torch_sampler(index, "BatchSampler", "SequentialSampler", "RandomSampler")
        and _is_torch_sampler(sampler, "SequentialSampler", "RandomSampler")
        and dataset is not None
        and getattr(sampler, "data_source", dataset) is dataset
        and not getattr(sampler, "replacement", False)
        and not _is_of(dataset, "torch.utils.data.dataset", "IterableDataset")
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
        first=fingerprint(dataset) if plain else None,
        holds=plain and holds(dataset, length) and not asks_rank(*programs),
    )


def digest_of_batch(batch: Any, deep: int = 3) -> int:
    """A digest of the first numbers of a batch, 0 if there are none.

    Called once a pass, on the training thread: some 20 us.
    """
    if type(batch) in (list, tuple):
        parts = (digest_of_batch(part, deep - 1) for part in batch[:_PARTS]) if deep else ()
        return next((part for part in parts if part), 0)
    if type(batch) is dict:
        return digest_of_batch(list(batch.values()), deep - 1) if deep else 0
    if is_array(batch):
        some = numbers(batch, _BATCH_VALUES)
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
