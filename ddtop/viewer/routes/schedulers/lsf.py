"""LSF: `bjobs` says where a job runs, ssh goes there.

LSF's `blaunch` works inside a job only.

Never tried on a real LSF: the form of its answers is as other programs quote it. To compare:
"bjobs" and "Customize job information output" of IBM Spectrum LSF, `-o` with `-json`.
"""

from __future__ import annotations

import getpass
import json
import os
import re
from typing import Any

from ddtop.viewer.routes.relay import NoContactError
from ddtop.viewer.routes.schedulers.by_ssh import through_ssh
from ddtop.viewer.routes.schedulers.scheduler import (
    NoSuchJobError,
    NotYetError,
    SchedulerTarget,
    WrongNameError,
    asked,
    last_line,
)

_JOB = re.compile(r"\d+(\[\d+\])?")
_FIELDS = "jobid stat user exec_host pend_reason"
_WAITING = ("PEND", "PSUSP", "WAIT", "FWD_PEND")


class Lsf:
    """`--lsf JOBID`."""

    name, option = "LSF", "--lsf"

    def find(self, job: str, ddtop: str | None) -> SchedulerTarget:
        """The first host of EXEC_HOST."""
        if not _JOB.fullmatch(job):
            raise WrongNameError(f"{job!r} is not an LSF job id, such as 4711 or '4711[3]'")
        code, out, err = asked("bjobs", "-json", "-o", _FIELDS, "-u", "all", job)
        if code and not out.strip():
            if "is not found" in err:
                raise NoSuchJobError(f"there is no LSF job {job}")
            raise NoContactError(f"bjobs does not answer: {last_line(err)}")
        facts = _facts(out)
        if "ERROR" in facts:
            raise NoSuchJobError(f"there is no LSF job {job}: {facts['ERROR']}")
        state, user = facts.get("STAT", ""), facts.get("USER", "")
        if state in _WAITING:
            because = str(facts.get("PEND_REASON") or state).strip()
            raise NotYetError(f"LSF job {job} has no nodes yet: {because}")
        # With several slots on a host it is `4*host`.
        hosts = [one.rpartition("*")[2] for one in str(facts.get("EXEC_HOST", "")).split(":")]
        if state != "RUN" or not hosts[0]:
            raise NoSuchJobError(f"LSF job {job} does not run: its state is {state or 'unknown'}")
        if os.getuid() != 0 and user != getpass.getuser():
            raise NoSuchJobError(f"LSF job {job} is {user}'s, and only {user} can look into it")
        return through_ssh(f"LSF job {job}", f"--lsf {job}", hosts, ddtop)


def _facts(text: str) -> dict[str, Any]:
    try:
        [facts] = json.loads(text)["RECORDS"]
        return dict(facts)
    except (ValueError, KeyError, TypeError):
        raise NoContactError("bjobs answers with something else than one job in JSON") from None
