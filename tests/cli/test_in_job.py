"""`--slurm`, `--k8s`, `--pbs` and `--lsf`, with the schedulers' programs replaced by doubles.

Those of squeue and srun are what Slurm 22.05 printed. Those of `kubectl get pods`, `qstat -f -F
json` and `bjobs -json` are written by hand, none is a recording. Keys, escapes, lists of hosts and
messages of qstat and bjobs are as programs quote them that parse them for a living; how bjobs
answers in JSON for a job that it does not know was found nowhere.
"""

import getpass
import json

import pytest

from ddtop import registry
from ddtop.feeds.bridge import RemoteJob
from ddtop.feeds.route import NoContactError
from ddtop.feeds.schedulers import (
    SCHEDULERS,
    NoSuchJobError,
    NotYetError,
    SchedulerTarget,
    WrongNameError,
)
from tests.cli.commands import ddtop

ME = getpass.getuser()


@pytest.fixture
def double(tmp_path, monkeypatch):
    """Puts a program on the PATH that prints, and keeps how it was called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def make(name, out="", err="", code=0):
        for kind, text in (("out", out), ("err", err)):
            (folder / f"{name}.{kind}").write_text(text)
        program = folder / name
        here = f"{folder}/{name}"
        program.write_text(
            f'#!/bin/sh\necho "$@" >{here}.called\n'
            f"cat {here}.out; cat {here}.err >&2; exit {code}\n"
        )
        program.chmod(0o755)
        return folder / f"{name}.called"

    return make


def pod(name, phase="Running", labels=None, **status):
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "status": {"phase": phase, **status},
    }


def pods(*items):
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def found(option, job):
    return SCHEDULERS[option](job, None)


def test_a_running_job_of_slurm_is_entered_beside_its_steps(double):
    double("squeue", f"7|7|RUNNING|None|{ME}|node[0-1]\n")
    called = double("scontrol", "node0\nnode1\n")

    there = found("--slurm", "7")

    assert called.read_text() == "show hostnames node[0-1]\n"
    assert there.before[:5] == ("srun", "--jobid=7", "--overlap", "--mem-per-cpu=0", "--gpus=0")
    assert "--nodelist=node0" in there.before
    assert there.nodes == {"node0", "node1"}


@pytest.mark.parametrize(
    ("row", "error", "text"),
    [
        ("7|7|PENDING|Resources|me|", NotYetError, "has no nodes yet: PENDING (Resources)"),
        ("7|7|CONFIGURING|None|me|n0", NotYetError, "has no nodes yet: CONFIGURING"),
        ("7|7|TIMEOUT|TimeLimit|me|n0", NoSuchJobError, "has ended: TIMEOUT"),
        ("7|7|NODE_FAIL|None|me|n0", NoSuchJobError, "has ended: NODE_FAIL"),
        ("7|7|SUSPENDED|None|me|n0", NoSuchJobError, "scontrol resume 7"),
        ("8|7_1|RUNNING|None|me|n0\n9|7_2|RUNNING|None|me|n1", WrongNameError, "one of 7_1, 7_2"),
    ],
)
def test_a_job_of_slurm_that_cannot_be_entered_is_read_as_what_it_is(double, row, error, text):
    double("squeue", row + "\n")

    with pytest.raises(error) as caught:
        found("--slurm", "7")
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("option", "program", "out"),
    [
        ("--slurm", "squeue", "7|7|RUNNING|None|alice|node0\n"),
        ("--pbs", "qstat", '{"Jobs":{"7.pbs":{"job_state":"R","Job_Owner":"alice@login",'
         '"exec_host":"node0/0*4"}}}'),
        ("--lsf", "bjobs", '{"COMMAND":"bjobs","JOBS":1,"RECORDS":[{"JOBID":"7","STAT":"RUN",'
         '"USER":"alice","EXEC_HOST":"4*node0"}]}'),
    ],
)  # fmt: skip
def test_the_job_of_another_user_is_not_entered(double, monkeypatch, option, program, out):
    monkeypatch.setattr("os.getuid", lambda: 1000)
    double(program, out)

    with pytest.raises(NoSuchJobError, match="job 7 is alice's, and only alice can look into it"):
        found(option, "7")


@pytest.mark.parametrize(
    ("option", "program", "out", "err", "text"),
    [
        ("--slurm", "squeue", "", "slurm_load_jobs error: Invalid job id specified", "no Slurm"),
        ("--pbs", "qstat", "", "qstat: Unknown Job Id 7.pbs\n", "there is no PBS job 7"),
        ("--pbs", "qstat", "", "qstat: 7.pbs Job has finished, use -x or -H to obtain historical "
         "job information\n", "job 7 has ended"),
        ("--lsf", "bjobs", "", "Job <7> is not found\n", "there is no LSF job 7"),
    ],
)  # fmt: skip
def test_a_job_that_does_not_exist_is_said_not_to_exist(double, option, program, out, err, text):
    double(program, out, err, 1)

    with pytest.raises(NoSuchJobError, match=text):
        found(option, "7")


def test_a_controller_that_is_down_is_no_missing_job(double):
    double("squeue", "", "slurm_load_jobs error: Unable to contact slurm controller\n", 1)

    with pytest.raises(NoContactError, match=r"squeue does not answer: .*Unable to contact"):
        found("--slurm", "7")


def test_pbs_and_lsf_are_entered_by_ssh_to_the_first_node(double):
    hosts = '"exec_host":"node3/0*4+node4/0*4"'
    double("qstat", f'{{"Jobs":{{"7.pbs":{{"job_state":"R","Job_Owner":"{ME}@login",{hosts}}}}}}}')
    record = f'{{"JOBID":"7","STAT":"RUN","USER":"{ME}","EXEC_HOST":"4*node5:4*node6"}}'
    double("bjobs", f'{{"COMMAND":"bjobs","JOBS":1,"RECORDS":[{record}]}}')

    pbs, lsf = found("--pbs", "7"), found("--lsf", "7")

    assert (pbs.before[0], pbs.before[-1]) == ("ssh", "node3")
    assert lsf.before[-1] == "node5"
    assert pbs.words("bridge")[-1].startswith("sh -c '")


PBS_JOB = r"""{
    "timestamp":1681477460,
    "pbs_version":"22.05.11",
    "pbs_server":"calc0",
    "Jobs":{
        "1008.calc0":{
            "Job_Name":"ntest",
            "Job_Owner":"%s@calc0.example.com",
            "resources_used":{"cpupercent":0,"ncpus":5,"walltime":"00:00:00"},
            "job_state":"R",
            "queue":"atom-sim",
            "server":"calc0",
            "Error_Path":"calc0:\/home\/qoot\/ntest.e1008",
            "exec_host":"%s",
            "exec_vnode":"(calc0:ncpus=1)+(calc0:ncpus=1)",
            "Hold_Types":"n"
        }
    }
}
"""


@pytest.mark.parametrize(
    "hosts", ["node1299\\/0*48", "node1299\\/10+node1299\\/11+node7\\/0", "node1299/0"]
)
def test_a_job_of_pbs_as_openpbs_prints_it(double, hosts):
    called = double("qstat", PBS_JOB % (ME, hosts))

    there = found("--pbs", "1008")

    assert called.read_text() == "-f -F json 1008\n"
    assert there.before[-1] == "node1299"


LSF_JOB = """{
  "COMMAND":"bjobs",
  "JOBS":1,
  "RECORDS":[
    {
      "JOBID":"58652",
      "STAT":"%s",
      "USER":"%s",
      "EXEC_HOST":"%s",
      "PEND_REASON":""
    }
  ]
}
"""


@pytest.mark.parametrize("hosts", ["cn019:cn019", "2*cn019:cn020", "cn019"])
def test_a_job_of_lsf_as_bjobs_prints_it(double, hosts):
    called = double("bjobs", LSF_JOB % ("RUN", ME, hosts))

    assert found("--lsf", "58652").before[-1] == "cn019"
    assert called.read_text().startswith("-json -o jobid stat user exec_host pend_reason ")


@pytest.mark.parametrize(
    ("state", "hosts", "error", "text"),
    [
        ("PSUSP", "", NotYetError, "has no nodes yet: PSUSP"),
        ("USUSP", "cn019", NoSuchJobError, "does not run: its state is USUSP"),
        ("EXIT", "cn019", NoSuchJobError, "does not run: its state is EXIT"),
    ],
)
def test_a_job_of_lsf_that_does_not_run_says_its_state(double, state, hosts, error, text):
    double("bjobs", LSF_JOB % (state, ME, hosts))

    with pytest.raises(error, match=text):
        found("--lsf", "58652")


def test_jobs_of_pbs_and_lsf_that_wait_have_no_nodes(double):
    double("qstat", '{"Jobs":{"7.pbs":{"job_state":"Q","comment":"Not Running: no cpus"}}}')
    double("bjobs", '{"RECORDS":[{"JOBID":"7","STAT":"PEND","PEND_REASON":"queue is full;"}]}')

    with pytest.raises(NotYetError, match="PBS job 7 has no nodes yet: Not Running: no cpus"):
        found("--pbs", "7")
    with pytest.raises(NotYetError, match="LSF job 7 has no nodes yet: queue is full"):
        found("--lsf", "7")


def test_the_pod_of_rank_0_is_entered(double):
    index = "batch.kubernetes.io/job-completion-index"
    job = {"batch.kubernetes.io/job-name": "train"}
    items = [pod(f"train-{at}-x{9 - at}", labels=job | {index: str(at)}) for at in (1, 0, 10)]
    called = double("kubectl", pods(pod("other"), *items))

    there = found("--k8s", "ml/train")

    assert called.read_text() == "get pods --namespace ml --output=json\n"
    assert there.before == (
        "kubectl", "exec", "--stdin", "--namespace", "ml", "train-0-x9", "--"
    )  # fmt: skip


def test_the_master_of_a_pytorchjob_comes_before_its_workers(double):
    key = "training.kubeflow.org/"
    labels = {f"{key}job-name": "train", f"{key}replica-index": "0"}
    kinds = [pod(f"train-{kind}-0", labels=labels | {f"{key}replica-type": kind}) for kind in ("worker", "master")]  # noqa: E501  # fmt: skip
    double("kubectl", pods(*kinds))

    assert found("--k8s", "ml/train").name == "pod train-master-0"


def test_pods_that_do_not_run_say_why(double):
    reason = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3",
    }
    double("kubectl", pods(pod("train", "Pending", conditions=[reason])))
    with pytest.raises(
        NotYetError, match=r"no nodes yet: pod train is Pending \(Unschedulable: 0/3"
    ):
        found("--k8s", "ml/train")

    double("kubectl", pods(pod("train", "Failed")))
    with pytest.raises(NoSuchJobError, match="pod train is Failed"):
        found("--k8s", "ml/train")

    double("kubectl", pods(pod("other")))
    with pytest.raises(NoSuchJobError, match="no pods of a job train in the namespace ml"):
        found("--k8s", "ml/train")

    forbidden = 'Error from server (Forbidden): pods is forbidden: User "u" cannot list resource'
    double("kubectl", err=forbidden, code=1)
    with pytest.raises(NoSuchJobError, match="you may not list the pods of ml"):
        found("--k8s", "ml/train")


def entry(job, host, over=False):
    return RemoteJob(
        registry.JobEntry(
            registry.SCHEMA, job, "r1", host, "0" * 12, 1, 1, "127.0.0.1", 1, "/tmp/x", "train",
            2, 0, 1, None, 1, None,
        ),
        over,
    )  # fmt: skip


def test_other_jobs_in_a_shared_state_folder_are_not_meant():
    there = SchedulerTarget("", "", (), frozenset({"node0", "node1"}), "7.")
    own, other = entry("7.0", "vm", over=True), entry("8.0", "node9")
    torchrun, old = entry("train", "node1.cluster"), entry("train", "node1", over=True)

    assert there.select([own, other, torchrun, old], "node0") == [own, torchrun]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("status", "--slurm", "x"), 2, "'x' is not a Slurm job id"),
        (("status", "--k8s", "train"), 2, "'train' is not NAMESPACE/JOB"),
        (("attach", "--pbs", "-1"), 2, "'-1' is not a PBS job id"),
        (("stacks", "--lsf", "a"), 2, "'a' is not an LSF job id"),
        (("diagnose", "--slurm", "7", "--pbs", "7"), 2, "cannot be used together"),
        (("attach", "--slurm", "7", "--ssh", "h"), 2, "--slurm and --ssh cannot be used together"),
        (("attach", "--k8s", "a/b"), 3, "kubectl is not on this host"),
    ],
)
def test_a_wrong_command_line_gets_one_sentence(words, code, text, tmp_path):
    done = ddtop(*words, PATH=str(tmp_path))

    assert done.returncode == code
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_pod_without_ddtop_is_said_to_have_none(double):
    labels = {"job-name": "train"}
    double("kubectl", pods(pod("train-x", labels=labels)))
    there = found("--k8s", "ml/train")
    from ddtop.link.ssh_pipe import PipeError

    error = PipeError("it ended", 127)
    assert there.sentence(error, ["command terminated with exit code 127"]).startswith(
        "ddtop is not found in pod train-x; say where it is: --remote"
    )
