"""A job of a real Slurm has its Slurm id as a name outside the job."""

import json
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ddtop.relay.processes import pyspy
from tests import slurm_cluster
from tests.end_to_end.conftest import PROGRAMS
from tests.ports import free_port

if why := slurm_cluster.unable():
    pytest.skip(why, allow_module_level=True)
pytestmark = pytest.mark.torch


@pytest.fixture
def cluster(world):
    with tempfile.TemporaryDirectory(prefix="ddslurm-") as folder:
        made = slurm_cluster.Cluster(Path(folder))
        world.environment |= made.environment
        yield made
        print(made.says("squeue", "-h", "-o", "%A %T %r"), made.logs(), sep="\n")
        made.close()


def test_a_job_of_slurm_is_found_by_its_id_and_its_sleeping_rank_is_named(cluster, world):
    program, port = str(PROGRAMS / "under_slurm.py"), free_port()
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
    bare = cluster.says("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 600")
    cluster.until(lambda: bare in cluster.says("squeue", "-h", "-t", "R", "-o", "%A"), "second job")
    listed = json.loads(world.ddtop("jobs", "--slurm", "--json", *remote).stdout)["jobs"]
    cluster.says("scancel", bare)
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
    by_name = {one["job"]: one for one in listed}
    assert set(by_name) == {bare, f"{job}.0"}
    assert (by_name[f"{job}.0"]["health"], by_name[f"{job}.0"]["reporting"]) == ("critical", 2)
    assert (by_name[bare]["health"], by_name[bare]["live"]) == ("unknown", True)
    assert "DDTOP=1" in by_name[bare]["summary"]
    assert (waits.returncode, over.returncode, never.returncode) == (3, 3, 3)
    assert f"Slurm job {pending} has no nodes yet: PENDING (JobHeldUser)" in waits.stderr
    assert f"Slurm job {job} has ended: CANCELLED" in over.stderr
    assert "there is no Slurm job 987654" in never.stderr


def test_a_job_that_is_requeued_is_a_new_attempt_and_scancel_is_read_as_such(cluster, world):
    program, port = str(PROGRAMS / "under_slurm.py"), free_port()
    script = world.folder / "job.sh"
    script.write_text(f"#!/bin/sh\nexec srun {sys.executable} {program} {port} well\n")
    for name, value in (world.environment | {"DDTOP": "1", "GLOO_SOCKET_IFNAME": "lo"}).items():
        cluster.environment[name] = value
    nodes = ("-N", "2", "--ntasks-per-node=2", "-o", "/dev/null")
    job = cluster.says("sbatch", "--parsable", "--requeue", *nodes, str(script))

    def pids():
        said = world.ddtop("status", f"{job}.0", "--json").stdout
        found = {one["pid"] for one in json.loads(said)["ranks"]} if said else set()
        return found if len(found) == 4 and None not in found else None

    before = world.until(pids, 90, "four ranks")
    cluster.says("scontrol", "requeue", job)

    def is_restarted():
        # Slurm waits two minutes before it starts a requeued job again. While the first attempt is
        # still being cleaned up, it forgets that it was told to start earlier. If it starts it in
        # the second of that clean-up, the nodes refuse the job as cancelled.
        starts = cluster.says("squeue", "-h", "-t", "PENDING", "-o", "%S")
        if starts != "N/A" and starts > (datetime.now() + timedelta(seconds=5)).isoformat():
            cluster.says("scontrol", "update", f"JobId={job}", "StartTime=now+3")
        return before.isdisjoint(pids() or before)

    world.until(is_restarted, 90, "four ranks of the next attempt")
    again = world.ddtop("report", f"{job}.0", "--no-source", "-o", "-").stdout
    cluster.says("scancel", job)
    end = world.until(lambda: world.diagnose()["ended"] and world.diagnose(), 60, "end")

    assert "4 of 4 reporting, attempt 1" in again
    assert "critical:" not in again
    assert [one["kind"] for one in end["findings"]] == ["cancelled"]
    assert end["ended"]["reason"] == "cancelled"


@pytest.mark.skipif(pyspy.find() is None, reason="py-spy is not installed")
def test_a_job_of_slurm_without_ddtop_is_looked_at_from_outside_on_each_node(cluster, world):
    """Both nodes are this host: each bridge sees the tasks of its own node only."""
    program, port = str(PROGRAMS / "under_slurm.py"), free_port()
    training = ["srun", "-N", "2", sys.executable, program, str(port)]
    world.start_command(training, ddtop=False, GLOO_SOCKET_IFNAME="lo")
    cluster.until(cluster.running, "job that runs")
    job = cluster.running()
    remote = ("--remote", f"{sys.executable} -m ddtop")

    def diagnosed():
        said = world.ddtop("diagnose", "--slurm", job, *remote, "--json")
        found = json.loads(said.stdout) if said.stdout else {"findings": []}
        return next(((one, said) for one in found["findings"]), None)

    worst, said = world.until(diagnosed, 90, "finding")
    report = world.ddtop("report", "--slurm", job, *remote, "-o", "-")

    assert (worst["kind"], worst["ranks"], worst["victims"]) == ("not-in-collective", [1], [0])
    assert "by its stack" in worst["summary"]
    assert said.returncode == 1
    assert "looking from outside, on 2 nodes" in said.stderr
    assert "under_slurm.py" in report.stdout
    assert "rank 1 has been asleep in main" in " ".join(report.stdout.split())
