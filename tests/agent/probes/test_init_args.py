"""What a rank passes to init_process_group, and the state of the file that it meets at."""

import hashlib
import os
from datetime import timedelta

import pytest

from ddtop.agent.probes import init_args
from ddtop.wire.records import StoreFile


class TCPStore:
    """Torch's own has these two attributes."""

    host, port = "node0", 23456


@pytest.mark.parametrize(
    ("given", "method", "timeout_ms"),
    [
        ({}, None, None),
        ({"init_method": "env://", "timeout": timedelta(minutes=2)}, "env://", 120_000),
        ({"init_method": "tcp://10.0.0.1:23456"}, "tcp://10.0.0.1:23456", None),
        ({"store": TCPStore()}, "tcp://node0:23456", None),
        ({"store": object(), "timeout": 3}, None, None),
        ({"init_method": "tcp://" + "x" * 500}, "tcp://" + "x" * 194, None),
    ],
)
def test_the_arguments_say_where_and_how_long_it_looks_for_the_others(given, method, timeout_ms):
    entrance = init_args.look(given)

    assert (entrance.method, entrance.timeout_ms, entrance.store_file) == (method, timeout_ms, None)
    assert entrance.unix_ns > 0


def test_a_file_that_an_earlier_run_left_is_noted_before_torch_writes_to_it(tmp_path):
    path = tmp_path / "store"
    path.write_bytes(b"x" * 911)
    os.utime(path, ns=(5, 1_600_000_000_000_000_000))

    found = init_args.look({"init_method": f"file://{path}"}).store_file

    assert found == StoreFile(str(path), 911, 1_600_000_000_000_000_000, None, True)


def test_a_file_that_is_not_there_yet_has_no_size(tmp_path):
    assert init_args.store_file(f"file://{tmp_path}/store") == StoreFile(
        f"{tmp_path}/store", writable=True
    )


def test_a_folder_that_is_not_there_is_reported(tmp_path):
    found = init_args.store_file(f"file://{tmp_path}/nowhere/store")

    assert (found.writable, found.wrong) == (False, f"there is no folder {tmp_path}/nowhere")


def test_a_path_through_a_file_is_wrong(tmp_path):
    (tmp_path / "file").write_text("")

    assert init_args.store_file(f"file://{tmp_path}/file/store").wrong == "Not a directory"


@pytest.mark.parametrize("method", ["env://", "tcp://a:1", "file://", "nonsense"])
def test_other_methods_have_no_file(method):
    assert init_args.store_file(method) is None


def test_a_script_is_known_by_its_text(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")

    expected = hashlib.sha256(b"print(1)\n").hexdigest()[:8]
    assert init_args.script_digest(["python", "-u", str(script), "--lr", "1"]) == expected


@pytest.mark.parametrize(
    "argv",
    [["python"], ["python", "-m", "train"], ["python", "-c", "1"], ["python", "/nowhere.py"]],
)
def test_a_program_without_a_script_has_no_digest(argv):
    assert init_args.script_digest(argv) is None
