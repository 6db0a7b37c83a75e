"""Exceptions that the program handles, and after which it ends itself."""

import os
import sys
import threading
from types import SimpleNamespace

import pytest

from ddtop.agent import current
from ddtop.agent.mpi.wrappers import aborting
from ddtop.agent.notes import Notes
from ddtop.agent.probes import exceptions
from ddtop.agent.probes.exceptions import EXITS_NS, note_last
from ddtop.agent.stacks.frames import FrameReader


@pytest.fixture
def rank(monkeypatch):
    """A rank whose hooks are installed. `os._exit` returns."""
    for module in (sys, threading):
        monkeypatch.setattr(module, "excepthook", lambda *_: None)
    monkeypatch.setattr(os, "_exit", lambda *_: None)
    monkeypatch.setattr(sys, "exit", sys.exit)
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    monkeypatch.setattr(sys, "last_exc", None, raising=False)
    found = SimpleNamespace(
        exception=None,
        leaves_after=None,
        frames=FrameReader(),
        notes=Notes(),
        main_id=threading.main_thread().ident,
        page=SimpleNamespace(write=lambda _part, _data: None),
        wake=lambda: None,
    )
    monkeypatch.setattr(current, "_rank", found)
    exceptions.install(found)
    return found


def handles(error, leave):
    """A program that catches this exception and then leaves."""
    try:
        raise error
    except BaseException:  # noqa: BLE001 - as programs do
        try:
            leave()
        except SystemExit:
            return


def told(rank):
    found = rank.exception
    return found and (found.type, found.text, found.thread, found.leads)


@pytest.mark.parametrize("code", [1, 3, "no tokenizer"])
def test_what_is_handled_at_sys_exit_is_told_when_the_interpreter_exits(rank, code):
    handles(KeyError("merges"), lambda: sys.exit(code))
    before = told(rank)
    note_last(rank)

    assert (before, told(rank)) == (None, ("KeyError", "'merges'", "main", False))


@pytest.mark.parametrize("code", [0, None, object()])
def test_an_exit_that_reports_no_failure_tells_nothing(rank, code):
    handles(KeyError("merges"), lambda: sys.exit(code))
    note_last(rank)

    assert told(rank) is None


@pytest.mark.parametrize("leave", [sys.exit, os._exit])
def test_an_exit_outside_of_a_handler_is_told_by_its_line(rank, leave):
    name = leave.__name__

    def gives_up():
        getattr(sys if name == "exit" else os, name)(7)

    rank.frames.is_user = __file__.__eq__
    handles(SystemExit(2), gives_up)
    note_last(rank)

    found = rank.exception
    assert (found.type, found.text, found.place.function) == ("SystemExit", "7", "gives_up")


def test_an_exit_of_another_thread_ends_only_that_one(rank):
    thread = threading.Thread(target=handles, args=(KeyError("x"), lambda: sys.exit(1)))
    thread.start()
    thread.join()
    note_last(rank)

    assert told(rank) is None


@pytest.mark.parametrize("leave", [lambda: sys.exit(1), lambda: os._exit(1)])
def test_a_forked_child_of_the_rank_tells_nothing(rank, monkeypatch, leave):
    """The page belongs to its parent."""
    monkeypatch.setattr(current, "_rank", None)
    handles(KeyError("merges"), leave)
    note_last(rank)

    assert told(rank) is None


def test_a_program_that_has_caught_the_exit_and_gone_on_has_not_failed_by_it(rank, monkeypatch):
    handles(KeyError("merges"), lambda: sys.exit(1))
    at = rank.leaves_after.unix_ns + EXITS_NS
    monkeypatch.setattr("time.time_ns", lambda: at)
    note_last(rank)

    assert told(rank) is None


def test_what_was_raised_before_stays(rank):
    try:
        raise ValueError("first")
    except ValueError as error:
        exceptions.note(rank, ValueError, error, error.__traceback__, "main")
    handles(KeyError("then"), lambda: sys.exit(1))
    note_last(rank)

    assert told(rank)[0] == "ValueError"


@pytest.mark.parametrize("leave", [lambda: os._exit(3), lambda: aborting(int)(0)])
def test_what_is_handled_when_the_process_ends_at_once_is_told_at_once(rank, leave):
    handles(ValueError("negative variance"), leave)

    assert told(rank) == ("ValueError", "negative variance", "main", True)


def test_os_exit_with_code_0_tells_nothing(rank):
    handles(ValueError("negative variance"), lambda: os._exit(0))

    assert told(rank) is None
