"""A relay that is known by its port: --hub and DDTOP_HUB, on a host without the job file."""

import socket
import threading

import pytest

from ddtop import registry
from ddtop.cli import routing
from ddtop.cli.errors import CommandError
from ddtop.follow import engine
from tests.cli.commands import ddtop


@pytest.mark.parametrize("command", ["attach", "status", "diagnose", "report"])
def test_a_relay_is_asked_at_its_port(here, tmp_path, command):
    """On a host that has the key of the job but not its file."""
    words = {"DDTOP_STATE": str(tmp_path / "empty"), "DDTOP_KEY": registry.secret().decode()}
    place = f"127.0.0.1:{here.server._link.port}"

    call = (command, "-o", "-") if command == "report" else (command,)

    by_option = ddtop(*call, "--hub", place, **words)
    by_variable = ddtop(*call, DDTOP_HUB=place, **words)

    assert (by_option.returncode, by_variable.returncode) == (0, 0)
    assert "train" in by_option.stdout
    assert "train" in by_variable.stdout


@pytest.mark.parametrize(
    ("place", "code", "text"),
    [
        ("node0", 2, "takes HOST:PORT, not 'node0'"),
        ("node0:0", 2, "takes HOST:PORT"),
        ("127.0.0.1:9", 3, "nobody listens on port 9 of 127.0.0.1"),
        ("no-such-host.invalid:9", 3, "no host is called no-such-host.invalid here"),
    ],
)
def test_a_wrong_hub_is_reported_with_the_reason(home, place, code, text):
    for done, said in (
        (ddtop("status", "--hub", place), "--hub"),
        (ddtop("status", DDTOP_HUB=place), "DDTOP_HUB"),
    ):
        assert (done.returncode, done.stdout) == (code, "")
        assert f"{said} " in done.stderr
        assert text in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("name", "code"), [("train", 0), ("another", 2)])
def test_a_job_that_is_named_beside_a_hub_is_the_one_that_its_relay_has(here, name, code):
    done = ddtop("status", name, "--hub", f"127.0.0.1:{here.server._link.port}")

    assert (done.returncode, "is that of train, not of another" in done.stderr) == (code, code == 2)


def test_a_table_ends_with_its_last_line(here):
    place = f"127.0.0.1:{here.server._link.port}"

    for command in ("status", "diagnose"):
        assert not ddtop(command, "--hub", place).stdout.endswith("\n\n")


def test_a_wrong_key_is_reported_as_another_key_or_program(here, monkeypatch):
    monkeypatch.setattr(engine, "JOIN_S", 0.5)
    monkeypatch.setenv("DDTOP_KEY", "another key than the job's own")

    with pytest.raises(CommandError, match="another key") as error:
        routing.asked_at(f"127.0.0.1:{here.server._link.port}")
    assert error.value.code == 3


@pytest.mark.parametrize(
    "words",
    [
        ["diagnose", "--hub", "a:1", "--ssh", "b"],
        ["stacks", "--pid", "1", "--ssh", "b"],
        ["report", "x", "--pid", "1"],
    ],
)
def test_routes_that_exclude_each_other_are_a_usage_error(home, words):
    done = ddtop(*words)

    assert (done.returncode, done.stdout) == (2, "")


def test_a_name_server_that_does_not_answer_holds_nobody_up(monkeypatch):
    stands = threading.Event()

    def stand(*_given, **_more):
        stands.wait(60)
        raise OSError("too late")

    monkeypatch.setattr(socket, "getaddrinfo", stand)
    try:
        assert (
            routing.no_contact("node0", 1, 0.05)
            == "not reachable: the name node0 was not resolved within 0 s"
        )
    finally:
        stands.set()
