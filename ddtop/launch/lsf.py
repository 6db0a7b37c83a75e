"""LSF: jsrun, blaunch, and the batch job around them.

Source: LSF's manual, "Environment variables set for job execution"; jsrun(1).
"""

from __future__ import annotations

from ddtop.launch.launcher import Launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddtop.launch.launcher import Ancestors
    from ddtop.launch.start import LauncherStart


class Lsf(Launcher):
    """`jsrun` numbers the programs that it starts, of any kind. `blaunch` does not number them."""

    name = "lsf"
    ranks = ("JSM_NAMESPACE_RANK",)
    world_sizes = ("JSM_NAMESPACE_SIZE",)
    local_ranks = ("JSM_NAMESPACE_LOCAL_RANK",)
    local_sizes = ("JSM_NAMESPACE_LOCAL_SIZE",)
    numbers_any_task = True
    own_to_rank = ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK")
    job_mark = "LSB_JOBID"
    sent = (
        r"JSM_NAMESPACE_\w+|LSF_PM_TASKID"
        r"|LSB_(JOBID|JOBINDEX|HOSTS|MCPU_HOSTS|DJOB_NUMPROC)"
    )
    prefixes = ("JSM_NAMESPACE_",)

    def start(
        self,
        environ: Mapping[str, str],
        ancestors: Ancestors,
        batch_job: str | None,
    ) -> LauncherStart | None:
        """jsrun's namespace counts within the batch job, so the job's id is the name."""
        namespace = environ.get("PMIX_NAMESPACE", "")
        if not (namespace and batch_job and "JSM_NAMESPACE_RANK" in environ):
            return None
        from ddtop.launch.start import LauncherStart

        return LauncherStart(f"jsm-{batch_job}-{namespace}", batch_job, True)

    def first_host(self, environ: Mapping[str, str]) -> str:
        """The first of LSB_HOSTS (`h1 h1 h2`) or LSB_MCPU_HOSTS (`h1 2 h2 2`)."""
        hosts = environ.get("LSB_HOSTS") or environ.get("LSB_MCPU_HOSTS") or ""
        return hosts.partition(" ")[0]
