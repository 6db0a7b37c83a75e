"""The route into a job whose scheduler admits its owner only by ssh."""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddtop.feeds.bridge import NOT_FOUND, WORDS_SHOWN, RemoteJob, SshTarget, start_pipe
from ddtop.feeds.route import NoContactError
from ddtop.link.ssh_pipe import Pipe, PipeError

# -- What all schedulers share: asking them, and the command that goes to a node of a job


ASK_S = 20.0
"""A busy controller of a large cluster answers within seconds; its own timeout is ten."""
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+")
_OVER = ("has expired", "Invalid job id", "(NotFound)", "in a completed pod")
"""What srun and kubectl say when the job has ended meanwhile."""
_FIND_IT = """\
for one in ddtop {here}; do
  if command -v "$one" >/dev/null 2>&1; then exec "$one" "$@"; fi
done
echo "ddtop is not found" >&2
exit 127"""


class NoSuchJobError(Exception):
    """There is no route into that job, now or at all. The text is one sentence."""


class NotYetError(NoSuchJobError):
    """The job waits to be started."""


class WrongNameError(NoSuchJobError):
    """This is not a name of a job for this scheduler."""


@dataclass(frozen=True, slots=True)
class SchedulerTarget:
    """A node of a job, and the command that starts a program there.

    `name`: for sentences. `option`: as it is typed. `before`: the words before the program.
    `nodes`: all nodes of the job, empty if the state folder there is of this job alone.
    `job_name`: how ddtop's name of the job begins where the scheduler's own step is the job.
    `each`: a target for each node, to look at a job that was started without ddtop; empty where the
    scheduler has no way to each of them.
    """

    name: str
    option: str
    before: tuple[str, ...]
    nodes: frozenset[str] = frozenset()
    job_name: str = ""
    ddtop: str | None = None
    each: tuple[SchedulerTarget, ...] = ()

    def words(self, *words: str, columns: int | None = None) -> list[str]:
        """The command that runs ddtop there with these words.

        `columns`: the width of its output.
        """
        before = [*self.before, *(("env", f"COLUMNS={columns}") if columns is not None else ())]
        if self.ddtop:
            return [*before, *self.ddtop.split(), *words]
        here = str(Path(sys.executable).with_name("ddtop"))
        find = _FIND_IT.format(here=here if _PLAIN.issuperset(here) else "")
        return [*before, "sh", "-c", find, "ddtop", *words]

    def start(self, *, asks: bool, on_words: Callable[[str], None] = lambda _: None) -> Pipe:
        """Start the bridge there.

        Raises:
            NoContactError: the scheduler's program is not here.
        """
        return start_pipe(self.words("bridge"), asks, on_words)

    def select(self, jobs: Sequence[RemoteJob], _host: str) -> list[RemoteJob]:
        """Those of the jobs there that belong to the scheduler's job.

        `_host`: the name of the host of the bridge. Nodes may share a state folder with other jobs.
        """
        if not self.nodes:
            return list(jobs)
        hosts = {name.partition(".")[0] for name in (*self.nodes, _host)}
        return [
            job
            for job in jobs
            if (self.job_name and job.entry.job.startswith(self.job_name))
            or (not job.over and job.entry.host.partition(".")[0] in hosts)
        ]

    def sentence(self, error: PipeError, words: Sequence[str]) -> str:
        """What went wrong. `words`: what the scheduler's program has printed."""
        text = "; ".join(list(words)[-WORDS_SHOWN:])
        if error.code == NOT_FOUND or "ddtop is not found" in text:
            return (
                f"{self.ddtop or 'ddtop'} is not found in {self.name}; say where it is: "
                "--remote /path/to/venv/bin/ddtop"
            )
        if any(one in text for one in _OVER):
            return f"{self.name} has ended; ddtop jobs lists what it left, if it was watched"
        return f"no way into {self.name}: {text or error}"


