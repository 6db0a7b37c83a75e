"""Stacks by signal: our handler runs beside the program's own and never replaces them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import python

HEAD = """
import faulthandler, os, signal, sys
from pathlib import Path
from ddtop.agent.stacks.dump import DumpFile
folder = Path(sys.argv[1])
def made(wanted="on"):
    return DumpFile(folder, "x.stacks", wanted)
def written():
    return (folder / "x.stacks").read_text()
"""


def run(tmp_path: Path, code: str) -> str:
    """What the program prints. It must exit with code 0."""
    done = python("-c", HEAD + code, str(tmp_path), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_signal_writes_all_stacks_to_the_ranks_own_file(tmp_path):
    out = run(tmp_path, "one = made()\nos.kill(os.getpid(), one.signal)\nprint(written())")

    assert "most recent call first" in out
    assert "<module>" in out
    assert (tmp_path / "x.stacks").stat().st_mode & 0o777 == 0o600


MASKS = """
def masks():
    with open("/proc/self/status") as file:
        return {name: int(text, 16) for name, _, text in (line.partition(":") for line in file) if name in ("SigBlk", "SigIgn", "SigCgt")}
before = masks()
"""  # noqa: E501


@pytest.mark.parametrize("wanted", ["", "on", " ON "])
def test_unless_the_user_says_no_one_more_signal_is_caught_and_nothing_else_changes(
    tmp_path, wanted
):
    code = f"""{MASKS}
one = made({wanted!r})
after = masks()
print(one.signal - signal.SIGRTMIN, after.pop("SigCgt") ^ before.pop("SigCgt") == 1 << one.signal - 1, after == before)
"""  # noqa: E501
    assert run(tmp_path, code) == "5 True True"


def test_the_programs_own_handlers_all_still_work(tmp_path):
    """SIGUSR1, SIGUSR2, SIGTERM and its own faulthandler, before and after ours."""
    code = """
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append("usr1"))
faulthandler.enable(file=open(folder / "fatal", "w"))
faulthandler.register(signal.SIGUSR2, file=open(folder / "theirs", "w"), all_threads=True)
one = made()
signal.signal(signal.SIGTERM, lambda *_: seen.append("term"))
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, one.signal):
    os.kill(os.getpid(), number)
print(seen, "<module>" in (folder / "theirs").read_text(), "<module>" in written(), faulthandler.is_enabled())
"""  # noqa: E501
    assert run(tmp_path, code) == "['usr1', 'term'] True True True"


@pytest.mark.parametrize(
    "taken",
    [
        "signal.signal(signal.SIGRTMIN + 5, lambda *_: print('theirs'))",
        "signal.signal(signal.SIGRTMIN + 5, signal.SIG_IGN)",
        "faulthandler.register(signal.SIGRTMIN + 5, file=sys.stdout)",
    ],
)
def test_a_signal_that_the_program_uses_is_left_to_it(tmp_path, taken):
    """This also holds if the handler was set from C, which Python's own table does not show."""
    out = run(tmp_path, f"{taken}\none = made()\nprint(one.signal, one.path, one.off is not None)")

    assert out == "None None True"


def test_a_program_that_takes_the_signal_later_has_it(tmp_path):
    code = """
one = made()
before = one.still_ours()
signal.signal(signal.SIGRTMIN + 5, lambda *_: print("theirs"))
after = one.still_ours()
os.kill(os.getpid(), signal.SIGRTMIN + 5)
print(before, after, one.signal, one.still_ours())
"""
    assert run(tmp_path, code) == "theirs\nTrue False None True"


BY_C = """
import ctypes
LIBC = ctypes.PyDLL(None)
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: print("theirs"))
LIBC.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
def take(number):
    LIBC.signal(number, ctypes.cast(HANDLER, ctypes.c_void_p))
"""


@pytest.mark.parametrize(
    "taken",
    [
        "take(one.signal)",
        "signal.signal(one.signal, lambda *_: print('theirs'))",
        "signal.signal(one.signal, signal.SIG_IGN); print('theirs')",
    ],
)
def test_the_programs_later_handler_is_not_undone_at_the_end_of_the_interpreter(tmp_path, taken):
    """There faulthandler restores what it found. Handlers from C are not in Python's table."""
    code = f"""{BY_C}
one = made()
number = one.signal
{taken}
print(one.still_ours(), one.signal, "has its own handler" in one.off)
print(faulthandler.unregister(number), flush=True)
os.kill(os.getpid(), number)
"""
    assert sorted(run(tmp_path, code).splitlines()) == ["False", "False None True", "theirs"]


