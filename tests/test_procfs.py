"""What is read of a process, from the real /proc and from a made one."""

import os
import shutil
import subprocess
import sys

import pytest

from ddtop import launch, procfs
from tests.launch.environments import HYDRA


def test_fields_begin_with_the_state_and_the_parent():
    state, parent = procfs.read_stat(os.getpid())[:2]

    assert state == "R"
    assert int(parent) == os.getppid()


def test_a_program_may_have_blanks_and_parentheses_in_its_name(tmp_path):
    """A name like `a) R 1 (b` must not be parsed as fields."""
    program = tmp_path / "a) R 1 (b"
    shutil.copy(shutil.which("cat"), program)
    with subprocess.Popen([program], stdin=subprocess.PIPE) as process:
        fields = procfs.read_stat(process.pid)
        assert int(fields[1]) == os.getpid()


def test_a_process_that_is_gone_is_reported_from_one_that_cannot_be_read(monkeypatch):
    with pytest.raises(FileNotFoundError):
        procfs.read_stat(1 << 22)
    assert procfs.stat_fields(1 << 22) is None


def test_a_line_that_is_cut_is_no_line(monkeypatch):
    monkeypatch.setattr(procfs, "STAT_BYTES_MAX", 40)

    with pytest.raises(ValueError):  # noqa: PT011
        procfs.read_stat("self")
    assert procfs.stat_fields("self") is None


def test_a_thread_has_a_line_of_its_own():
    assert procfs.stat_fields(f"{os.getpid()}/task/{os.getpid()}")[1] == str(os.getppid())


# -- the processes above


def test_the_launcher_is_found_above_a_shell(tmp_path):
    """torchrun is the parent of the ranks, or their grandparent if a shell script is in between."""
    program = tmp_path / "torchrun"
    program.write_text(
        "import subprocess; subprocess.run(['sh', '-c', 'echo $$; read line; true'])"
    )
    with subprocess.Popen(
        [sys.executable, str(program), "--nnodes", "2", "--master-addr=node0", "train.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as torchrun:
        shell = int(torchrun.stdout.readline())
        found = [
            launch.node_options({}, procfs.command_lines(pid))[:2] for pid in (torchrun.pid, shell)
        ]
        assert found == [("node0:29500", 2)] * 2


def test_hydras_ranks_find_the_proxy_above_them():
    """mpiexec > hydra_pmi_proxy --control-port HOST:PORT > sh > python."""
    code = (
        "import os, subprocess; print(os.getpid(), flush=True);subprocess.run(['sh', '-c', 'read"
        " line; true'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, "--control-port", "node0:4711", "--rmk", "user"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as proxy:
        assert proxy.stdout.readline().strip() == str(proxy.pid).encode()
        start = launch.find_start(HYDRA, procfs.command_lines(proxy.pid))
        assert start == ("hydra-node0:4711", "4711", False)


def test_a_process_that_is_gone_ends_the_list():
    assert list(procfs.command_lines(1 << 22)()) == []
    assert list(procfs.command_lines(0)()) == []


def test_the_nearest_process_comes_first():
    lines = list(procfs.command_lines(os.getpid())())

    assert list(lines[0]) == sys.orig_argv
    assert 1 <= len(lines) <= 4


def test_the_parent_of_a_process_is_read_from_proc():
    assert procfs.parent_of(os.getpid()) == os.getppid()
    assert procfs.parent_of(1 << 22) is None


# -- a made /proc


@pytest.fixture
def process(monkeypatch, tmp_path):
    """The folder of process 7, which is empty."""
    monkeypatch.setattr(procfs, "ROOT", str(tmp_path))
    folder = tmp_path / "7"
    folder.mkdir()
    return folder


def test_a_process_that_is_gone_says_nothing(process):
    process.rmdir()

    assert procfs.command_line(7) is None
    assert procfs.environment_of(7) is None
    assert procfs.owner_of(7) is None
    assert procfs.status(7) == ""
    assert procfs.status_of("", "NSpid") is None
    assert procfs.scheduled_ns(7) == (None, None)
    assert (procfs.tasks(7), procfs.children(7)) == ([], ())
    assert (procfs.io_bytes(7), procfs.switches(7), procfs.wchan(7)) == (None, None, None)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ()),
        (b"python\0train.py\0", ("python", "train.py")),
        (b"python\0\0train.py\0", ("python", "", "train.py")),
        (b"ray::train\0\0\0\0\0", ("ray::train",)),
        (b"\xff\0", ("\ufffd",)),
    ],
)
def test_a_command_line_is_words_whoever_wrote_it(process, data, words):
    (process / "cmdline").write_bytes(data)

    assert procfs.command_line(7) == words


