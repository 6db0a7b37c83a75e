"""Which processes belong to a job without being one of its ranks."""

import os
import subprocess
import sys

import pytest

from ddtop.relay.gpus.reader import describe
from ddtop.relay.processes import family as process_tree

ENDLESS = "import sys; print('up', flush=True); sys.stdin.read()"
PARENT = (
    f"import subprocess, sys; one = subprocess.Popen([sys.executable, '-c', {ENDLESS!r}]);"
    " print(one.pid, flush=True); one.wait()"
)


@pytest.fixture
def family():
    """(the parent's pid, its child's): both live until the test has ended."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        # The child prints a line when it runs its program. The order of both lines is open.
        said = {one.stdout.readline().strip(), one.stdout.readline().strip()}
        yield one.pid, int((said - {"up"}).pop())
        one.communicate()


def test_what_the_launcher_has_started_is_of_the_job(family):
    parent, child = family

    assert process_tree.is_of_the_job(child, parent, ())
    assert process_tree.is_of_the_job(child, os.getpid(), ())
    assert process_tree.is_of_the_job(parent, parent, ())


def test_what_has_started_a_rank_is_of_the_job(family):
    parent, child = family

    assert process_tree.is_of_the_job(parent, 0, [child])
    assert not process_tree.is_of_the_job(child, 0, [parent])


def test_anybody_else_is_not(family):
    parent, _ = family

    assert not process_tree.is_of_the_job(os.getpid(), parent, [os.getppid()])
    assert not process_tree.is_of_the_job(1 << 22, parent, ())


def test_two_programs_of_one_shell_have_nothing_in_common(family, monkeypatch):
    parent, child = family
    monkeypatch.setattr(process_tree, "_starts_anything", lambda pid: pid == parent)

    assert not process_tree.is_of_the_job(child, parent, ())
    assert not process_tree.is_of_the_job(parent, 0, [child])


def test_a_shell_is_known_by_its_name():
    command = ["/bin/sh", "-c", "echo here; read line; true"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        # The kernel sets its name a moment after it has released the parent.
        shell.stdout.readline()
        assert process_tree._starts_anything(shell.pid)
        shell.communicate(b"\n")
    assert not process_tree._starts_anything(os.getpid())


def test_a_process_that_has_ended_since_the_driver_was_asked_is_nobody_here():
    with subprocess.Popen([sys.executable, "-c", "pass"]) as one:
        pass

    assert (describe(one.pid).local, describe(os.getpid()).local) == (False, True)
    assert describe(1).local is True
