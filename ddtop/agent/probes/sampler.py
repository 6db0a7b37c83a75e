"""The source of a DataLoader's data: sampler, dataset, epoch.

Source: attributes of torch's own objects, read at the first batch of each pass on the thread that
trains. That thread holds them, so none of them is destroyed here. No method of the dataset is
called. Caveat: a sampler of the program's own has no epoch. Check: print `loader.sampler` and its
`epoch`.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType, GeneratorType, MethodType
from typing import Any
from weakref import ref

import msgspec

from ddtop.agent.guard import suppressed
from ddtop.agent.plain import (
    PATH,
    held_by,
    is_a,
    module_of,
    name_of,
    of_class,
    peek,
    text,
    whole,
)
from ddtop.agent.probes.replicas import is_watched
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
_MAKERS = ("__getitem__", "__getitems__", "__call__")
_LIBRARIES = ("torch", "numpy", "datasets", "torchvision")
_GOLDEN = 0.6180339887
_ARRAYS = ("Tensor", "ndarray")


def holds(dataset: Any, length: int | None) -> bool:
    """Whether it holds data: enough values, or a path.

    A dataset that holds only sizes and shapes invents its samples.
    """
    return any(_holds(value, length or 0, 3) for value in held_by(dataset).values())


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
    held = held_by(dataset)
    for name in sorted(held)[:_ATTRIBUTES]:
        found.update(f"{name}={_value(held[name])};".encode("utf-8", "replace"))
    for name, value in sorted(_constants(dataset)):
        found.update(f"{name}:{value};".encode("utf-8", "replace"))
    return found.hexdigest()


def numbers(value: Any, most: int = _NUMBERS) -> list[Any]:
    """Some numbers from all over an array or a tensor in main memory, without a copy of it."""
    found: list[Any] = []
    # If it is empty, or of objects, only its shape is known.
    with suppressed:
        if module_of(type(value)) == "numpy":
            if not value.dtype.hasobject:
                found = [value.flat[at].item() for at in _scatter(value.size, most)]
        elif (
            not is_watched(sys.modules["torch"])
            and value.device.type == "cpu"
            and value.is_contiguous()
        ):
            found = value.detach().view(-1)[_scatter(value.numel(), most)].tolist()
    return found


def _scatter(size: int, most: int) -> list[int]:
    """Indices that do not hit the same column of every row.

    Equal steps would, for example the black corner of each image.
    """
    inner = (int(at * _GOLDEN * size) % size for at in range(1, most - 1))
    return list(range(size)) if size <= most else [0, size - 1, *inner]


def is_array(value: Any) -> bool:
    """A tensor of torch's or an array of numpy's, by its class alone."""
    return module_of(type(value)) in ("torch", "numpy") and name_of(type(value)) in _ARRAYS


def _spread(size: int, most: int) -> list[int]:
    return sorted({at * (size - 1) // max(most - 1, 1) for at in range(most)}) if size else []


def _holds(value: Any, length: int, deep: int) -> bool:
    if type(value) in (str, PATH):
        return type(value) is PATH or os.sep in value
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
        if type(held_by(value).get("_fingerprint")) is str:
            return True
        # A callable transforms samples and holds none.
        held = value if type(value) is dict else {} if callable(value) else held_by(value)
        some = [held[key] for key in list(held)[:_ATTRIBUTES]]
    return deep > 0 and any(_holds(one, length, deep - 1) for one in some)


def _codes(thing: Any) -> Iterator[CodeType]:
    """Code that runs when a sample is made: functions of the program, a few calls deep."""
    for function in _functions(thing):
        yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    yield from (const for const in code.co_consts if type(const) is CodeType)


def _functions(thing: Any) -> list[FunctionType]:
    found: list[FunctionType] = []
    waiting: list[tuple[Any, type]] = [(item, type(item)) for item in _makers(thing, 3)]
    while waiting and len(found) < _FUNCTIONS:
        item, owner = waiting.pop(0)
        function: Any = item.__func__ if type(item) is MethodType else item
        if type(function) is FunctionType:
            module = text(function.__module__) or ""
            if function not in found and module.partition(".")[0] not in _LIBRARIES:
                found.append(function)
                named = (value for _, value in _named_values(function, owner))
                waiting += [(value, owner) for value in named if type(value) is FunctionType]
            continue
        methods = [of_class(type(item), name) for name in _MAKERS]
        waiting += [(method, type(item)) for method in methods if type(method) is FunctionType]
    return found


def _makers(thing: Any, deep: int) -> Iterator[Any]:
    """The object and the parts of it that have code: a dataset in a Subset, a transform."""
    yield thing
    if deep and type(thing) not in (FunctionType, MethodType):
        for value in list(held_by(thing).values())[:_ATTRIBUTES]:
            for part in value[:_VALUES] if type(value) in (list, tuple) else (value,):
                if callable(part) or of_class(type(part), "__getitem__") is not None:
                    yield from _makers(part, deep - 1)


def _named_values(function: FunctionType, owner: type) -> Iterator[tuple[str, Any]]:
    """The values of the names in its code, as far as no code has to run to find them."""
    for code in _with_inner(function.__code__):
        for name in code.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]
            yield name, of_class(owner, name)
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
        return repr(value[:_CHARACTERS] if type(value) in (str, bytes) else value)
    kind = type(value)
    if kind is PATH:
        return str(value)
    name = name_of(kind)
    # Exactly these types: a class of the program may run any code.
    if kind in (list, tuple, range):
        return f"{name}[{len(value)}]({_texts(value, deep)})"
    if kind is dict:
        return f"{name}[{len(value)}]({_describe_arguments(value, deep)})"
    if is_array(value):
        return f"{name}{tuple(value.shape)}{numbers(value)}"
    held = held_by(value) if deep else None
    return f"{name}({_describe_arguments(held, deep)})" if held else name


def _texts(values: Sequence[Any], deep: int) -> str:
    return (
        ",".join(_value(values[at], deep - 1) for at in _spread(len(values), _VALUES))
        if deep
        else ""
    )


def _describe_arguments(held: dict[Any, Any], deep: int) -> str:
    some = list(held.items())[:_VALUES] if deep else ()
    return ",".join(
        f"{key if type(key) in (str, int) else '?'}:{_value(value, deep - 1)}"
        for key, value in some
    )


# -- The sampler and the dataset of the DataLoader


SOURCES_MAX = 64
_PARTS, _BATCH_VALUES = 3, 64


@dataclass
class _Source:
    """What is known of one sampler.

    `at`: the iterator of the last pass. `passes` over the data have begun, `seen` when the agent
    looked last. `batch`: a digest of the first batch of the last one, 0 if it has no numbers.
    `moved`: two passes have begun with different epochs. `trained`: the numbers of the first two
    passes in which the optimizer has made steps.
    """

    feed: Feed
    sampler: ref[Any] | None = None
    at: ref[Any] | None = None
    passes: int = 0
    seen: int = 0
    batch: int = 0
    epoch: int | None = None
    moved: bool = False
    trained: set[int] = field(default_factory=set)
    steps: int = 0
    taken: int = 0


class SamplerHistory:
    """Remembers samplers by their id, and holds none of them. `begin` runs on the thread that
    trains, `look` on the agent's."""

    def __init__(self) -> None:
        self._sources: dict[int, _Source] = {}
        self._now: _Source | None = None
        self._last: tuple[_Source | None, int, int] = (None, 0, 0)

    def begin(self, iterator: Any, batch: Any) -> None:
        """The iterator is in use now. It has given this batch, the first one of a pass, or the
        first one after those of another iterator."""
        index = peek(iterator, "_index_sampler")
        if index is None:
            return
        sampler = peek(index, "sampler", default=index)
        source = self._sources.get(id(sampler))
        # A sampler that is created again for each epoch often has the id of the last one.
        if source is None or (source.sampler is not None and source.sampler() is not sampler):
            if len(self._sources) >= SOURCES_MAX:
                self._sources.clear()
            feed = _describe(iterator, index, sampler)
            source = self._sources[id(sampler)] = _Source(feed, _reference(sampler))
        # A validation may come in between: then the rest of the pass goes on.
        if source.at is None or source.at() is not iterator:
            _begin(source, sampler)
            source.at, source.batch = ref(iterator), digest_of_batch(batch)
        self._now = source

    def restart(self, iterator: Any) -> None:
        """This iterator begins another pass: it has persistent workers."""
        for source in self._sources.values():
            if source.at is not None and source.at() is iterator:
                source.at = None

    def look(self, steps: int, batches: int, group: str | None) -> Feed | None:
        """What feeds the loader that has begun a pass last.

        `steps`, `batches`: the rank's counts so far. `group`: where gradients are averaged.
        """
        source, (last, steps_before, batches_before) = self._now, self._last
        if source is None:
            return None
        passes = source.passes
        # A validation may come in between: each loader has its own counts.
        if last is source:
            # If both have grown between two samples of the same loader, it feeds the optimizer.
            source.steps += max(0, min(steps - steps_before, batches - batches_before))
            source.taken += max(0, batches - batches_before)
            if steps > steps_before and len(source.trained) < 2:
                # A pass that only measures makes none. Steps since the last look are those of the
                # pass that it saw.
                source.trained.add(source.seen)
        source.seen = passes
        self._last = (source, steps, batches)
        return msgspec.structs.replace(
            source.feed,
            epoch=source.epoch,
            epochs=passes,
            steps=source.steps,
            taken=source.taken,
            same_epoch=len(source.trained) > 1 and not source.moved and source.epoch is not None,
            group=group,
            batch=source.batch or None,
        )


