"""Kubernetes: pods of PyTorchJob, TrainJob, or a StatefulSet.

Source: "Environment variables" of Pods; Kubeflow's pages on PyTorchJob and TrainJob.
"""

from __future__ import annotations

from ddtop.launch.launcher import Launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_IN_A_POD = "KUBERNETES_SERVICE_HOST"


class Kubernetes(Launcher):
    """A pod. Its operators give the ranks torch's own variables."""

    name = "kubernetes"
    job_mark = _IN_A_POD
    sent = r"KUBERNETES_SERVICE_(HOST|PORT)|JOB_NAME|JOB_COMPLETION_INDEX|POD_NAME"

    def job_id(self, environ: Mapping[str, str]) -> str | None:
        """JOB_NAME. Kubernetes does not tell a container the name of its job, but people often set
        this variable."""
        return environ.get("JOB_NAME") or None if _IN_A_POD in environ else None


def master_pod(environ: Mapping[str, str]) -> str | None:
    """The name of this pod, if it is the master of its PyTorchJob.

    Some operators give the master only the name `localhost`.
    """
    name = environ.get("HOSTNAME", "")
    return name if _IN_A_POD in environ and name.endswith("-master-0") else None
