"""The actions of `ddtop watch` after a critical finding: when, how often, and in which order.

First the report is written, then command and webhook get the event, then `--then` is run. Nothing
here blocks: `look` is called twice a second and starts the actions that are due.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddtop.diagnosis.finding import CRITICAL
from ddtop.viewer.changes import APPEARED, CLEARED, ENDED, Change

if TYPE_CHECKING:
    from ddtop.cli.on_critical import OnCritical
    from ddtop.cli.webhook import Webhook

REPORT_S = 120.0
"""A report of a large job with stacks takes some seconds; one that takes longer than this hangs."""
LEAVE_POLL_S = 0.1
_Key = tuple[str, tuple[int, ...], str | None]


@dataclass(frozen=True, slots=True)
class Rules:
    """When to act. `for_s`: how long the finding must last. `cooldown_s`: the pause between two
    acts for the same kind of finding. `once`: act only once.
    """

    for_s: float = 0.0
    cooldown_s: float = 0.0
    once: bool = False


@dataclass
class _Firing:
    """An event whose actions are in progress."""

    event: dict[str, Any]
    environment: dict[str, str]
    report: subprocess.Popen[bytes] | None = None
    path: Path | None = None
    began: float = field(default_factory=time.monotonic)


@dataclass
class Actions:
    """The actions; None for those that were not asked for. `report`: the folder for reports."""

    command: OnCritical | None = None
    webhook: Webhook | None = None
    then: OnCritical | None = None
    report: Path | None = None


class Guard:
    """Decides and acts for one job. Not thread-safe."""

    def __init__(
        self,
        job: str,
        rules: Rules,
        actions: Actions,
        complain: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job, self._rules, self._actions = job, rules, actions
        self._complain, self._clock = complain, clock
        self._pending: dict[_Key, tuple[float, dict[str, Any]]] = {}
        self._acted: dict[str, float] = {}
        self._told: set[_Key] = set()
        self._firing: list[_Firing] = []
        self.scheduler: dict[str, str] = {}
        """Variables of the job's scheduler, for the commands: SLURM_JOB_ID."""

    def take(self, change: Change, event: dict[str, Any]) -> None:
        """Take a change. `event`: the same as JSON."""
        finding = change.finding
        if change.event == ENDED:
            self._pending = {
                key: (float("-inf"), waiting) for key, (_, waiting) in self._pending.items()
            }
            self.look()
            if self._told and self._actions.webhook is not None:
                self._actions.webhook.put(event)
            return
        if finding is None:
            return
        key = (str(finding.kind), finding.ranks, finding.group if not finding.ranks else None)
        if change.event == APPEARED and finding.severity == CRITICAL:
            self._pending[key] = (self._clock(), event)
            self.look()
        elif change.event == CLEARED:
            self._pending.pop(key, None)
            if key in self._told:
                self._told.discard(key)
                if self._actions.webhook is not None:
                    self._actions.webhook.put(event)

    def look(self) -> None:
        """Start the actions that are due."""
        now = self._clock()
        for key, (since, event) in list(self._pending.items()):
            if now - since < self._rules.for_s:
                continue
            if now - self._acted.get(key[0], float("-inf")) < self._rules.cooldown_s:
                # The finding waits: if it still exists after the pause, it deserves another act.
                continue
            del self._pending[key]
            if self._rules.once and self._acted:
                continue
            self._acted[key[0]] = now
            self._told.add(key)
            self._firing.append(self._begun(event))
        self._firing = [one for one in self._firing if not self._went_on(one)]
        for action in (self._actions.command, self._actions.then):
            if action is not None:
                action.look()

    def leave(self) -> None:
        """Wait for the started actions, for each at most its own limit."""
        while self._firing:
            self.look()
            time.sleep(LEAVE_POLL_S)
        for action in (self._actions.command, self._actions.webhook, self._actions.then):
            if action is not None:
                action.leave()

    def _begun(self, event: dict[str, Any]) -> _Firing:
        firing = _Firing(event, variables(event) | self.scheduler)
        if self._actions.report is None:
            return firing
        kind = (event["finding"] or {}).get("kind", "event")
        name = f"{self._job}-{kind}-{event['time_unix_ns'] // 1_000_000_000}.md"
        firing.path = self._actions.report / name
        command = [sys.executable, "-m", "ddtop", "report", self._job, "-o", str(firing.path)]
        try:
            firing.report = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2)
        except OSError as error:
            self._complain(f"--report: {error.strerror}")
            firing.path = None
        return firing

    def _went_on(self, firing: _Firing) -> bool:
        """True once its event has been passed on."""
        if firing.report is not None:
            code = firing.report.poll()
            if code is None and time.monotonic() - firing.began < REPORT_S:
                return False
            if code is None:
                firing.report.kill()
                firing.report.wait()
            if code != 0:
                how = f"exit code {code}" if code is not None else f"no end in {REPORT_S:.0f} s"
                self._complain(f"--report: {how}, the event goes without it")
                firing.path = None
        path = str(firing.path) if firing.path is not None else None
        event = firing.event | ({"report": path} if path is not None else {})
        environment = firing.environment | {"DDTOP_EVENT_REPORT": path or ""}
        data, kind = json.dumps(event).encode() + b"\n", environment["DDTOP_EVENT_KIND"]
        if self._actions.command is not None:
            self._actions.command.start(data, kind, environment)
        if self._actions.webhook is not None:
            self._actions.webhook.put(event)
        if self._actions.then is not None:
            self._actions.then.start(data, kind, environment)
        return True


def variables(event: Mapping[str, Any]) -> dict[str, str]:
    """The event as variables for the environment of a command."""
    finding = event["finding"] or {}
    return {
        "DDTOP_EVENT": str(event["event"]),
        "DDTOP_EVENT_JOB": str(event["job"]),
        "DDTOP_EVENT_KIND": str(finding.get("kind", "")),
        "DDTOP_EVENT_SEVERITY": str(finding.get("severity", "")),
        "DDTOP_EVENT_RANKS": ",".join(map(str, finding.get("ranks", []))),
        "DDTOP_EVENT_TEXT": str(event["text"]),
    }


SCHEDULER_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")


def scheduler_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The batch job of the ranks, for `--then 'scontrol requeue $SLURM_JOB_ID'`. The watcher's own
    environment is right only if the watcher runs inside the same job.
    """
    own = {name: os.environ[name] for name in SCHEDULER_VARIABLES if name in os.environ}
    return own | {name: environment[name] for name in SCHEDULER_VARIABLES if name in environment}
