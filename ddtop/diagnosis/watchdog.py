"""What ends a wait on NCCL, and when, from torch's version and the variables of the ranks.

Source: torch's ProcessGroupNCCL.cpp. `Watchdog::runLoop`: a collective that has timed out is
reported, then the watchdog sleeps four times TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC, then
`handleException` ends the process, unless TORCH_NCCL_ASYNC_ERROR_HANDLING says otherwise.
`HeartbeatMonitor::runLoop`: a report ends the process too, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC after
the dump, if TORCH_NCCL_DUMP_ON_TIMEOUT and TORCH_NCCL_ENABLE_MONITORING are on. Read in the
versions of torch 2.6 and 2.10; docs/explanation/nccl.md has it as a table.

From torch 2.15 on "nccl" is nccl2 unless TORCH_DIST_USE_NCCL2=0. Its watchdog ends the process at
once and has no monitor beside it: nccl2/ProcessGroupNCCL.cpp, `handleWatchdogFailure`,
`abortProcess`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ddtop.model.state.facts import RankFacts
from ddtop.words.units import duration

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
        open_ones = [one for one in rank.comm.open_collectives if one.timeout_ms]
        if open_ones:
            first = min(open_ones, key=lambda one: (one.created_unix_ns or since_unix_ns, one.seq))
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
    if not settings.monitors:
        return f"nothing ends this wait: {variable}, and TORCH_NCCL_ENABLE_MONITORING=0"
    if settings.dumps is False:
        return f"nothing ends this wait: {variable}, and TORCH_NCCL_DUMP_ON_TIMEOUT=0"
    if settings.dumps is None:
        return f"perhaps nothing ends this wait: {variable} lets torch's watchdog report it only"
    return None


def _line(settings: Settings, timeout_s: float, waited_s: float) -> str:
    timeout = f"timeout {duration(timeout_s)}"
    if settings.blocking:
        if waited_s < timeout_s:
            return (
                f"the wait raises an error in {duration(timeout_s - waited_s)} ({timeout},"
                " TORCH_NCCL_BLOCKING_WAIT)"
            )
        return f"the {timeout} of TORCH_NCCL_BLOCKING_WAIT has passed"
    who, after_s = "torch's watchdog ends the ranks", settings.report_s
    dumps = settings.dumps
    if settings.second and settings.handling not in _TEARS_DOWN:
        # The dump is made only if the process is ended.
        who, dumps = "torch's watchdog aborts NCCL, and the wait raises an error,", False
    elif settings.handling not in _TEARS_DOWN:
        who, after_s = "torch's heartbeat monitor ends the ranks", settings.heartbeat_s
    # Entries are known here, so torch records; without the recorder there is nothing to dump.
    dump = ", with a dump of its flight recorder" if dumps else ""
    left_s = timeout_s + after_s - waited_s
    if left_s > 0:
        then = f", then {duration(after_s)}" if after_s else ""
        return f"{who} in {duration(left_s)} ({timeout}{then}){dump}"
    return f"torch's {timeout} has passed: it should have ended the ranks"


def _is_on(environment: Mapping[str, str], *names: str) -> bool:
    return next((environment[name] for name in names if name in environment), "0") not in _OFF


def _number(environment: Mapping[str, str], name: str, usual: int) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else usual


def _version(torch: str | None) -> tuple[int, ...]:
    parts = (torch or "").partition("+")[0].split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()
