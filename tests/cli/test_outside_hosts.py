"""`diagnose --ssh HOST,HOST` without ddtop; a host is a pid namespace with its own /proc."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from contextlib import aclosing

import pytest

from ddtop.feeds import several
from ddtop.feeds.bridge import SshTarget
from ddtop.follow.live import LiveSource
from ddtop.follow.looks import looks
from ddtop.model.hosts import HostLimits
from ddtop.patience import within
from ddtop.policy import POLICY
from ddtop.relay.processes import pyspy
from ddtop.wire.bridge import AskOutside
from tests.cli.commands import ddtop
from tests.cli.outside import hanging_script

LAUNCHER = """
import os, subprocess, sys
environment = dict(os.environ, WORLD_SIZE="4", MASTER_ADDR="node0", MASTER_PORT="29515")
ranks = []
for rank in sys.argv[2:]:
    numbers = {"RANK": rank, "LOCAL_RANK": str(int(rank) % 2)}
    ranks.append(subprocess.Popen(
        [sys.executable, sys.argv[1]], env=environment | numbers, stdout=subprocess.PIPE
    ))
for one in ranks:
    one.stdout.readline()
print("ready", flush=True)
sys.stdin.read()
for one in ranks:
    one.kill()
    one.wait()
"""
SSH = """#!/bin/sh
while [ "$1" != "--" ]; do shift; done
exec nsenter --target "$(cat {folder}/$2)" --pid --mount sh -c "$3"
"""


def may_make_namespaces():
    if os.getuid() != 0 or not shutil.which("unshare") or not shutil.which("nsenter"):
        return False
    made = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return subprocess.run(made, capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.skipif(pyspy.find() is None, reason="py-spy is not installed"),
    pytest.mark.skipif(not may_make_namespaces(), reason="no pid namespaces can be made here"),
]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """node0 has the ranks 0 and 1, node1 has 2 and 3. Rank 1 is not in the collective."""
    tmp_path = tmp_path_factory.mktemp("hosts")
    script = hanging_script(tmp_path)
    launcher = tmp_path / "torchrun"
    launcher.write_text(LAUNCHER)
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH.format(folder=tmp_path))
    ssh.chmod(0o700)
    started = []
    for name, ranks in (("node0", "01"), ("node1", "23")):
        words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable]
        process = subprocess.Popen(
            [*words, str(launcher), str(script), *ranks],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout.readline()
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
            (tmp_path / name).write_text(children.read().split()[0])
    yield str(ssh)
    for process in started:
        process.communicate()


def test_the_ranks_of_all_hosts_are_put_together(home, hosts):
    remote = f"{sys.executable} -m ddtop"
    words = ("diagnose", "--ssh", "node0,node1", "--remote", remote, "--json")
    done = ddtop(*words, DDTOP_SSH=hosts, exits=1)

    shown = json.loads(done.stdout)
    assert shown["world_size"] == 4
    assert [(one["kind"], one["ranks"], one["victims"]) for one in shown["findings"]] == [
        ("not-in-collective", [1], [0, 2, 3])
    ]


def test_ranks_are_seen_for_longer_than_one_look_there_takes(home, hosts, monkeypatch):
    """Each look had another sender: after half a minute no rank was heard any more."""
    monkeypatch.setenv("DDTOP_SSH", hosts)
    monkeypatch.setattr(several, "SECONDS_MAX", 1.0)
    asked = []
    monkeypatch.setattr(several, "AskOutside", lambda s: asked.append(s) or AskOutside(s))
    remote = f"{sys.executable} -m ddtop"
    feed = several.SeveralFeed([SshTarget(name, remote) for name in ("node0", "node1")])

    async def seen_in_third_look():
        async with aclosing(looks(LiveSource(feed))) as found:
            return await anext(
                look.snapshot async for look in found if len(asked) >= 8 and look.verdict.findings
            )

    try:
        snapshot = asyncio.run(within(seen_in_third_look(), 60.0))
    finally:
        feed.end()

    assert (
        max(rank.agent.report_age_s for rank in snapshot.ranks) < POLICY.of(HostLimits).host_quiet_s
    )
    assert len(snapshot.hosts) == 2


def test_a_host_that_is_not_reached_is_named_and_the_others_are_shown(home, hosts):
    remote = f"{sys.executable} -m ddtop"
    words = ("status", "--ssh", "node1,gone", "--remote", remote, "--json")
    done = ddtop(*words, DDTOP_SSH=hosts)

    shown = json.loads(done.stdout)
    assert [one["rank"] for one in shown["ranks"] if one["pid"] is not None] == [2, 3]
    assert "note: gone: " in done.stderr


def test_without_any_contact_the_exit_code_is_three(home):
    done = ddtop("diagnose", "--ssh", "gone,away", DDTOP_SSH="false")

    assert (done.returncode, done.stdout) == (3, "")
    assert "gone: " in done.stderr
