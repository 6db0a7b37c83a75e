"""PBS Professional and OpenPBS: `qstat` says where a job runs, ssh goes there.

PBS has no command that starts a program in a running job from outside. Its nodes let the owner of
a job in by ssh.

Never tried on a real PBS: the form of its answers is as other programs quote it. To compare:
the reference guide of OpenPBS, "Job Attributes", "Job States" and "qstat".
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

_JOB = re.compile(r"\d+(\[\d+\])?(\.[A-Za-z0-9.-]+)?")
_WAITING = {
    "Q": "queued",
    "H": "held",
    "W": "waiting for its time",
    "T": "in transit",
    "M": "moved",
}
_RUNNING = ("R", "E")


class Pbs:
    """`--pbs JOBID`."""

    name, option = "PBS", "--pbs"

    def find(self, job: str, ddtop: str | None) -> SchedulerTarget:
        """The first host of `exec_host`."""
        if not _JOB.fullmatch(job):
            raise WrongNameError(f"{job!r} is not a PBS job id, such as 4711 or 4711.server")
        code, out, err = asked("qstat", "-f", "-F", "json", job)
        if "Unknown Job" in err:
            raise NoSuchJobError(f"there is no PBS job {job}")
        if "has finished" in err:
            raise NoSuchJobError(f"PBS job {job} is over; ddtop jobs lists what it has left")
        if code:
            raise NoContactError(f"qstat does not answer: {last_line(err)}")
        facts = _facts(out)
        state, owner = (
            str(facts.get("job_state")),
            str(facts.get("Job_Owner", "")).partition("@")[0],
        )
        if state in _WAITING:
            because = facts.get("comment") or _WAITING[state]
            raise NotYetError(f"PBS job {job} has no nodes yet: {because}")
        hosts = [one.partition("/")[0] for one in str(facts.get("exec_host", "")).split("+")]
        if state not in _RUNNING or not hosts[0]:
            raise NoSuchJobError(f"PBS job {job} does not run: its state is {state}")
        if os.getuid() != 0 and owner != getpass.getuser():
            raise NoSuchJobError(f"PBS job {job} is {owner}'s, and only {owner} can look into it")
        return through_ssh(f"PBS job {job}", f"--pbs {job}", hosts, ddtop)


def _facts(text: str) -> dict[str, Any]:
    try:
        [facts] = json.loads(text)["Jobs"].values()
        return dict(facts)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NoContactError("qstat answers with something else than one job in JSON") from None
