"""PBS: the batch job. Its `pbsdsh` numbers no ranks: another launcher does.

Source: PBS Professional User's Guide, "Job Environment Variables".
"""

from __future__ import annotations

from ddtop.launch.launcher import Launcher


class Pbs(Launcher):
    """OpenPBS, PBS Professional, Torque."""

    name = "pbs"
    job_mark = "PBS_JOBID"
    sent = r"PBS_(JOBID|NODENUM|TASKNUM|VNODENUM|NODEFILE|O_HOST)"
