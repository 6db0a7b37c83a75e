"""A job of a real Slurm is called by its id, from outside the job."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from tests import slurm_cluster
from tests.end_to_end.conftest import PROGRAMS

if why := slurm_cluster.unable():
    pytest.skip(why, allow_module_level=True)
pytest.importorskip("torch")


@pytest.fixture
def cluster(world):
    with tempfile.TemporaryDirectory(prefix="ddslurm-") as folder:
        made = slurm_cluster.Cluster(Path(folder))
        world.environment |= made.environment
        yield made
        made.close()


def test_a_job_of_slurm_is_found_by_its_id_and_its_sleeping_rank_is_named(cluster, world):
    program, port = str(PROGRAMS / "under_slurm.py"), slurm_cluster.free_ports(1)[0]
    training = ["srun", "-N", "2", sys.executable, program, str(port)]
    world.start_command(training, GLOO_SOCKET_IFNAME="lo")
    cluster.until(cluster.running, "job that runs")
    job = cluster.running()
    remote = ("--remote", f"{sys.executable} -m ddtop")

    def diagnosed():
        said = world.ddtop("diagnose", "--slurm", job, *remote, "--json", "--for", "1.1")
        found = json.loads(said.stdout) if said.stdout else {"findings": []}
        return next((one for one in found["findings"] if one["severity"] == "critical"), None)

    worst = world.until(diagnosed, 60, "finding")
    table = world.ddtop("attach", "--slurm", job, *remote)
    pending = cluster.says("sbatch", "--parsable", "--hold", "--wrap", "true")
    waits = world.ddtop("status", "--slurm", pending)
    cluster.says("scancel", job)
    cluster.until(lambda: cluster.running() is None, "end of the job")
    over = world.ddtop("status", "--slurm", job)
    never = world.ddtop("stacks", "--slurm", "987654")

    assert worst["kind"] == "not-in-collective"
    assert worst["ranks"] == [1]
    assert table.returncode == 0
    assert f"{job}.0  2/2 ranks" in table.stdout
    assert (waits.returncode, over.returncode, never.returncode) == (3, 3, 3)
    assert f"Slurm job {pending} has no nodes yet: PENDING (JobHeldUser)" in waits.stderr
    assert f"Slurm job {job} is over: CANCELLED" in over.stderr
    assert "there is no Slurm job 987654" in never.stderr
