"""PALS, the `mpiexec` and `aprun` of HPE Cray systems. Its ranks have Hydra's PMI variables too.

Source: mpiexec(1) of PALS.
"""

from __future__ import annotations

from ddtop.launch.launcher import Launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddtop.launch.launcher import Ancestors
    from ddtop.launch.start import LauncherStart


class Pals(Launcher):
    """One PALS_APID for each start."""

    name = "pals"
    own_to_rank = ("PALS_RANKID", "PALS_LOCAL_RANKID")
    sent = r"PALS_(APID|RANKID|NODEID|LOCAL_RANKID|LOCAL_SIZE)"
    prefixes = ("PALS_",)

    def start(
        self,
        environ: Mapping[str, str],
        ancestors: Ancestors,
        batch_job: str | None,
    ) -> LauncherStart | None:
        """The id of the start. The name comes from the batch job, because the id is hard to
        type."""
        apid = environ.get("PALS_APID", "")
        if not apid or "PMI_RANK" not in environ:
            return None
        from ddtop.launch.start import LauncherStart

        return LauncherStart(f"pals-{apid}", batch_job or apid[:8], batch_job is not None)