def ask(*command: str, seconds: float = ASK_S, who: str = "") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a scheduler's command. `who`: who it is that answers, within
    so many `seconds`.

    Raises:
        NoContactError: it is not installed here, or does not answer.
    """
    if shutil.which(command[0]) is None:
        raise NoContactError(
            f"{command[0]} is not on this host; ddtop asks it where the job runs, so start ddtop on"
            " a host that has it"
        )
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        raise NoContactError(f"cannot start {command[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise NoContactError(f"{who or command[0]} has not answered for {seconds:g} s") from None
    return done.returncode, done.stdout, done.stderr


def _only_job(text: str, program: str, field: str) -> dict[str, Any]:
    """The facts of the only job in this answer: a list, or by its id."""
    try:
        jobs = json.loads(text)[field]
        [facts] = jobs.values() if isinstance(jobs, dict) else jobs
        return dict(facts)
    except (ValueError, KeyError, TypeError):
        raise NoContactError(f"{program} did not answer with one job in JSON") from None


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return (text.strip().splitlines() or ["no answer"])[-1].strip()


# -- The routes of each scheduler


def through_ssh(
    name: str, option: str, hosts: Sequence[str], owner: str, ddtop: str | None
) -> SchedulerTarget:
    """The first of the hosts.

    Raises:
        NoSuchJobError: the job is another user's, or the scheduler's answer names no host.
        NoContactError: DDTOP_SSH cannot be read.
    """
    _check_owner(name, owner)
    odd = next((host for host in hosts if not _is_host(host)), None)
    if odd is not None:
        raise NoSuchJobError(f"{name} runs on {odd!r}, which is not a host name")
    each = tuple(
        SshJobTarget(
            host,
            option,
            tuple(SshTarget(host).command(asks=False)[:-1]),
            frozenset(hosts),
            ddtop=ddtop,
        )
        for host in dict.fromkeys(hosts)
    )
    return replace(each[0], name=f"{name} on {hosts[0]}", each=each)


def _check_owner(name: str, owner: str) -> None:
    """Refuse the job of another user, unless root asks."""
    if os.getuid() != 0 and owner != getpass.getuser():
        raise NoSuchJobError(f"{name} is {owner}'s, and only {owner} can look into it")


def _is_host(name: str) -> bool:
    return name.isprintable() and not name.startswith("-") and " " not in name


class SshJobTarget(SchedulerTarget):
    """ssh gives one line to the shell there, so the words are quoted for it."""

    def words(self, *words: str, columns: int | None = None) -> list[str]:
        every = super().words(*words, columns=columns)
        return [*self.before, shlex.join(every[len(self.before) :])]


# -- Kubernetes: `kubectl get pods` says which pods a job has, `kubectl exec` runs the bridge in
#    one
#
# Source: "Well-Known Labels" of Kubernetes (batch.kubernetes.io/job-name and job-completion-index),
# those of JobSet and of the training operator of Kubeflow; PodStatus of the API's reference.


_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_JOB_LABELS = (
    *("batch.kubernetes.io/job-name", "job-name", "jobset.sigs.k8s.io/jobset-name"),
    *("training.kubeflow.org/job-name", "leaderworkerset.sigs.k8s.io/name"),
    *("ray.io/cluster", "volcano.sh/job-name"),
)
_NUMBER_LABELS = (
    *("batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index"),
    *("leaderworkerset.sigs.k8s.io/worker-index", "apps.kubernetes.io/pod-index"),
)
_ROLE = "training.kubeflow.org/replica-type"


def kubernetes_job(job: str, ddtop: str | None) -> SchedulerTarget:
    """`--k8s NAMESPACE/JOB`. The pod of rank 0, as far as labels say."""
    namespace, slash, name = job.partition("/")
    if not slash or not _NAME.fullmatch(namespace) or not _NAME.fullmatch(name):
        raise WrongNameError(f"{job!r} is not NAMESPACE/JOB, as default/train")
    code, out, err = ask("kubectl", "get", "pods", "--namespace", namespace, "--output=json")
    if code:
        if "(Forbidden)" in err:
            raise NoSuchJobError(f"you may not list the pods of {namespace}: {last_line(err)}")
        raise NoContactError(f"kubectl does not answer: {last_line(err)}")
    try:
        pod = _pod_of(out, job, namespace, name)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise NoContactError("kubectl did not answer with a list of pods") from None
    return SchedulerTarget(
        f"pod {pod}",
        f"--k8s {job}",
        ("kubectl", "exec", "--stdin", "--namespace", namespace, pod, "--"),
        ddtop=ddtop,
    )


def _pod_of(text: str, job: str, namespace: str, name: str) -> str:
    """The name of the pod of rank 0. Items without a valid name are skipped: the name becomes a
    word of a command line.
    """
    items = json.loads(text)["items"]
    named = [item for item in items if _NAME.fullmatch(item["metadata"]["name"])]
    pods = [pod for pod in named if _is_of(pod, name)]
    if not pods:
        raise NoSuchJobError(
            f"there are no pods of a job {name} in the namespace {namespace}: kubectl get pods"
            f" -n {namespace} lists what is there"
        )
    running = sorted((pod for pod in pods if _phase(pod) == "Running"), key=_order)
    if not running:
        raise _pod_not_running(job, min(pods, key=_order))
    return str(running[0]["metadata"]["name"])


def _labels(pod: dict[str, Any]) -> dict[str, str]:
    return pod["metadata"].get("labels") or {}


def _is_of(pod: dict[str, Any], name: str) -> bool:
    own = pod["metadata"]["name"]
    return own == name or any(_labels(pod).get(label) == name for label in _JOB_LABELS)


def _phase(pod: dict[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase", "Unknown"))


def _order(pod: dict[str, Any]) -> tuple[bool, int, str]:
    """The master first, then by index."""
    labels = _labels(pod)
    numbers = [
        labels[number_label]
        for number_label in _NUMBER_LABELS
        if labels.get(number_label, "").isdigit()
    ]
    number = int(numbers[0]) if numbers else 0
    return labels.get(_ROLE, "master") != "master", number, str(pod["metadata"]["name"])


def _pod_not_running(job: str, pod: dict[str, Any]) -> NoSuchJobError:
    name, phase = pod["metadata"]["name"], _phase(pod)
    if phase != "Pending":
        return NoSuchJobError(
            f"{job} does not run: pod {name} is {phase}, and kubectl exec needs a running pod"
        )
    status = pod.get("status", {})
    unmet = [
        condition
        for condition in status.get("conditions") or ()
        if condition.get("status") == "False"
    ]
    waits = [
        container["state"]["waiting"]
        for container in status.get("containerStatuses") or ()
        if "waiting" in (container.get("state") or {})
    ]
    conditions = [*waits, *unmet]
    why = next(
        (
            f"{condition['reason']}: {condition.get('message', '')}"
            for condition in conditions
            if "reason" in condition
        ),
        "",
    )
    return NotYetError(
        f"{job} has no nodes yet: pod {name} is Pending ({why.strip(': ') or phase})"
    )


# -- Schedulers that answer about one job in JSON, and whose nodes let its owner in by ssh
#
# LSF's `blaunch` works inside a job only, and PBS Professional and OpenPBS have no command that
# starts a program in a running job from outside.
#
# Never tried on a real LSF or PBS: the form of their answers is as other programs quote it. To
# compare: "bjobs" and "Customize job information output" of IBM Spectrum LSF, `-o` with `-json`;
# the reference guide of OpenPBS, "Job Attributes", "Job States" and "qstat".


@dataclass(frozen=True, slots=True)
class BatchSystem:
    """One of them.

    `an_id`: what a job id is, with examples. `number`: how it looks. `command`: asks about a job.
    `jobs`: where its answer has the job. `refusals`: what it says of a job that it does not show,
    and the sentence for that. `read`: state, owner, hosts, and why it waits. `running`, `waiting`:
    states, the latter with a reason for where the answer has none.
    """

    name: str
    an_id: str
    number: re.Pattern[str]
    command: tuple[str, ...]
    jobs: str
    refusals: tuple[tuple[str, str], ...]
    read: Callable[[dict[str, Any]], tuple[str, str, list[str], str]]
    running: tuple[str, ...]
    waiting: Mapping[str, str]

    def target(self, job: str, ddtop: str | None) -> SchedulerTarget:
        """The first host of the job."""
        name = f"{self.name} job {job}"
        if not self.number.fullmatch(job):
            raise WrongNameError(f"{job!r} is not {self.an_id}")
        code, out, err = ask(*self.command, job)
        for said, sentence in self.refusals:
            if said in err:
                raise NoSuchJobError(sentence.format(name))
        if code and not out.strip():
            raise NoContactError(f"{self.command[0]} does not answer: {last_line(err)}")
        facts = _only_job(out, self.command[0], self.jobs)
        if "ERROR" in facts:
            raise NoSuchJobError(f"there is no {name}: {facts['ERROR']}")
        state, owner, hosts, because = self.read(facts)
        if state in self.waiting:
            raise NotYetError(f"{name} has no nodes yet: {because or self.waiting[state]}")
        if state not in self.running or not hosts[0]:
            raise NoSuchJobError(f"{name} does not run: its state is {state or 'unknown'}")
        return through_ssh(name, f"--{self.name.lower()} {job}", hosts, owner, ddtop)


LSF = BatchSystem(
    name="LSF",
    an_id="an LSF job id, such as 4711 or '4711[3]'",
    number=re.compile(r"\d+(\[\d+\])?"),
    command=("bjobs", "-json", "-o", "jobid stat user exec_host pend_reason", "-u", "all"),
    jobs="RECORDS",
    refusals=(("is not found", "there is no {}"),),
    # With several slots on a host it is `4*host`.
    read=lambda facts: (
        str(facts.get("STAT", "")),
        str(facts.get("USER", "")),
        [part.rpartition("*")[2] for part in str(facts.get("EXEC_HOST", "")).split(":")],
        str(facts.get("PEND_REASON") or "").strip(),
    ),
    running=("RUN",),
    waiting={state: state for state in ("PEND", "PSUSP", "WAIT", "FWD_PEND")},
)
PBS = BatchSystem(
    name="PBS",
    an_id="a PBS job id, such as 4711 or 4711.server",
    number=re.compile(r"\d+(\[\d+\])?(\.[A-Za-z0-9.-]+)?"),
    command=("qstat", "-f", "-F", "json"),
    jobs="Jobs",
    refusals=(
        ("Unknown Job", "there is no {}"),
        ("has finished", "{} has ended; ddtop jobs lists what it left"),
    ),
    read=lambda facts: (
        str(facts.get("job_state", "")),
        str(facts.get("Job_Owner", "")).partition("@")[0],
        [part.partition("/")[0] for part in str(facts.get("exec_host", "")).split("+")],
        str(facts.get("comment") or ""),
    ),
    running=("R", "E"),
    waiting={
        "Q": "queued",
        "H": "held",
        "W": "waiting for its time",
        "T": "in transit",
        "M": "moved",
    },
)


# -- Slurm: `squeue` says where a job runs, a step of it that overlaps runs the bridge
#
# Source: the manual pages of squeue (`--Format`, JOB STATE CODES), scontrol and srun.


_JOB = re.compile(r"\d+(?:_\d+|\+\d+)?")
_FORMAT = "%A|%i|%T|%r|%u|%N"
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
_RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING")
_NOT_THERE = "Invalid job id"


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job that runs: its id as it is typed, its name, its nodes as Slurm writes them, and since
    when it runs (unix ns).
    """

    number: str
    name: str
    nodes: str
    started_unix_ns: int


