"""Open MPI: mpirun, mpiexec, prterun.

Source: mpirun(1), and `prte-map` of PRRTE.
"""

from __future__ import annotations

from ddtop.launch.launcher import Launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddtop.launch.launcher import Ancestors
    from ddtop.launch.start import LauncherStart


class OpenMpi(Launcher):
    """`mpirun` of Open MPI names each start in PMIX_NAMESPACE: "prterun-HOST-PID@1"."""

    name = "openmpi"
    ranks = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK")
    world_sizes = ("OMPI_COMM_WORLD_SIZE",)
    local_ranks = ("OMPI_COMM_WORLD_LOCAL_RANK",)
    local_sizes = ("OMPI_COMM_WORLD_LOCAL_SIZE",)
    new_for_each_rank = ("OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE")
    own_to_rank = (
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK"),
        "PMIX_RANK",
    )
    sent = r"OMPI_COMM_WORLD_\w+|OMPI_MCA_orte_hnp_uri|PMIX_(NAMESPACE|RANK|HOSTNAME)"
    prefixes = ("OMPI_COMM_", "PMIX_")

    def start(
        self,
        environ: Mapping[str, str],
        ancestors: Ancestors,
        batch_job: str | None,
    ) -> LauncherStart | None:
        """The namespace; its launcher's pid is the label."""
        namespace = environ.get("PMIX_NAMESPACE", "")
        if not namespace or "OMPI_COMM_WORLD_RANK" not in environ:
            return None
        if batch_job and "JSM_NAMESPACE_RANK" in environ:
            # jsrun sets these variables too, and its namespaces count from 1 in each batch job.
            return None
        from ddtop.launch.start import LauncherStart

        before, _, number = namespace.rpartition("@")
        pid = before.rpartition("-")[2] if "-" in before else ""
        is_named = number.isdigit() and pid.isdigit()
        return LauncherStart(f"pmix-{namespace}", pid if is_named else namespace)

    def started_from(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """`22;tcp://10.1.2.3,192.168.0.1:5555`: Open MPI up to 4 gives its own addresses."""
        uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
        if not uri:
            return ()
        import re

        return tuple(re.findall(r"tcp[46]?://\[?([^,;\]]+?)\]?(?::[0-9,]+)?(?:[,;]|$)", uri))
