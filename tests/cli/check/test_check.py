"""`ddtop check` on this host, with real ranks."""

import os
import socket
import sys

import pytest

from tests.cli.commands import ddtop

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("open('it-ran', 'w')\n")
    return str(path)


def rows(done):
    return [line.split(maxsplit=2) for line in done.stdout.splitlines() if line[:1] != " "]


@pytest.mark.job
def test_a_healthy_host_passes_and_the_program_is_not_run(program, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)

    done = ddtop("check", "--", *TORCHRUN, "--nproc-per-node", "2", program, exits=0)

    assert ["ok", "meeting", "2 ranks on 1 node have met"] in rows(done)
    assert any(row[:2] == ["ok", "all_reduce"] for row in rows(done))
    assert not os.path.exists("it-ran")


def test_a_port_that_is_taken_is_wrong_and_its_holder_is_named(program):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = ddtop("check", "--", *TORCHRUN, "--master-port", port, program)

    assert done.returncode == 1
    assert f"127.0.0.1:{port} is taken on this host by process {os.getpid()}" in done.stdout
    assert "-> end the process that holds it, or use another port" in done.stdout


def test_nodes_that_would_look_for_each_other_on_themselves_are_wrong(program):
    words = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:29400")
    done = ddtop("check", "--", *TORCHRUN, *words, program, exits=1)

    assert "each node would look for the others on itself" in done.stdout


def test_a_name_that_does_not_exist_is_wrong(program):
    words = ("--nnodes", "2", "--master-addr", "nowhere.invalid")
    done = ddtop("check", "--", *TORCHRUN, *words, program, exits=1)

    assert "nowhere.invalid does not resolve" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("check",), 2, "missing argument"),
        (("check", "--", "python", "train.py"), 2, "there is no torchrun in"),
        (("check", "torchrun", "--no-such", "t.py"), 2, "--no-such is not an option of torchrun"),
        (("check", "--", "/no/torchrun", "t.py"), 3, "/no/torchrun is not found"),
    ],
)
def test_a_wrong_command_line_gets_one_sentence(words, code, text):
    done = ddtop(*words)

    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr
