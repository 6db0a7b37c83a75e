"""The state folder, the runtime folder and the key: private, the user's own, and robust against
foreign files.
"""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop import registry
from ddtop.registry import RegistryError
from tests.entries import NOW, S, entry


def mode_of(path):
    return stat.S_IMODE(Path(path).stat().st_mode)


# -- folders


def test_without_a_setting_the_state_is_where_xdg_says(home, monkeypatch, tmp_path):
    monkeypatch.delenv("DDTOP_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert registry.state_dir() == tmp_path / "xdg" / "ddtop"

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert registry.state_dir() == tmp_path / "me" / ".local" / "state" / "ddtop"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(home):
    home.state.mkdir(mode=0o500)

    with pytest.raises(RegistryError, match="cannot write"):
        registry.state_dir()


def test_a_socket_path_that_is_too_long_is_refused_with_the_next_step(home, monkeypatch, tmp_path):
    """Linux cuts the path at 107 bytes, and zmq's message names neither the path nor the limit."""
    monkeypatch.setenv("DDTOP_RUNTIME", str(tmp_path / ("x" * 100)))

    with pytest.raises(
        RegistryError, match=r"longer than 107 bytes; set DDTOP_RUNTIME to a shorter folder"
    ):
        registry.socket_path("train", "r1")


def test_the_socket_of_each_run_is_another_one(home):
    paths = {registry.socket_path(job, run) for job in ("a", "b") for run in ("1", "2")}

    assert len(paths) == 4
    assert registry.socket_path("a", "1") in paths


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("train-4730", "train-4730"),
        ("my job/../x", "my-job-..-x"),
        ("", "job"),
        ("...", "job"),
        ("köln", "k-ln"),
        ("../../etc/passwd", "etc-passwd"),
        ("a" * 100, "a" * 64),
    ],
)
def test_a_job_name_becomes_a_file_name(name, cleaned):
    assert registry.clean_job_name(name) == cleaned


@given(st.text())
def test_any_job_name_becomes_one_harmless_word(name):
    cleaned = registry.clean_job_name(name)

    assert 1 <= len(cleaned) <= registry.JOB_NAME_MAX
    assert "/" not in cleaned
    assert not cleaned.startswith((".", "-"))
    assert registry.clean_job_name(cleaned) == cleaned


# -- the key


def test_the_key_is_made_once_and_private(home):
    first = registry.secret()

    assert registry.secret() == first
    assert mode_of(home.state / "key") == 0o600
    assert len(first) == 64
    assert [path.name for path in home.state.iterdir()] == ["key"]


def test_the_key_is_the_same_for_all_who_race_for_it(home):
    """Eight ranks start at once on a fresh home. With two keys, the viewers of one job would be
    refused by another.
    """
    barrier, found = threading.Barrier(8), []

    def take():
        barrier.wait()
        found.append(registry.secret())

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert len(set(found)) == 1


def test_the_key_is_the_same_for_all_processes_that_race_for_it(home):
    program = (
        "import sys; sys.stdin.read(); from ddtop import registry;"
        " print(registry.secret().decode())"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]

    keys = {process.communicate("")[0].strip() for process in started}

    assert keys == {registry.secret().decode()}


def test_the_environment_gives_the_key(home, monkeypatch):
    monkeypatch.setenv("DDTOP_KEY", "from the scheduler's prolog")

    assert registry.secret() == b"from the scheduler's prolog"
    assert not (home.state / "key").exists()


@pytest.mark.parametrize("data", [b"", b"short\n"])
def test_a_damaged_key_is_not_replaced_silently(home, data):
    """A new key would lock the viewer out of the jobs that run with the old one."""
    path = registry.state_dir() / "key"
    path.write_bytes(data)
    path.chmod(0o600)

    with pytest.raises(RegistryError, match="is damaged; remove it"):
        registry.secret()


# -- job files


def test_an_entry_comes_back_as_it_went_and_is_private(home):
    registry.write_entry(entry())

    assert registry.read_entries() == [entry()]
    assert mode_of(registry.entry_path(entry())) == 0o600
    assert len(list(home.state.iterdir())) == 1


def test_entries_come_newest_first(home):
    for number in (2, 3, 1):
        registry.write_entry(entry(f"job{number}", started_unix_ns=number))

    assert [one.job for one in registry.read_entries()] == ["job3", "job2", "job1"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe\x00",
        b'{"schema": "\xff"}',
        b"[" * 20_000,
        b'{"schema":"ddtop.job/1"}',
        msgspec.json.encode(entry(schema="ddtop.job/9")),
        msgspec.json.encode(entry())[:-20],
    ],
)
def test_a_file_that_is_no_job_file_of_ours_is_passed_over(home, data):
    """A full disk truncated it, an editor left a backup, a later version wrote another schema."""
    registry.write_entry(entry("good"))
    (home.state / "bad.json").write_bytes(data)

    assert [one.job for one in registry.read_entries()] == ["good"]


def test_a_job_file_of_a_later_version_with_more_fields_is_read(home):
    words = msgspec.json.decode(msgspec.json.encode(entry())) | {"weather": "rain"}
    registry.state_dir()
    (home.state / "a.json").write_bytes(msgspec.json.encode(words))

    assert registry.read_entries() == [entry()]


# -- live, lost, ended


@pytest.mark.parametrize(
    ("more", "live", "reachable"),
    [
        ({}, True, True),
        ({"heartbeat_unix_ns": NOW - 46 * S}, False, False),
        ({"heartbeat_unix_ns": NOW - 44 * S}, True, True),
        ({"ended_unix_ns": NOW}, False, True),
    ],
)
def test_a_job_of_another_host_lives_by_its_heartbeat(more, live, reachable):
    """The job of a crashed node must not be "live" for ever."""
    assert (entry(**more).live(NOW), entry(**more).reachable(NOW)) == (live, reachable)


def test_on_this_host_the_relays_process_must_live_and_be_the_same():
    """Its pid belongs to another process by now."""
    mine = {"sender": registry.host_identity(), "relay_pid": os.getpid()}
    ticks = registry.start_ticks(os.getpid())

    assert entry(**mine, relay_start_ticks=ticks).live(NOW)
    assert not entry(**mine, relay_start_ticks=ticks + 1).live(NOW)


def test_start_ticks_tell_a_process_that_is_gone():
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    zombie = registry.start_ticks(child.pid)
    child.wait()

    assert (zombie, registry.start_ticks(child.pid), registry.start_ticks(-1)) == (None, None, None)
    assert registry.start_ticks(os.getpid()) > 0
