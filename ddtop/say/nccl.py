"""Lines of evidence from NCCL: its status service (RAS), and when torch's watchdog ends a wait."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ddtop.diagnosis.nccl import GONE, KnownRanks, is_cut_off
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.policy import Policy
from ddtop.say.said import that_hold
from ddtop.wire.records import Communicator, RasRank
from ddtop.words.sentences import rank_list, ranks_text, verb
from ddtop.words.units import duration

_STATES = {
    "init": ("has not finished building", "have not finished building"),
    "error": ("has an error in", "have an error in"),
    "abort": ("has aborted", "have aborted"),
    "finalize": ("is taking down", "are taking down"),
    "left": ("answers but is not in", "answer but are not in"),
}
"""The state of a rank in its communicator, singular and plural. `left`: it has destroyed the
communicator, or never joined it.
"""


def ras_lines(snapshot: Snapshot, policy: Policy) -> list[str]:
    """What the service reported: which ranks NCCL calls dead, and which have launched fewer
    collectives. Empty if it has reported nothing lately.
    """
    answer = snapshot.ras
    if answer is None or (snapshot.ras_age_s or 0.0) > policy.ras_fresh_s:
        return []
    if answer.why is not None:
        return [f"NCCL's status service did not answer: {answer.why}"]
    lines: list[str] = []
    known = KnownRanks(snapshot, answer)
    for communicator in answer.communicators:
        # The text does not say which job a communicator belongs to: if two jobs share the port, it
        # may have both.
        ranks = [
            rank for rank in communicator.ranks if not answer.text or known.number(rank) is not None
        ]
        lines += _gone_lines(communicator, ranks, known)
        lines += _in_states(ranks, known)
        lines += _uneven_lines(communicator, ranks, known)
        lines += [f"NCCL: {problem}" for problem in communicator.problems[:3]]
    if (
        not lines
        and answer.communicators
        and all(communicator.state == "ok" for communicator in answer.communicators)
    ):
        count = len(answer.communicators)
        lines.append(
            f"NCCL's own view: {count} {verb(count, 'communicator', 'communicators')}, no"
            " peer missing or dead"
        )
    return list(dict.fromkeys(lines))[:8]


def _names(known: KnownRanks, ranks: Sequence[RasRank]) -> str:
    """`rank 2`. Where the rank in the job is not known: its number in the communicator."""
    numbers = [number for rank in ranks if (number := known.number(rank)) is not None]
    if len(numbers) == len(ranks):
        return ranks_text(sorted(numbers))
    return (
        f"its {'rank' if len(ranks) == 1 else 'ranks'} {rank_list(rank.number for rank in ranks)}"
    )


def building_line(ranks: Collection[RankFacts]) -> str | None:
    """Which ranks wait in NCCL while it builds a communicator."""
    found = [rank.rank for rank in ranks if any(group.building for group in rank.comm.groups)]
    if not found:
        return None
    return (
        f"{ranks_text(found)} {verb(found, 'is', 'are')} in the first collective of this group:"
        " NCCL builds its communicator there and needs all members"
    )


def _gone_lines(
    communicator: Communicator, ranks: Sequence[RasRank], known: KnownRanks
) -> list[str]:
    if is_cut_off(communicator):
        gone = sum(rank.state in GONE for rank in communicator.ranks)
        return [
            f"NCCL: the process that answered reaches {communicator.size - gone} of"
            f" {communicator.size} ranks"
        ]
    by_state: dict[str, list[RasRank]] = {}
    for rank in ranks:
        if rank.state in GONE:
            by_state.setdefault(rank.state, []).append(rank)
    return [f"NCCL calls {_names(known, found)} {state}" for state, found in by_state.items()]


def _in_states(ranks: Sequence[RasRank], known: KnownRanks) -> list[str]:
    lines = []
    for state, (one, several) in _STATES.items():
        found = [rank for rank in ranks if rank.state == state]
        if found:
            of = " of the others" if state == "left" else ""
            lines.append(
                f"NCCL: {_names(known, found)} {verb(found, one, several)} a communicator{of}"
            )
    return lines


def _uneven_lines(
    communicator: Communicator, ranks: Sequence[RasRank], known: KnownRanks
) -> list[str]:
    """Launches are counted when a rank enqueues a collective: a rank with fewer than most has not
    joined.
    """
    lines = []
    for op, usual in communicator.usual.items():
        others = [rank for rank in ranks if rank.counts.get(op, usual) != usual]
        subject = (
            "the others"
            if len({rank.counts[op] < usual for rank in others}) == 1
            else "most others"
        )
        for some in (
            [rank for rank in others if rank.counts[op] < usual],
            [rank for rank in others if rank.counts[op] > usual],
        ):
            counts = sorted({rank.counts[op] for rank in some})
            if counts:
                text = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
                lines.append(
                    f"NCCL: {_names(known, some)} {verb(some, 'has', 'have')} launched"
                    f" {text} {op}, {subject} {usual:,}"
                )
    return lines


# -- What ends a wait on NCCL, and when, from torch's version and the variables of the ranks
#
# Source: torch's ProcessGroupNCCL.cpp. `Watchdog::runLoop`: a collective that has timed out is
# reported, then the watchdog sleeps four times TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC, then
# `handleException` ends the process, unless TORCH_NCCL_ASYNC_ERROR_HANDLING says otherwise.
# `HeartbeatMonitor::runLoop`: a report ends the process too, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC after
# the dump, if TORCH_NCCL_DUMP_ON_TIMEOUT and TORCH_NCCL_ENABLE_MONITORING are on. Read in the
# versions of torch 2.6 and 2.10; docs/explanation/nccl.md has it as a table.
#
# From torch 2.15 on "nccl" is nccl2 unless TORCH_DIST_USE_NCCL2=0. Its watchdog ends the process at
# once and has no monitor beside it: nccl2/ProcessGroupNCCL.cpp, `handleWatchdogFailure`,
# `abortProcess`.


DUMPS_FROM = (2, 10)
"""From this version on, torch dumps at a timeout unless a variable switches it off."""
NCCL2_FROM = (2, 15)
_OFF = ("0", "")
_TEARS_DOWN = ("1", "3")
"""TearDown and SkipCleanUp of `ErrorHandlingMode`."""


@dataclass(frozen=True)
class Settings:
    """The settings in the variables of a rank. `dumps` None: not known for this version. `second`:
    "nccl" is nccl2.
    """

    handling: str
    blocking: bool
    dumps: bool | None
    monitors: bool
    report_s: float
    heartbeat_s: float
    second: bool = False


def settings_of(environment: Mapping[str, str], torch: str | None) -> Settings:
    """The settings that torch takes from these variables, with its own defaults."""
    second = _version(torch) >= NCCL2_FROM and environment.get("TORCH_DIST_USE_NCCL2") != "0"
    dump = environment.get("TORCH_NCCL_DUMP_ON_TIMEOUT")
    if second:
        dump = environment.get("TORCH_FR_DUMP_ON_TIMEOUT", dump)
    known = _version(torch) >= DUMPS_FROM or None
    return Settings(
        handling=environment.get(
            "TORCH_NCCL_ASYNC_ERROR_HANDLING", environment.get("NCCL_ASYNC_ERROR_HANDLING", "3")
        ),
        blocking=_is_on(environment, "TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"),
        dumps=dump not in _OFF if dump is not None else known,
        monitors=environment.get("TORCH_NCCL_ENABLE_MONITORING", "1") not in _OFF,
        report_s=0.0
        if second
        else 4 * _number(environment, "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", 15_000) / 1000,
        heartbeat_s=_number(environment, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", 480),
        second=second,
    )


def watchdog_line(ranks: Collection[RankFacts], since_unix_ns: int, now_unix_ns: int) -> str | None:
    """A line that says what ends the wait, and when, or that nothing will.

    None for other backends, and if the timeout is not known. `since_unix_ns`: the start of the
    wait, if the recorder does not know when a collective was made.
    """
    for rank in ranks:
        hello = rank.hello
        if hello is None or "nccl" not in (hello.backend or ""):
            continue
        settings = settings_of(hello.environment, hello.torch)
        if nothing := _nothing_ends(settings):
            return nothing
        open_ones = [
            collective for collective in rank.comm.open_collectives if collective.timeout_ms
        ]
        if open_ones:
            first = min(
                open_ones,
                key=lambda collective: (
                    collective.created_unix_ns or since_unix_ns,
                    collective.seq,
                ),
            )
            waited_s = (now_unix_ns - (first.created_unix_ns or since_unix_ns)) / 1e9
            return _line(settings, (first.timeout_ms or 0) / 1000, waited_s)
    return None


def _nothing_ends(settings: Settings) -> str | None:
    if settings.blocking or settings.handling in _TEARS_DOWN:
        return None
    variable = f"TORCH_NCCL_ASYNC_ERROR_HANDLING={settings.handling or 0}"
    if settings.second:
        # CleanUpOnly aborts the communicator, and the ranks that wait get an error.
        return None if settings.handling == "2" else f"nothing ends this wait: {variable}"
    nothing = f"nothing ends this wait: {variable}, and"
    perhaps = f"perhaps nothing ends this wait: with {variable} torch's watchdog only reports it"
    found = that_hold(
        (not settings.monitors, f"{nothing} TORCH_NCCL_ENABLE_MONITORING=0"),
        (settings.dumps is False, f"{nothing} TORCH_NCCL_DUMP_ON_TIMEOUT=0"),
        (settings.dumps is None, perhaps),
    )
    return found[0] if found else None


def _line(settings: Settings, timeout_s: float, waited_s: float) -> str:
    timeout = f"timeout {duration(timeout_s)}"
    if settings.blocking:
        if waited_s < timeout_s:
            return (
                f"the wait raises an error in {duration(timeout_s - waited_s)} ({timeout},"
                " TORCH_NCCL_BLOCKING_WAIT)"
            )
        return f"the {timeout} of TORCH_NCCL_BLOCKING_WAIT has passed"
    consequence, after_s = "torch's watchdog ends the ranks", settings.report_s
    dumps = settings.dumps
    if settings.second and settings.handling not in _TEARS_DOWN:
        # The dump is made only if the process is ended.
        consequence, dumps = "torch's watchdog aborts NCCL, and the wait raises an error,", False
    elif settings.handling not in _TEARS_DOWN:
        consequence, after_s = "torch's heartbeat monitor ends the ranks", settings.heartbeat_s
    # Entries are known here, so torch records; without the recorder there is nothing to dump.
    dump = ", with a dump of its flight recorder" if dumps else ""
    left_s = timeout_s + after_s - waited_s
    if left_s > 0:
        then = f", then {duration(after_s)}" if after_s else ""
        return f"{consequence} in {duration(left_s)} ({timeout}{then}){dump}"
    return f"torch's {timeout} has passed; it should have ended the ranks"


def _is_on(environment: Mapping[str, str], *names: str) -> bool:
    return next((environment[name] for name in names if name in environment), "0") not in _OFF


def _number(environment: Mapping[str, str], name: str, usual: int) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else usual


def _version(torch: str | None) -> tuple[int, ...]:
    parts = (torch or "").partition("+")[0].split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()
