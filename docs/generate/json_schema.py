"""The page of all JSON that ddtop prints: every key with its type and meaning.

`ddtop.present.schemas.KEYS` is the promise. `complaints` compares a real document with it, so a key
that the code adds and nobody describes fails a test, and so does a described key that the code no
longer prints.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ddtop.cli.simulate import moment
from ddtop.diagnosis.finding import Verdict
from ddtop.follow.look import Look
from ddtop.model.facts import Snapshot
from ddtop.model.stacks import Merged, merge
from ddtop.policy import POLICY
from ddtop.present.documents import (
    DIAGNOSE_SCHEMA,
    STACKS_SCHEMA,
    STATUS_SCHEMA,
    diagnose_json,
    stacks_json,
    status_json,
)
from ddtop.present.events import EVENT_SCHEMA, EventLog, event_json
from ddtop.present.gpus import GPUS_SCHEMA, gpus_json
from ddtop.present.jobs import JOBS_SCHEMA
from ddtop.present.schemas import ATTEMPTS_SCHEMA, KEYS, Keys
from ddtop.sim.incidents import SCENARIOS
from ddtop.sim.job import SimulatedJob
from ddtop.wire import frames
from ddtop.wire.records import Stacks
from docs.generate.markdown import code, fenced, head, table

BEGAN_UNIX_NS = 1_700_000_000 * 1_000_000_000
RANKS = 8

TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "int": (int,),
    "number": (int, float),
    "bool": (bool,),
    "object": (dict,),
    "array": (list,),
}

COMMANDS = {
    STATUS_SCHEMA: "ddtop status --json",
    DIAGNOSE_SCHEMA: "ddtop diagnose --json",
    STACKS_SCHEMA: "ddtop stacks --json",
    EVENT_SCHEMA: "ddtop watch --json",
    JOBS_SCHEMA: "ddtop jobs --json",
    ATTEMPTS_SCHEMA: "ddtop jobs --attempts NAME --json",
    GPUS_SCHEMA: "ddtop gpus --json",
}


def page() -> str:
    """`reference/json.md`."""
    lines = head(
        "JSON",
        "docs/generate/json_schema.py",
        "Every command whose output a script may read has `--json`. A document names its format"
        " in `schema`. Within one version a key may be added. No key is removed and none changes"
        " its meaning. Every key is always there.",
        "`null` means *not measured*, `0` means *measured zero*. Times are Unix time in ns, on the"
        " clock of rank 0's host.",
    )
    for schema, keys in KEYS.items():
        lines += [f"## {schema}", "", *fenced([COMMANDS[schema]], "sh")]
        lines += table(
            ("key", "type", "meaning"), ((code(path), *found) for path, found in keys.items())
        )
    found = diagnose_json(*simulated("not-in-collective", 24.0))
    lines += [
        "## An example",
        "",
        "Ranks of a simulated job, one of which has not joined a collective:",
        "",
    ]
    return "\n".join([*lines, *fenced(json.dumps(found, indent=2).split("\n"), "json")])


def simulated(scenario: str, at_s: float) -> tuple[Snapshot, Verdict]:
    """What a viewer sees of a simulated job of `RANKS` ranks, so long after its beginning."""
    return moment(_job(scenario), at_s)


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """(schema, document) of many moments of simulated jobs, of their stacks, events and GPUs."""
    for scenario in SCENARIOS:
        snapshot, verdict = simulated(scenario, 45.0)
        yield STATUS_SCHEMA, status_json(snapshot, verdict)
        yield DIAGNOSE_SCHEMA, diagnose_json(snapshot, verdict)
        for event in EventLog(POLICY).take(Look(snapshot, verdict)):
            yield EVENT_SCHEMA, event_json(event, snapshot.job)
        gpus = [rank.gpu.own.gpu for rank in snapshot.ranks if rank.gpu.own is not None]
        yield GPUS_SCHEMA, gpus_json(gpus, None, POLICY)
        yield (
            STACKS_SCHEMA,
            stacks_json(_stacks(scenario), snapshot.job, True, snapshot.time_unix_ns),
        )


def complaints(schema: str, document: Any) -> list[str]:
    """Where a document and `KEYS` differ: undescribed and missing keys, and values of another
    type.
    """
    return list(_differences(KEYS[schema], "", document))


def _differences(keys: Keys, path: str, value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _differences(keys, f"{path}[]", one)
    if not isinstance(value, dict):
        return
    below = {name for name in keys if name.rpartition(".")[0] == path}
    told = {f"{path}.{key}".lstrip("."): one for key, one in value.items()}
    yield from (f"{name} is not described" for name in sorted(told.keys() - below))
    yield from (f"{name} is described and missing" for name in sorted(below - told.keys()))
    for name in sorted(told.keys() & below):
        if not _fits(keys[name][0], told[name]):
            yield f"{name} is {told[name]!r}, described as {keys[name][0]}"
        yield from _differences(keys, name, told[name])


def _fits(described: str, value: Any) -> bool:
    kind, null = described.removesuffix(" or null"), described.endswith(" or null")
    if value is None:
        return null
    outer, _, inner = kind.partition(" of ")
    if inner:
        return isinstance(value, list) and all(_fits(inner, one) for one in value)
    # True is an int for Python, and none for JSON.
    return isinstance(value, TYPES[outer]) and (outer == "bool" or not isinstance(value, bool))


def _job(scenario: str) -> SimulatedJob:
    return SimulatedJob(RANKS, 0, SCENARIOS[scenario], began_unix_ns=BEGAN_UNIX_NS)


def _stacks(scenario: str) -> Merged:
    found = _job(scenario).stacks(BEGAN_UNIX_NS + 45 * 1_000_000_000, "r")
    records = [frames.open_record(frames.open_envelope(data)) for data in found]
    return merge([one for one in records if isinstance(one, Stacks)])