def test_a_signal_that_comes_after_the_end_of_the_interpreter_does_not_kill(tmp_path):
    """faulthandler forgets it there; a timer of a C library may send it still."""
    code = """
one = made()
print(faulthandler.unregister(one.signal))
os.kill(os.getpid(), one.signal)
"""
    assert run(tmp_path, code) == "True"


def test_a_forked_child_that_takes_the_signal_and_then_becomes_a_rank_keeps_it(tmp_path):
    code = f"""{BY_C}
one = made()
child = os.fork()
if not child:
    take(one.signal)
    own = DumpFile(folder, "child.stacks", "")
    os.kill(os.getpid(), one.signal)
    print(own.signal, own.off, flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    assert run(tmp_path, code) == (
        f"theirs\nNone signal {signal.SIGRTMIN + 5} is handled or ignored already\n0"
    )


@pytest.mark.parametrize(
    ("wanted", "number"),
    [
        ("SIGUSR1", signal.SIGUSR1),
        ("usr2", signal.SIGUSR2),
        ("RTMIN+7", signal.SIGRTMIN + 7),
        ("40", 40),
    ],
)
def test_another_signal_can_be_wished_for(tmp_path, wanted, number):
    assert run(tmp_path, f"print(made({wanted!r}).signal)") == str(int(number))


def test_a_wish_that_makes_no_sense_switches_it_off_and_says_so(tmp_path):
    wishes = ("KILL", "9", "0x10", "999", "RTMIN+x", "RTMIN+99", "nonsense", "-3", "STOP")
    code = f"""
for wanted in {wishes!r}:
    one = made(wanted)
    print(one.signal, one.off)
"""
    said = run(tmp_path, code).splitlines()

    assert len(said) == len(wishes)
    assert [line for line in said if not line.startswith("None DDTOP_SIGNAL=")] == []


@pytest.mark.parametrize("wanted", ["off", "0"])
def test_it_can_be_switched_off(tmp_path, wanted):
    """A program that ends another one by SIGRTMIN+5 must still be able to."""
    code = f"""{MASKS}
one = made({wanted!r})
print(one.signal, one.path, one.descriptor, masks() == before)
"""
    assert run(tmp_path, code) == "None None None True"


def test_system_calls_of_the_program_are_taken_up_again(tmp_path):
    """chain=True would have dropped SA_RESTART: a read in C code would fail with EINTR."""
    code = """
import ctypes
one = made()
print(one.signal, flush=True)
print(ctypes.PyDLL(None, use_errno=True).read(0, ctypes.create_string_buffer(8), 8), ctypes.get_errno())
"""  # noqa: E501
    with subprocess.Popen(
        [sys.executable, "-c", HEAD + code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        number = int(reader.stdout.readline())
        while "pipe" not in Path(f"/proc/{reader.pid}/wchan").read_text():
            assert reader.poll() is None
        os.kill(reader.pid, number)
        while not (tmp_path / "x.stacks").read_text():
            assert reader.poll() is None
        out, _ = reader.communicate("data")

    assert out == "4 0\n"


def test_a_forked_child_that_becomes_a_rank_gets_a_file_of_its_own(tmp_path):
    code = """
one = made()
child = os.fork()
if not child:
    own = DumpFile(folder, "child.stacks", "on")
    os.kill(os.getpid(), own.signal)
    os._exit(0)
print(os.waitpid(child, 0)[1], "<module>" in (folder / "child.stacks").read_text(), repr(written()))
"""
    assert run(tmp_path, code) == "0 True ''"


def test_without_a_folder_there_is_no_signal(tmp_path):
    assert (
        run(tmp_path, "one = DumpFile(None, 'x', 'on')\nprint(one.signal, one.off)")
        == "None no folder for its file"
    )


def test_a_file_that_cannot_be_made_switches_it_off(tmp_path):
    (tmp_path / "x.stacks").symlink_to(tmp_path / "elsewhere")

    out = run(tmp_path, "one = made()\nprint(one.signal, one.off)")

    assert out.startswith("None OSError")
    assert not os.path.lexists(tmp_path / "elsewhere")
