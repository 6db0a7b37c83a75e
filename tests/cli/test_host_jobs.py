"""Root sees the jobs of all users of the host, and ignores files of theirs that are not as they
should be.
"""

from __future__ import annotations

import json
import os
import stat
import sys

import pytest

from ddtop.cli import job_list
from ddtop.cli.job_list import HEALTH, SERIES, OtherUsers, UserFolder, folders, health_in, series_in
from ddtop.metrics import SERIES_MAX
from tests.relay.stage import DEADLINE_S, listed_job

ADA = 54321
NAMESPACES = {"mnt": "mnt:[1]", "net": "net:[2]"}


def process(proc, pid, words, environment, uid=ADA, namespaces=NAMESPACES):
    """A process as /proc shows it."""
    folder = proc / str(pid)
    (folder / "ns").mkdir(parents=True)
    (folder / "cmdline").write_bytes(b"\0".join(word.encode() for word in words) + b"\0")
    pairs = [f"{name}={value}".encode() for name, value in environment.items()]
    (folder / "environ").write_bytes(b"\0".join(pairs) + b"\0")
    for name, link in namespaces.items():
        (folder / "ns" / name).symlink_to(link)
    if uid is not None:
        os.chown(folder, uid, uid)


as_root = pytest.mark.skipif(os.getuid() != 0, reason="not root: files cannot belong to others")
RELAY = ("/usr/bin/python3", "-m", "ddtop.relay", "--job", "train", "--run", "r1")


@as_root
def test_the_relays_of_other_users_tell_where_their_jobs_are(tmp_path):
    process(tmp_path, "self", (), {}, uid=None)
    process(tmp_path, 10, RELAY, {"HOME": "/home/ada", "LD_PRELOAD": "/home/ada/evil.so"})
    process(tmp_path, 11, RELAY, {"HOME": "/home/ada"})
    process(tmp_path, 12, RELAY, {"HOME": "/root"}, uid=None)
    process(tmp_path, 13, ("/usr/bin/python3", "train.py"), {"HOME": "/home/ada"})
    elsewhere = NAMESPACES | {"mnt": "mnt:[7]"}
    process(tmp_path, 14, RELAY, {"HOME": "/home/bob"}, uid=ADA + 1, namespaces=elsewhere)
    process(tmp_path, 15, RELAY, {"HOME": "/home/eve", "DDTOP_STATE": "/s"}, uid=ADA + 2)

    found = folders(tmp_path)

    assert [(one.uid, dict(one.environment)) for one in found] == [
        (ADA, {"HOME": "/home/ada"}),
        (ADA + 2, {"HOME": "/home/eve", "DDTOP_STATE": "/s"}),
    ]


@as_root
def test_a_user_with_many_state_folders_or_many_users_are_bounded(tmp_path):
    process(tmp_path, "self", (), {}, uid=None)
    for number in range(20):
        process(tmp_path, 100 + number, RELAY, {"DDTOP_STATE": f"/s{number}"})
    for number in range(80):
        process(tmp_path, 200 + number, RELAY, {"HOME": "/h"}, uid=ADA + 1 + number)

    found = folders(tmp_path)

    assert sum(one.uid == ADA for one in found) == job_list.FOLDERS_MAX
    assert len({one.uid for one in found}) == job_list.USERS_MAX


def test_samples_that_are_none_of_ours_are_left_out():
    rows = [
        ["ddtop_world_size", 4, []],
        ["ddtop_world_size", 5, []],
        ["ddtop_world_size", 6, ["more"]],
        ["ddtop_up", 1, []],
        ["ddtop_evil", 1, []],
        ["ddtop_job_info", 1, ["r1", "s", "root", "h", "gloo", "4", "torchrun", "x" * 500]],
        *(["ddtop_finding", 1, [f"kind {number}", "critical"]] for number in range(500)),
    ]

    found = series_in(json.dumps(rows).encode(), "ada")

    by_name = {one.family: one for one in found.samples}
    assert len(found.samples) <= SERIES_MAX
    assert set(by_name) == {"ddtop_world_size", "ddtop_job_info", "ddtop_finding"}
    assert by_name["ddtop_world_size"].value == 5
    assert by_name["ddtop_job_info"].labels[2] == "ada"
    assert max(len(label) for label in by_name["ddtop_job_info"].labels) == 120
    assert len({(one.family, one.labels) for one in found.samples}) == len(found.samples)


@pytest.mark.parametrize("said", [{"word": "splendid"}, {"word": 3}, [], "ok", {}])
def test_a_health_that_is_none_is_refused(said):
    with pytest.raises(ValueError, match=r".+"):
        health_in(json.dumps(said).encode(), "ada")


def others(kind, decode, environment, **more):
    folder = UserFolder(os.getuid(), tuple(environment.items()), sys.executable, "")
    return OtherUsers(kind, decode, lambda: [folder], **more)


@pytest.fixture
def stage(home):
    with listed_job(home) as found:
        yield found


@as_root
@pytest.mark.parametrize("kind", [HEALTH, SERIES])
def test_a_job_is_read_by_a_process_of_its_user_and_named_after_it(stage, kind):
    there = {name: os.environ[name] for name in ("DDTOP_STATE", "DDTOP_RUNTIME")}
    found = others(kind, health_in if kind == HEALTH else series_in, there)
    found.start()
    try:
        (job,) = found.wait(3 * DEADLINE_S)
    finally:
        found.close()

    assert job.entry.job == "root/train"
    assert job.contact is None
    if kind == HEALTH:
        assert job.value.world_size == 2
    else:
        assert ("ddtop_world_size", 2.0) in {one[:2] for one in job.value.samples}


HOSTILE = {
    "no JSON": "print('hello', flush=True)",
    "another shape": """print('{"jobs": 4}', flush=True)""",
    "an entry that is none": """print('{"jobs": [{"entry": {}, "value": null, "contact": null,'
        ' "age_s": 0, "looks": 1}]}', flush=True)""",
    "nested without end": "print('[' * 100000, flush=True)",
    "a line without an end": """
import os
while True:
    os.write(1, b'x' * 65536)""",
    "nothing": "pass",
    "a lone surrogate": r"""print('{"jobs": [], "problem": "\\ud800"}', flush=True)""",
}


@as_root
@pytest.mark.parametrize("said", HOSTILE)
def test_what_such_a_process_says_harms_nobody(said, tmp_path, monkeypatch):
    """The Python of root and that of the user are replaced by the program."""
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\n{HOSTILE[said]}\nimport time; time.sleep(60)\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(job_list.sys, "executable", str(program))
    found = others(HEALTH, health_in, {})
    started = []
    start = job_list._Reader._start
    monkeypatch.setattr(
        job_list._Reader, "_start", lambda self: started.append(start(self)) or started[-1]
    )
    if said == "nothing":
        program.write_text(f"#!{sys.executable}\n")
    found.start()
    try:
        jobs = found.wait(DEADLINE_S)
        problems = found.problems
    finally:
        found.close()
    for one in started:
        one.wait(DEADLINE_S)

    assert jobs == ()
    assert len(problems) == 1
    assert "the jobs of root" in problems[0]


def test_whose_job_it_is_stands_before_its_name():
    assert job_list.user_of("ada/train") == ("ada", "train")
    assert job_list.user_of("train") == (None, "train")
