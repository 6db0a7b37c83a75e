"""Kubernetes: `kubectl get pods` says which pods a job has, `kubectl exec` runs the bridge in one.

Source: "Well-Known Labels" of Kubernetes (batch.kubernetes.io/job-name and job-completion-index),
those of JobSet and of the training operator of Kubeflow; PodStatus of the API's reference.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ddtop.viewer.routes.relay import NoContactError
from ddtop.viewer.routes.schedulers.scheduler import (
    NoSuchJobError,
    NotYetError,
    SchedulerTarget,
    WrongNameError,
    asked,
    last_line,
)

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


class Kubernetes:
    """`--k8s NAMESPACE/JOB`."""

    name, option = "Kubernetes", "--k8s"

    def find(self, job: str, ddtop: str | None) -> SchedulerTarget:
        """The pod of rank 0, as far as labels say."""
        namespace, slash, name = job.partition("/")
        if not slash or not _NAME.fullmatch(namespace) or not _NAME.fullmatch(name):
            raise WrongNameError(f"{job!r} is not NAMESPACE/JOB, as default/train")
        code, out, err = asked("kubectl", "get", "pods", "--namespace", namespace, "--output=json")
        if code:
            if "(Forbidden)" in err:
                raise NoSuchJobError(f"you may not list the pods of {namespace}: {last_line(err)}")
            raise NoContactError(f"kubectl does not answer: {last_line(err)}")
        try:
            pod = _pod_of(out, job, namespace, name)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise NoContactError(
                "kubectl answers with something else than a list of pods"
            ) from None
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
    named = [one for one in items if _NAME.fullmatch(one["metadata"]["name"])]
    pods = [one for one in named if _is_of(one, name)]
    if not pods:
        raise NoSuchJobError(
            f"there are no pods of a job {name} in the namespace {namespace}: kubectl get pods"
            f" -n {namespace} lists what is there"
        )
    running = sorted((one for one in pods if _phase(one) == "Running"), key=_order)
    if not running:
        raise _not_running(job, min(pods, key=_order))
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
    numbers = [labels[one] for one in _NUMBER_LABELS if labels.get(one, "").isdigit()]
    number = int(numbers[0]) if numbers else 0
    return labels.get(_ROLE, "master") != "master", number, str(pod["metadata"]["name"])


def _not_running(job: str, pod: dict[str, Any]) -> NoSuchJobError:
    name, phase = pod["metadata"]["name"], _phase(pod)
    if phase != "Pending":
        return NoSuchJobError(
            f"{job} does not run: pod {name} is {phase}, and kubectl exec needs a running pod"
        )
    status = pod.get("status", {})
    unmet = [one for one in status.get("conditions") or () if one.get("status") == "False"]
    waits = [
        one["state"]["waiting"]
        for one in status.get("containerStatuses") or ()
        if "waiting" in (one.get("state") or {})
    ]
    conditions = [*waits, *unmet]
    why = next(
        (f"{one['reason']}: {one.get('message', '')}" for one in conditions if "reason" in one), ""
    )
    return NotYetError(
        f"{job} has no nodes yet: pod {name} is Pending ({why.strip(': ') or phase})"
    )