def _reference(thing: Any) -> ref[Any] | None:
    try:
        return ref(thing)
    except TypeError:
        return None


def _begin(source: _Source, sampler: Any) -> None:
    shuffles = _is_of(sampler, "torch.utils.data.distributed", "DistributedSampler") and peek(
        sampler, "shuffle"
    )
    epoch = whole(peek(sampler, "epoch")) if shuffles else None
    source.moved |= source.passes > 0 and epoch != source.epoch
    source.passes, source.epoch = source.passes + 1, epoch


def _is_of(thing: Any, module: str, name: str) -> bool:
    """Whether it is of that class of torch's or derived from it."""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and is_a(thing, cls)


def _is_torch_sampler(thing: Any, *names: str) -> bool:
    kind = type(thing)
    return module_of(kind) == "torch.utils.data.sampler" and name_of(kind) in names


def _describe(iterator: Any, index: Any, sampler: Any) -> Feed:
    dataset = peek(iterator, "_dataset")
    plain = (
        _is_torch_sampler(index, "BatchSampler", "SequentialSampler", "RandomSampler")
        and _is_torch_sampler(sampler, "SequentialSampler", "RandomSampler")
        and dataset is not None
        and peek(sampler, "data_source", default=dataset) is dataset
        and not peek(sampler, "replacement")
        and not _is_of(dataset, "torch.utils.data.dataset", "IterableDataset")
    )
    length = _length(iterator) if plain else None
    programs = dataset, peek(iterator, "_collate_fn"), peek(iterator, "_worker_init_fn")
    return Feed(
        name_of(type(sampler)),
        name_of(type(index)),
        name_of(type(dataset)),
        plain and peek(sampler, "_num_samples") is None,
        length,
        first=fingerprint(dataset) if plain else None,
        holds=plain and holds(dataset, length) and not asks_rank(*programs),
    )


def _length(iterator: Any) -> int | None:
    """How many samples the sampler draws in this pass; None if it has drawn all already.

    torch's samplers have asked the dataset for it: the range of one, and a variable of the other,
    have the answer.
    """
    generator = peek(iterator, "_sampler_iter")
    for inner in _held_in(generator):
        if type(inner) is type(iter(range(0))):
            return int(inner.__reduce__()[1][0].stop)  # type: ignore[union-attr]
        frame = inner.gi_frame if type(inner) is GeneratorType else None
        if frame is not None and (drawn := whole(frame.f_locals.get("n"))) is not None:
            return drawn
    return None


def _held_in(generator: Any) -> Iterator[Any]:
    """What a generator holds, also values without a name; first itself."""
    yield generator
    if type(generator) is GeneratorType and generator.gi_frame is not None:
        yield from gc.get_referents(generator, generator.gi_frame)


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