def running_jobs(user: str) -> list[SlurmJob]:
    """The running jobs of this user, the newest first.

    Source: squeue with `%i|%M|%N|%j`; `%M` is the time that a job has used, D-HH:MM:SS.

    Raises:
        NoContactError: Slurm is not here, or does not answer.
    """
    code, out, err = ask(
        "squeue", "--noheader", f"--user={user}", "--states=RUNNING", "--format=%i|%M|%N|%j"
    )
    if code:
        raise NoContactError(f"squeue does not answer: {last_line(err)}")
    rows = [row.split("|", 3) for row in out.splitlines() if row.count("|") >= 3]
    now = time.time_ns()
    jobs = [
        SlurmJob(number, name.strip(), nodes, now - int(used_s(used) * 1e9))
        for number, used, nodes, name in rows
    ]
    return sorted(jobs, key=lambda job: -job.started_unix_ns)


def used_s(text: str) -> float:
    """Seconds of Slurm's `D-HH:MM:SS`; 0 for anything else."""
    days, dash, rest = text.strip().rpartition("-")
    parts = [*([days] if dash else ["0"]), *["0"] * (2 - rest.count(":")), *rest.split(":")]
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts):
        return 0.0
    return float(sum(int(one) * s for one, s in zip(parts, (86400, 3600, 60, 1), strict=True)))


