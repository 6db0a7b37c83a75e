"""Which right is missing to read stacks: one sentence, with the command that helps."""

import os

import pytest

from ddtop.cli import outside
from ddtop.relay.processes import pyspy


@pytest.fixture
def here(monkeypatch):
    """A user who is not root, with py-spy and no outside of its own."""
    monkeypatch.setattr(pyspy, "find", lambda: "/opt/py-spy")
    monkeypatch.setattr(pyspy, "may_trace_others", lambda: False)
    monkeypatch.setattr(pyspy, "yama_scope", lambda: 0)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(outside, "owner_of", lambda _pid: 1000)
    return monkeypatch


def needed():
    return outside.missing_right([11, 12], "diagnose", "10")


def test_nothing_is_lacking_for_processes_of_this_user(here):
    assert needed() is None


def test_without_py_spy_the_command_that_installs_it_is_named(here):
    here.setattr(pyspy, "find", lambda: None)

    assert "pip install 'ddtop[native]'" in needed()


def test_processes_of_another_user_need_root(here):
    here.setattr(outside, "owner_of", lambda _pid: 1001)

    assert "another user" in needed()
    assert needed().endswith("sudo $(command -v ddtop) diagnose --pid 10")


@pytest.mark.parametrize(
    ("scope", "words"), [(1, "only parents"), (2, "only root"), (3, "until the next boot")]
)
def test_what_yama_forbids_is_reported_with_the_same_command_under_sudo(here, scope, words):
    here.setattr(pyspy, "yama_scope", lambda: scope)

    assert words in needed()
    assert scope == 3 or needed().endswith("sudo $(command -v ddtop) diagnose --pid 10")


def test_root_in_a_container_needs_a_capability(here):
    here.setattr(os, "getuid", lambda: 0)

    assert "--cap-add SYS_PTRACE" in needed()
    assert "kubectl debug" in needed()


def test_a_capability_is_enough(here):
    here.setattr(pyspy, "yama_scope", lambda: 2)
    here.setattr(pyspy, "may_trace_others", lambda: True)

    assert needed() is None
