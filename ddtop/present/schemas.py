"""JSON schemas of all documents that ddtop prints, made from one table of their keys.

`KEYS` has every key by its path, with type and meaning. A test fails if the code prints a key that
is not described, or no longer prints a described key. The reference page and `ddtop schema` are
made from this table. The documents are dictionaries and not Structs, so that a change of the model
changes no promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddtop.present.documents import DIAGNOSE_SCHEMA, STACKS_SCHEMA, STATUS_SCHEMA
from ddtop.present.events import EVENT_SCHEMA
from ddtop.present.gpus import GPUS_SCHEMA
from ddtop.present.jobs import JOBS_SCHEMA

Keys = Mapping[str, tuple[str, str]]
"""By path, `ranks[].place.line`: (type, meaning). A type is one of `_PLAIN`, with ` or null`
where it may be missing.
"""
_CHAIN: Keys = {
    "chain": (
        "array of object",
        "what it waits for while it makes no progress, to the end; empty if not known",
    ),
    "chain[].resource": (
        "string",
        (
            "`child`, `process`, `pipe`, `file lock`, `connection`, `mount`, `name lookup`,"
            " `signal`, `debugger`, `lock`, `object` (a queue, a future, an event), `thread`,"
            " `task`, `loop`, `retry`, `rpc` or `store key`"
        ),
    ),
    "chain[].named": (
        "string",
        "a path, an address, the text of a condition or of a statement",
    ),
    "chain[].who": (
        "string or null",
        "the program, the thread or the task that has it; of a retry the exception",
    ),
    "chain[].pid": ("int or null", "of a process"),
    "chain[].host": ("string or null", "of a process on another host than the rank"),
    "chain[].rank": ("int or null", "of a process that is a rank of this job"),
    "chain[].nobody": ("bool", "all were looked at, and none has it"),
    "chain[].circle": ("bool", "the one that has it stands earlier in the chain"),
    "chain[].text": ("string", "the step in words"),
}
_FINDING: Keys = {
    "kind": ("string", "the kind; its name never changes"),
    "severity": ("string", "`critical`, `warning` or `info`"),
    "ranks": ("array of int", "the ranks at fault"),
    "victims": ("array of int", "the ranks that wait for them"),
    "since_unix_ns": ("int", "when the problem began, not when ddtop saw it"),
    "summary": ("string", "one sentence: who, where instead, since when, who waits"),
    "evidence": ("array of string", "numbers and stack lines"),
    "advice": ("string", "the next step"),
    "patience_s": (
        "number or null",
        "the wait is critical once it has lasted this long; null if it stays a warning, and in"
        " findings that know no such time",
    ),
    "because": ("string or null", "why the others may wait so long"),
    **_CHAIN,
    "group": ("string or null", "the process group"),
    "op": ("string or null", "the collective"),
    "seq": ("int or null", "the number of the collective in its group"),
    "group_meaning": ("string or null", "what that group is for: `dp`, `tp`, `pp`, ..."),
    "group_name": ("string or null", "that group as the sentence names it: `default_pg`"),
    "group_ranks": ("array of int or null", "the members of that group"),
}
ATTEMPTS_SCHEMA = "ddtop.attempts/1"
_NEXT: Keys = {
    "do": ("string", "`stop` or `restart`"),
    "reason": ("string", "why"),
    "without": ("array of string", "restart without these hosts"),
}
_ENDED: Keys = {
    "reason": ("string", "how the job ended"),
    "first_rank": ("int or null", "the rank that failed first"),
    "time_unix_ns": ("int", "when"),
}
_SYSTEM: Keys = {
    "system": ("object or null", "the jobs that it belongs to; null if it stands alone"),
    "system.name": ("string", "the name of the job in it that started first"),
    "system.role": ("string", "the role of this job in it: trainer, rollout"),
}
_HEAD: Keys = {
    "schema": ("string", "the name and version of this format"),
    "job": ("string", "the name of the job"),
    **_SYSTEM,
    "live": (
        "bool",
        "false: the job has ended, or its relay does not answer; the document is the last state",
    ),
    "time_unix_ns": ("int", "the moment of the snapshot, on the clock of rank 0's host"),
    "world_size": ("int", "the number of ranks"),
}
_HEALTH: Keys = {
    "health": (
        "string",
        "`ok`, `warning`, `critical` or `unknown`: unknown while the relay is silent",
    ),
    "contact": ("string or null", "why health is unknown"),
    "contact_age_s": ("number or null", "how long the relay has been silent"),
}
_PROBES_OFF: Keys = {
    "probes_off": ("array of object", "probes of the agents that are off now, by rank"),
    "probes_off[].rank": ("int", "the global rank"),
    "probes_off[].probe": ("string", "the probe"),
    "probes_off[].why": ("string", "why it is off"),
}

_PROGRESS: Keys = {
    "source": ("string", "what counts the steps or names the phase: hf-trainer, user, tqdm, ..."),
    "step": ("int or null", "training steps made so far"),
    "total_steps": ("int or null", "steps that the whole training will make"),
    "epoch": ("number or null", "passes over the data made so far; may be a fraction"),
    "total_epochs": ("number or null", "passes that the whole training will make"),
    "phase": (
        "string or null",
        "train, validate, test, checkpoint, compile, sanity-check, idle, or the program's own word",
    ),
    "steps_per_s": ("number or null", "steps per second in the last half minute of this phase"),
    "samples_per_s": ("number or null", "samples per second of the whole job, over the same time"),
    "tokens_per_s": ("number or null", "tokens per second of the whole job, over the same time"),
    "loss": ("number or null", "the last loss that the framework has computed on the CPU"),
    "loss_finite": ("bool or null", "false: that loss is nan or infinite, and `loss` is null"),
    "lr": ("number or null", "the learning rate"),
    "eta_s": ("number or null", "seconds until `total_steps` at the speed of the last ten minutes"),
    "since_unix_ns": ("int or null", "when the phase began"),
    "usual_s": ("number or null", "the usual length of this phase: the median of those that ended"),
    "longest_s": ("number or null", "the longest of them"),
    "phases_ended": ("int", "how many phases of this name have ended"),
}


def _below(prefix: str, keys: Keys) -> dict[str, tuple[str, str]]:
    return {f"{prefix}.{name}": found for name, found in keys.items()}


KEYS: Mapping[str, Keys] = {
    STATUS_SCHEMA: {
        **_HEAD,
        **_HEALTH,
        **_PROBES_OFF,
        "progress": (
            "object or null",
            "progress of the training, as its framework counts it; null if none does",
        ),
        **_below("progress", _PROGRESS),
        "pace": (
            "object or null",
            "how fast the job trains, without validations and checkpoints; null at first",
        ),
        "pace.unit": ("string", "tokens or samples of the whole job, or steps"),
        "pace.per_s": ("number", "in the last two minutes of training, median over the ranks"),
        "pace.start_per_s": ("number or null", "at its start"),
        "pace.ten_minutes_ago_per_s": ("number or null", "ten minutes ago"),
        "pace.last_run_per_s": ("number or null", "at the end of the last run of the same name"),
        "ranks[].progress": ("object or null", "the same for one rank"),
        **_below("ranks[].progress", _PROGRESS),
        "ranks[].expected": (
            "object or null",
            "the region of `ddtop.expected` that the rank is in, or was in at its last report",
        ),
        "ranks[].expected.name": ("string", "its name"),
        "ranks[].expected.since_unix_ns": ("int", "when it began"),
        "ranks[].expected.up_to_s": ("number", "how many seconds the program expects it to take"),
        "ranks": ("array of object", "one for every rank of the job"),
        "ranks[].rank": ("int", "the global rank"),
        "ranks[].host": ("string or null", "the host; null for a rank that was never seen"),
        "ranks[].pid": ("int or null", "the process id as the rank sees it"),
        "ranks[].state": ("string", "the state in one word, as on the screen"),
        "ranks[].blamed": ("bool", "a critical finding blames the rank, whatever its state"),
        "ranks[].phase": ("string", "what the agent reports: starting, joining, running, ..."),
        "ranks[].place": (
            "object or null",
            "the innermost frame of the program's own code in the main thread",
        ),
        "ranks[].place.function": ("string", "its function"),
        "ranks[].place.file": ("string", "its file"),
        "ranks[].place.line": ("int", "its line"),
        "ranks[].place.waits_on": ("string or null", "what the thread waits for below that line"),
        "ranks[].place.class": ("string or null", "the class that the function is a method of"),
        "ranks[].place.framework": (
            "string or null",
            "the package of a training framework that calls it, or that it has called",
        ),
        "ranks[].place.framework_call": ("string or null", "the function of that framework"),
        **_below("ranks[]", _CHAIN),
        "ranks[].iteration": ("int or null", "iterations that the rank has finished"),
        "ranks[].iteration_source": (
            "string or null",
            (
                "what an iteration is: optimizer (steps), batch, ddtop.step (calls), collectives"
                " (their rhythm)"
            ),
        ),
        "ranks[].step_ms": ("number or null", "time of the last iteration"),
        "ranks[].collective": ("object or null", "the open collective"),
        "ranks[].collective.op": ("string", "its operation"),
        "ranks[].collective.group": ("string", "its process group"),
        "ranks[].collective.seq": ("int", "its number in that group"),
        "ranks[].collective.age_s": ("number or null", "how long it has been open"),
        "ranks[].collective.state": ("string", "scheduled, started or completed"),
        "ranks[].collective.group_meaning": ("string or null", "what that group is for: `tp`"),
        "ranks[].calls": (
            "array of object",
            "sends, receives and other calls that have not returned",
        ),
        "ranks[].calls[].name": ("string", "the call"),
        "ranks[].calls[].within": (
            "string or null",
            "the MPI Wait or Sendrecv that it is part of",
        ),
        "ranks[].calls[].peer": ("int or null", "the other rank"),
        "ranks[].calls[].tag": ("int or null", "the tag"),
        "ranks[].calls[].group": ("string or null", "the communicator"),
        "ranks[].calls[].since_unix_ns": ("int", "when it was called"),
        "ranks[].wait_ratio": (
            "number or null",
            "share of the last 10 s in which a collective was pending",
        ),
        "ranks[].loader": ("object or null", "the DataLoader"),
        "ranks[].loader.depth": ("int or null", "batches that are ready"),
        "ranks[].loader.capacity": ("int or null", "batches that fit"),
        "ranks[].loader.workers": ("int", "worker processes"),
        "ranks[].loader.wait_ratio": (
            "number or null",
            "share of the last 10 s spent waiting for a batch",
        ),
        "ranks[].gpu": ("object or null", "the GPU of the rank"),
        "ranks[].gpu.index": ("int", "its index for the driver"),
        "ranks[].gpu.uuid": ("string", "its UUID"),
        "ranks[].gpu.name": ("string", "its model"),
        "ranks[].gpu.known_by": ("string", "how ddtop knows that it is the rank's"),
        "ranks[].gpu.util_ratio": (
            "number or null",
            "share of the last second in which a kernel ran",
        ),
        "ranks[].gpu.used_bytes": ("int or null", "memory in use, by any process"),
        "ranks[].gpu.total_bytes": ("int or null", "memory"),
        "ranks[].gpu.allocated_bytes": ("int or null", "memory in tensors, as torch counts it"),
        "ranks[].gpu.reserved_bytes": ("int or null", "memory that torch's allocator holds"),
        "ranks[].gpu.power_watts": ("number or null", "power"),
        "ranks[].gpu.celsius": ("int or null", "temperature"),
        "ranks[].gpu.sm_mhz": ("int or null", "clock"),
        "ranks[].gpu.throttle": ("array of string or null", "why the driver holds the clock down"),
        "ranks[].gpu.lost": ("bool", "the GPU no longer answers"),
        "ranks[].gpu.waits": (
            "bool or null",
            "the GPU waits inside an NCCL kernel: busy, at low power",
        ),
        "ranks[].nccl": (
            "string or null",
            "`ok`, `wait`, `init` or `err`; null if NCCL is not used",
        ),
        "ranks[].cpu_ratio": ("number or null", "cores in use, children included"),
        "ranks[].rss_bytes": ("int or null", "main memory"),
        "ranks[].report_age_s": ("number or null", "how long ago the agent last reported"),
        "ranks[].coordinates": (
            "object or null",
            'its number in each parallel group, by the purpose of the group: `{"dp": 0, "tp": 3}`',
        ),
        "ranks[].pipeline": (
            "array of object or null",
            "the stages of torch's pipelining that it runs",
        ),
        "ranks[].pipeline[].stage": ("int", "the stage, from 0"),
        "ranks[].pipeline[].stages": ("int", "how many stages there are"),
        "ranks[].pipeline[].microbatches": ("int or null", "microbatches in a step"),
        "ranks[].pipeline[].in_flight": (
            "array of int",
            "microbatches whose forward is done and whose backward has not begun",
        ),
        "ranks[].pipeline[].pass": ("string or null", "`forward` or `backward`, if one runs"),
        "ranks[].pipeline[].microbatch": ("int or null", "the microbatch in that pass, from 0"),
        "ranks[].role": (
            "string or null",
            "the role of the process in vLLM, SGLang, Monarch or torchft, in their words; of a Ray"
            " actor its class",
        ),
        "ranks[].rpc": ("object or null", "its torch.distributed.rpc worker"),
        "ranks[].rpc.name": ("string", "its name"),
        "ranks[].rpc.id": ("int", "its number"),
        "ranks[].rpc.waits": ("int or null", "its own calls that have no answer yet"),
        "ranks[].rpc.serves": ("int or null", "calls from other workers that it is running"),
        "axes": ("array of object", "the dimensions of the grid of ranks, outermost first"),
        "axes[].name": ("string", "what its groups are for: `pp`, `dp`, `tp`, ..."),
        "axes[].size": ("int", "members of one of its groups"),
        "groups": ("array of object", "the process groups"),
        "groups[].name": ("string", "torch's name"),
        "groups[].description": ("string", "torch's description"),
        "groups[].meaning": (
            "string or null",
            ("what the program uses it for, as sentences name it"),
        ),
        "groups[].meanings": ("array of string", "all names that the program has for that"),
        "groups[].backend": ("string", "its backend"),
        "groups[].ranks": ("array of int", "its members; empty if they do not belong to this job"),
        "groups[].foreign_store": (
            "string or null",
            "the store of a group that does not belong to this job; null for other groups",
        ),
    },
    DIAGNOSE_SCHEMA: {
        **_HEAD,
        "ended": ("object or null", "how the job ended; null while it runs"),
        **_below("ended", _ENDED),
        "reporting": ("int", "ranks that report"),
        "iteration": ("int or null", "the iteration of the job"),
        **_PROBES_OFF,
        **_HEALTH,
        "progress": ("object or null", "progress of the training; null if nothing counts it"),
        **_below("progress", _PROGRESS),
        "muted": (
            "array of object",
            "active findings that a person or the program has muted",
        ),
        "muted[].kind": ("string", "the kind"),
        "muted[].ranks": ("array of int", "the ranks at fault"),
        "muted[].summary": ("string", "one sentence, as in `findings`"),
        "muted[].until_unix_ns": ("int", "when the mute ends"),
        "muted[].because": ("string", "the reason that was given, or the expected region"),
        "muted[].by": ("string", "who muted it; ddtop.expected: the program itself"),
        "findings": ("array of object", "the worst first"),
        **_below("findings[]", _FINDING),
        "next": (
            "object or null",
            "what to do after this run; null while it lives, and where nothing speaks for either",
        ),
        **_below("next", _NEXT),
    },
    STACKS_SCHEMA: {
        "schema": _HEAD["schema"],
        "job": ("string or null", "the name of the job; null for processes that belong to none"),
        **_SYSTEM,
        "live": _HEAD["live"],
        "time_unix_ns": _HEAD["time_unix_ns"],
        "groups": (
            "array of object",
            "threads with the same frames, one for each method that took them",
        ),
        "groups[].ranks": ("array of int", "their ranks"),
        "groups[].thread": ("string", "`main`, or the name of the thread"),
        "groups[].frames": ("array of object", "the frames, innermost first"),
        "groups[].frames[].function": ("string", "its function"),
        "groups[].frames[].file": ("string", "its file"),
        "groups[].frames[].line": ("int", "its line"),
        "groups[].frames[].owner": ("string", "whose code it is"),
        "groups[].method": (
            "string",
            "how the stack was taken: by the agent, by a signal, or by py-spy",
        ),
        "groups[].pids": ("array of int", "their processes"),
        "groups[].worker": ("bool", "whether they are DataLoader workers"),
        "groups[].threads": ("int", "how many threads"),
        "groups[].taken_unix_ns": ("int", "when the last of them was taken"),
        "groups[].omitted": ("int", "frames that were cut off"),
        "unanswered": ("array of object", "processes that did not answer"),
        "unanswered[].rank": ("int or null", "the rank; null for a process that is not a rank"),
        "unanswered[].pid": ("int", "the process"),
        "unanswered[].why": ("string", "why"),
    },
    EVENT_SCHEMA: {
        "schema": _HEAD["schema"],
        "time_unix_ns": ("int", "when it happened"),
        "event": ("string", "`appeared`, `cleared`, `joined`, `lost` or `ended`"),
        "job": _HEAD["job"],
        "attempt": ("int", "the restart count of the launcher"),
        "text": ("string", "the event as `ddtop watch` prints it"),
        "finding": ("object or null", "for `appeared` and `cleared`"),
        **_below("finding", _FINDING),
        "ranks": ("array of int", "the ranks that joined; empty when contact is back"),
        "ended": ("object or null", "for `ended`"),
        **_below("ended", _ENDED),
        "progress": ("object or null", "progress of the training then; null if nothing counts it"),
        **_below("progress", _PROGRESS),
    },
    JOBS_SCHEMA: {
        "schema": _HEAD["schema"],
        "jobs": ("array of object", "live jobs first; with `--all` one for each host"),
        "jobs[].job": ("string", "the name"),
        "jobs[].live": ("bool", "it runs"),
        "jobs[].world_size": ("int", "the number of ranks"),
        "jobs[].reporting": ("int", "ranks that report; 0 for an ended job"),
        "jobs[].hosts": ("array of string", "its hosts"),
        "jobs[].script": ("string", "the program"),
        "jobs[].health": (
            "string",
            "`ok`, `warning`, `critical` or `unknown`: unknown if no relay answers",
        ),
        "jobs[].kind": ("string or null", "the kind of its worst finding"),
        "jobs[].summary": (
            "string or null",
            "the sentence of its worst finding, or why its health is unknown",
        ),
        "jobs[].steps_per_s": ("number or null", "iterations a second, median of the ranks"),
        "jobs[].no_progress_s": (
            "number or null",
            "time since any rank last made progress; 0 while one does",
        ),
        "jobs[].health_age_s": ("number or null", "how old these values are"),
        "jobs[].started_unix_ns": ("int", "when it started; 0: not known"),
        "jobs[].role": ("string", "the role of the relay that answers: alone, hub or leaf"),
        "jobs[].user": ("string", "whose job it is"),
        **_below("jobs[]", _SYSTEM),
    },
    ATTEMPTS_SCHEMA: {
        "schema": _HEAD["schema"],
        "job": ("string", "the name"),
        "attempts": ("array of object", "the runs of this name that are over, the newest first"),
        "attempts[].run": ("string", "the run"),
        "attempts[].started_unix_ns": ("int", "when it started"),
        "attempts[].ended_unix_ns": ("int or null", "when it ended; null where that is not known"),
        "attempts[].step": ("int or null", "how far it came"),
        "attempts[].ended": ("string", "what ended it, one sentence"),
        "attempts[].kind": ("string or null", "the kind of the finding about its end"),
        "attempts[].ranks": ("array of int", "the ranks at fault"),
        "attempts[].hosts": ("array of string", "the hosts to blame, not the program"),
        "next": ("object or null", "what to do now; null where nothing speaks for either"),
        **_below("next", _NEXT),
    },
    GPUS_SCHEMA: {
        "schema": _HEAD["schema"],
        "driver": ("string or null", "the version of the driver"),
        "gpus": ("array of object", "the GPUs of this host"),
        "gpus[].index": ("int", "its index for the driver"),
        "gpus[].uuid": ("string", "its UUID"),
        "gpus[].name": ("string", "its model"),
        "gpus[].free": ("bool", "no process computes on it and its memory is free"),
        "gpus[].free_bytes": ("int or null", "free memory"),
        "gpus[].total_bytes": ("int or null", "memory"),
        "gpus[].util_ratio": (
            "number or null",
            "share of the last second in which a kernel ran",
        ),
        "gpus[].power_watts": ("number or null", "power"),
        "gpus[].celsius": ("int or null", "temperature"),
        "gpus[].exclusive": ("bool or null", "compute mode exclusive process"),
        "gpus[].vendor": ("string", "nvidia or amd"),
        "gpus[].prohibited": ("bool", "compute mode prohibited"),
        "gpus[].mig_parent": ("string or null", "for a MIG instance: the GPU that it is part of"),
        "gpus[].lost": ("bool", "it no longer answers"),
        "gpus[].processes": (
            "array of object or null",
            "the processes that hold it; null if the driver does not say",
        ),
        "gpus[].processes[].pid": ("int", "the process"),
        "gpus[].processes[].local": (
            "bool",
            ("whether it is visible from here; false in another container"),
        ),
        "gpus[].processes[].user": ("string or null", "its user"),
        "gpus[].processes[].used_bytes": ("int or null", "its GPU memory"),
        "gpus[].processes[].command": ("string or null", "its command line, redacted"),
    },
}
NAMES: Mapping[str, str] = {
    schema.removeprefix("ddtop.").partition("/")[0]: schema for schema in KEYS
}
"""status -> ddtop.status/1: what `ddtop schema` takes."""
_PLAIN: Mapping[str, str] = {
    "string": "string",
    "int": "integer",
    "number": "number",
    "bool": "boolean",
    "object": "object",
    "array": "array",
}


def json_schema(schema: str) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of one document: `ddtop.status/1`.

    Every key is required, and others are allowed: within a version keys are only added.

    Raises:
        KeyError: there is no such document.
    """
    found = _object(KEYS[schema], "")
    found["properties"]["schema"] = {"const": schema, "description": "name and version"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:ddtop:{schema.removeprefix('ddtop.').replace('/', ':')}",
        "title": schema,
        **found,
    }


def _object(keys: Keys, path: str) -> dict[str, Any]:
    """The object at this path, with all keys below it."""
    below = {name: texts for name, texts in keys.items() if name.rpartition(".")[0] == path}
    return {
        "type": "object",
        "properties": {
            name.rpartition(".")[2]: _value(keys, name, *texts) for name, texts in below.items()
        },
        "required": [name.rpartition(".")[2] for name in below],
    }


def _value(keys: Keys, path: str, described: str, meaning: str) -> dict[str, Any]:
    kind, null = described.removesuffix(" or null"), described.endswith(" or null")
    outer, _, inner = kind.partition(" of ")
    found: dict[str, Any] = {"type": _PLAIN[outer]}
    if outer == "array":
        found["items"] = _item(keys, f"{path}[]", inner)
    elif outer == "object" and any(name.startswith(f"{path}.") for name in keys):
        found = _object(keys, path)
    if null:
        found["type"] = [found["type"], "null"]
    return {"description": meaning, **found}


def _item(keys: Keys, path: str, kind: str) -> dict[str, Any]:
    if kind == "object" and any(name.startswith(f"{path}.") for name in keys):
        return _object(keys, path)
    return {"type": _PLAIN[kind]} if kind else {}