def slurm_job(job: str, ddtop: str | None) -> SchedulerTarget:
    """`--slurm JOBID`. A step on the first node, beside those of the job."""
    if not _JOB.fullmatch(job):
        raise WrongNameError(f"{job!r} is not a Slurm job id, such as 4711 or 4711_3")
    code, out, err = ask(
        "squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={_FORMAT}"
    )
    if code and _NOT_THERE not in err:
        raise NoContactError(f"squeue does not answer: {last_line(err)}")
    rows = [row.split("|") for row in out.splitlines() if row.count("|") == 5]
    if not rows:
        raise NoSuchJobError(
            f"there is no Slurm job {job}, or it ended a while ago: ddtop jobs lists"
            " what was watched"
        )
    running = [row for row in rows if row[2] in _RUNNING and row[5].strip()]
    if len(running) > 1:
        tasks = ", ".join(row[1] for row in running[:4])
        raise WrongNameError(f"Slurm job {job} has several running tasks: name one of {tasks}")
    if not running:
        raise _not_running(job, rows[0])
    raw, _, _, _, user, nodes = running[0]
    _check_owner(f"Slurm job {job}", user)
    names = _names(nodes.strip())
    # Without these a step waits for memory or GPUs that the job's own steps hold.
    beside = ("--overlap", "--mem-per-cpu=0", "--gpus=0", "--immediate", "--wait=0")
    step = ("srun", f"--jobid={raw}", *beside, "--nodes=1", "--ntasks=1", "--input=all")
    nodes_of_job, prefix, typed = frozenset(names), f"{raw}.", f"--slurm {job}"
    each = tuple(
        SchedulerTarget(name, typed, (*step, f"--nodelist={name}"), nodes_of_job, prefix, ddtop)
        for name in names
    )
    return replace(each[0], name=f"Slurm job {job} on {names[0]}", each=each)


