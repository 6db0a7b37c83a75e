"""What a kept recording does not tell about the machine."""

import getpass
import socket
import sys
from pathlib import Path

import msgspec
import pytest

from ddtop import registry
from ddtop.wire import frames
from ddtop.wire.records import Exit, Hello, HostState, RankState, Rendezvous
from tools.recorded.neutral import HOME, HOST, ROOT, SENDER, USER, Neutral

HOST_HERE = "gpu-box.lan"


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: HOST_HERE)
    monkeypatch.setattr(sys, "prefix", "/opt/project/.venv")
    monkeypatch.setattr(sys, "base_prefix", "/opt/python")
    return Neutral({"/scratch/of-somebody": f"{HOME}/job"})


def passed(found, record, rank=None):
    """Envelope and record, after the frame has lost its names."""
    sealed = frames.seal(
        record, sender=f"{registry.host_identity()}.9ab8f9", unix_ns=1, mono_ns=2, rank=rank
    )
    envelope = frames.open_envelope(found.frame(sealed))
    return envelope, frames.open_record(envelope)


def test_the_names_of_the_machine_are_replaced_in_every_text(here):
    texts = {
        "/opt/project/.venv/bin/python": f"{HOME}/.venv/bin/python",
        f"{ROOT}/zoo": f"{HOME}/ddtop/zoo",
        "/opt/python/lib/json.py": "/usr/lib/json.py",
        "/scratch/of-somebody/feed": f"{HOME}/job/feed",
        f"[{HOST_HERE}]:29500 refused": f"[{HOST}]:29500 refused",
        f"pmix-prterun-{HOST_HERE}-15834@1": f"pmix-prterun-{HOST}-15834@1",
        f"not{HOST_HERE}": f"not{HOST_HERE}",
    }

    assert {old: here.value([{old: old}])[0] for old in texts} == {
        old: {new: new} for old, new in texts.items()
    }


def test_a_frame_keeps_all_but_names_and_environment(here):
    hello = Hello(
        "train", "r1", 0, 1, 1, 4, HOST_HERE, 47, 11, environment={"TOKEN": "x"},
        argv=(f"{ROOT}/train.py", "--epochs", "3"), page_path="/dev/shm/1.page",
    )  # fmt: skip

    envelope, record = passed(here, hello, rank=1)

    assert record == msgspec.structs.replace(
        hello, environment={}, host=HOST, argv=(f"{HOME}/ddtop/train.py", "--epochs", "3")
    )
    assert (envelope.rank, envelope.unix_ns, envelope.mono_ns) == (1, 1, 2)


def test_the_name_of_the_user_is_replaced_where_it_is_no_function(monkeypatch):
    meets = Rendezvous(1, 47, "127.0.0.1", 29500, listener_user="somebody")
    monkeypatch.setattr(getpass, "getuser", lambda: "somebody")
    found = Neutral()

    assert passed(found, HostState(HOST, 2, rendezvous=(meets,)))[1].rendezvous == (
        msgspec.structs.replace(meets, listener_user=USER),
    )
    assert passed(found, RankState("running", activity="somebody"))[1].activity == "somebody"


def test_two_relays_of_a_host_stay_two(here):
    envelope, record = passed(here, HostState(HOST_HERE, 2))

    assert envelope.sender == f"{SENDER}.9ab8f9"
    assert record.host == HOST


def test_the_home_of_the_user_is_replaced(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/users/somebody"))

    assert Neutral().value("/users/somebody/data") == f"{HOME}/data"


def test_a_user_whose_home_is_the_root_changes_no_path(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/"))

    assert Neutral().value("/data/a.tar") == "/data/a.tar"


def test_other_records_pass_as_they_are(here):
    record = Exit(1, 47, 3, None, None, 0, "reaped")

    assert passed(here, record)[1] == record
