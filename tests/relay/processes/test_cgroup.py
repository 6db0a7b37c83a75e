"""Control groups of both versions, from files made by hand."""

import os

import pytest

from ddtop.relay.processes import cgroup

V1 = "9:name=systemd:/\n6:freezer:/slurm/job_7\n4:cpu,memory:/slurm/job_7/step_0\n0::/\n"
V2 = "0::/user.slice/run-7.scope\n"


@pytest.fixture
def host(tmp_path):
    """(root of the cgroup mounts, /proc with one process 41)."""

    def made(text, **files):
        root, proc = tmp_path / "cgroup", tmp_path / "proc"
        (proc / "41").mkdir(parents=True)
        (proc / "41" / "cgroup").write_text(text)
        for path, content in files.items():
            file = root / path.replace("__", "/").replace("_DOT_", ".")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        return root, proc

    return made


def test_version_1_counts_kills_in_oom_control_and_says_frozen_in_freezer_state(host):
    root, proc = host(
        V1,
        memory__slurm__job_7__step_0__memory_DOT_oom_control=(
            "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
        ),
        freezer__slurm__job_7__freezer_DOT_state="FROZEN\n",
    )

    assert cgroup.oom_kills(cgroup.memory_events(41, root, proc)) == 3
    assert cgroup.is_frozen(cgroup.freezer(41, root, proc)) is True


def test_version_2_counts_kills_in_memory_events_and_says_frozen_in_cgroup_events(host):
    root, proc = host(
        V2,
        **{
            "user.slice__run-7.scope__memory_DOT_events": (
                "low 0\nhigh 0\nmax 12\noom 4\noom_kill 2\noom_group_kill 0\n"
            ),
            "user.slice__run-7.scope__cgroup_DOT_events": "populated 1\nfrozen 0\n",
        },
    )

    assert cgroup.oom_kills(cgroup.memory_events(41, root, proc)) == 2
    assert cgroup.is_frozen(cgroup.freezer(41, root, proc)) is False


def test_in_a_container_the_group_is_the_mounts_own_root(host):
    """docker with version 1: /proc/PID/cgroup has the host's path, which is not mounted inside."""
    root, proc = host("4:memory:/docker/4f2a\n", memory__memory_DOT_oom_control="oom_kill 1\n")

    assert cgroup.oom_kills(cgroup.memory_events(41, root, proc)) == 1
    assert cgroup.freezer(41, root, proc) is None


@pytest.mark.parametrize(
    "text", ["", "nonsense", "4:memory", "0::/../../etc\n", "4:memory:/x\n", ":::\n"]
)
def test_what_cannot_be_read_is_not_measured(host, text):
    root, proc = host(text)

    assert cgroup.memory_events(41, root, proc) is None
    assert cgroup.memory_events(42, root, proc) is None
    assert cgroup.oom_kills(None) is None
    assert cgroup.is_frozen(None) is None


@pytest.mark.parametrize("content", ["", "oom_kill", "oom_kill many", "oom 3"])
def test_a_file_without_the_count_is_not_measured(tmp_path, content):
    file = tmp_path / "memory.events"
    file.write_text(content)

    assert cgroup.oom_kills(file) is None
    assert cgroup.is_frozen(file) is None


def test_a_half_frozen_group_is_not_frozen_yet(tmp_path):
    file = tmp_path / "freezer.state"
    file.write_text("FREEZING\n")

    assert cgroup.is_frozen(file) is False


def test_this_very_process_is_not_frozen():
    assert cgroup.is_frozen(cgroup.freezer(os.getpid())) in (None, False)


@pytest.mark.parametrize(
    ("own", "above", "expected"),
    [
        (("100", "90"), ("max", "95"), (100, 90)),
        (("100", "5"), ("200", "199"), (200, 199)),
        (("max", "5"), ("max", "9"), (None, None)),
    ],
)
def test_of_a_group_and_those_above_it_the_nearest_limit_of_threads_counts(
    host, own, above, expected
):
    """Kubernetes and Slurm set it on the pod or the job, a group above."""
    root, proc = host(
        V2,
        **{
            "user.slice__run-7.scope__pids_DOT_max": own[0],
            "user.slice__run-7.scope__pids_DOT_current": own[1],
        },
        **{"user.slice__pids_DOT_max": above[0], "user.slice__pids_DOT_current": above[1]},
    )

    assert cgroup.pids(cgroup.pids_folder(41, root, proc)) == expected


def test_without_such_a_controller_no_limit_of_threads_is_known(host):
    root, proc = host(V2)

    assert cgroup.pids(cgroup.pids_folder(41, root, proc)) == (None, None)