def _not_running(job: str, row: list[str]) -> NoSuchJobError:
    state, reason = row[2], row[3]
    if state in _WAITING:
        because = f" ({reason})" if reason not in ("", "None") else ""
        return NotYetError(f"Slurm job {job} has no nodes yet: {state}{because}")
    if state in ("SUSPENDED", "STOPPED"):
        return NoSuchJobError(f"Slurm job {job} is {state}: scontrol resume {job} continues it")
    return NoSuchJobError(
        f"Slurm job {job} has ended: {state}; ddtop jobs lists what it left, if it was watched"
    )


def _names(nodes: str) -> list[str]:
    """`node[0-1]` as its names."""
    code, out, err = ask("scontrol", "show", "hostnames", nodes)
    if code or not out.split():
        raise NoContactError(f"scontrol does not know the nodes {nodes}: {last_line(err)}")
    return out.split()


SCHEDULERS: dict[str, Callable[[str, str | None], SchedulerTarget]] = {
    "--slurm": slurm_job,
    "--k8s": kubernetes_job,
    "--pbs": PBS.target,
    "--lsf": LSF.target,
}
"""By the option that names its jobs: what finds the route into a job. It also gets how ddtop is
called there, None to look for it.

Raises:
    WrongNameError: that is not a name of a job.
    NotYetError: the job has no nodes yet.
    NoSuchJobError: there is no such job, it is another user's, or it is over.
    NoContactError: the scheduler does not answer.
"""