@pytest.mark.parametrize(
    ("exe", "first_word", "is_one"),
    [
        ("/usr/bin/python3.11", "python", True),
        ("/usr/bin/python3.11 (deleted)", "python", True),
        ("/opt/conda/envs/a/bin/python3.13t", "train", True),
        ("/opt/paraview/bin/pvpython", "pvpython", True),
        ("/opt/python/bin/node", "python", False),
        ("/usr/bin/bash", "python", False),
        (None, "/usr/bin/python3", True),
        (None, "/opt/python/bin/node", False),
        (None, "", False),
    ],
)
def test_a_python_is_known_by_its_program_or_else_by_its_first_word(
    process, exe, first_word, is_one
):
    """The link of another user's process cannot be read."""
    (process / "cmdline").write_bytes(first_word.encode() + b"\0")
    if exe is not None:
        (process / "exe").symlink_to(exe)

    assert procfs.is_python(7) is is_one


def test_an_environment_is_what_the_process_was_started_with(process):
    (process / "environ").write_bytes(b"RANK=3\0EMPTY=\0URL=a=b\0not a variable\0\0")

    found = procfs.environment_of(7)

    assert found == {"RANK": "3", "EMPTY": "", "URL": "a=b", "not a variable": ""}


def test_a_line_of_the_status_is_found_by_its_whole_name(process):
    (process / "status").write_bytes(b"Name:\tpython\nVmSize:\t 12 kB\nxVmData:\t1\nSigCgt:\t0a\n")
    text = procfs.status(7)

    assert procfs.status_of(text, "VmSize") == "12 kB"
    assert procfs.status_of(text, "VmData") is None
    assert procfs.signals_in(text, "SigCgt") == 10
    with pytest.raises(ValueError):  # noqa: PT011
        procfs.signals_in(text, "SigBlk")


def test_what_py_spy_holds_is_not_stopped_by_a_debugger(process):
    (process / "status").write_bytes(b"Name:\tpython\nTracerPid:\t9\n")
    tracer = process.parent / "9"
    tracer.mkdir()

    found = []
    for name in ("py-spy", "gdb"):
        (tracer / "comm").write_text(f"{name}\n")
        found.append(procfs.own_letter(7, "t"))

    assert found == ["S", "t"]


def test_the_processes_above_end_at_the_first_of_all(process):
    for pid, parent in ((7, 6), (6, 5), (5, 1)):
        folder = process.parent / str(pid)
        folder.mkdir(exist_ok=True)
        fields = " ".join(["S", str(parent), *["0"] * 40])
        (folder / "stat").write_text(f"{pid} (python) {fields}")

    assert procfs.parents(7, 8) == [6, 5]
    assert procfs.parents(7, 1) == [6]


def test_a_program_that_gives_its_code_the_name_of_a_pipe_has_no_lines(tmp_path):
    """To open it would wake whoever waits at its other end."""
    pipe, source = tmp_path / "step.py", tmp_path / "train.py"
    os.mkfifo(pipe)
    source.write_text("a = 1\n")
    os.utime(pipe, (0, 0))
    os.utime(source, (0, 0))

    assert procfs.program_lines(os.getpid(), str(pipe)) is None
    assert procfs.program_lines(os.getpid(), str(source)) == ["a = 1"]
