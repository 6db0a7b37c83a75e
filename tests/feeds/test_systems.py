"""Which jobs of this host belong together: real processes and connections."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest

from ddtop import registry
from ddtop.feeds.systems import of_one_name, system_of, systems_of
from tests.entries import entry

SERVE = """
import socket
server = socket.create_server(("127.0.0.1", 0)); print(server.getsockname()[1], flush=True)
peer = server.accept()[0]; peer.recv(1)
"""
ASK = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1]))); print("up", flush=True)
peer.recv(1)
"""
WAIT = "import sys; print('up', flush=True); sys.stdin.read()"
DRIVE = """
import subprocess, sys
children = [subprocess.Popen([sys.executable, "-c", "input()"]) for _ in range(2)]
print(*[child.pid for child in children], flush=True)
[child.wait() for child in children]
"""


@contextmanager
def orphan(program, argument=""):
    """A process that no Python is above, as one that a shell has started. Yields its pid and what
    it has said."""
    shell = 'exec 3<&0; "$1" -c "$2" "$3" <&3 & echo $!'
    words = ["sh", "-c", shell, "sh", sys.executable, program, argument]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        pid = int(started.stdout.readline())
        try:
            yield pid, started.stdout.readline().strip()
        finally:
            os.kill(pid, signal.SIGKILL)


def job(name, *pids, started=1):
    ranks = tuple((pid, registry.start_ticks(pid)) for pid in pids)
    return entry(
        name, sender=registry.host_identity(), ranks=ranks, started_unix_ns=started, relay_pid=0
    )


def test_jobs_with_a_connection_between_their_ranks_are_one_system_and_others_are_not_in_it():
    with ExitStack() as stack:
        server, port = stack.enter_context(orphan(SERVE))
        client, _ = stack.enter_context(orphan(ASK, port))
        alone, _ = stack.enter_context(orphan(WAIT))
        later = job("rollout", server, started=2)
        first = job("trainer", client, started=1)
        other = job("other", alone)

        systems = systems_of([later, other, first])

        assert systems == [(first, later)]
        assert system_of(later, systems) == (first, later)
        assert system_of(other, systems) == ()


def test_jobs_that_one_program_has_started_are_one_system():
    with orphan(DRIVE) as (_, said):
        one, two = map(int, said.split())
        try:
            assert systems_of([job("a", one), job("b", two, started=2)]) == [
                (job("a", one), job("b", two, started=2))
            ]
        finally:
            for pid in (one, two):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("gone", ["rank", "host"])
def test_a_job_without_a_living_rank_here_belongs_to_nothing(gone):
    with orphan(SERVE) as (server, port), orphan(ASK, port) as (client, _):
        there, here = job("a", server), job("b", client)
        ranks = ((server, 1),) if gone == "rank" else there.ranks
        sender = "elsewhere" if gone == "host" else there.sender

        assert systems_of([entry("a", sender=sender, ranks=ranks, relay_pid=0), here]) == []


def test_runs_of_one_name_belong_together_while_their_ranks_live():
    """A world that has spawned another one: both are called what $DDTOP_JOB says."""
    with ExitStack() as stack:
        parent, child = (stack.enter_context(orphan(WAIT))[0] for _ in range(2))
        first, second = job("train", parent), job("train", child, started=2)
        ended = entry("train", sender=registry.host_identity(), ranks=((parent, 1),), relay_pid=0)

        assert of_one_name([second, ended, first]) == (first, second)
        assert of_one_name([first, ended]) == ()
