"""`ddtop gpus`: which GPUs are free, who holds the others, and what is said without a driver."""

import json
import os
import signal
import textwrap
from functools import partial
from pathlib import Path

import pytest

from ddtop.cli import gpu_query
from ddtop.cli.commands.gpus import gpus
from ddtop.cli.errors import CommandError
from ddtop.cli.gpu_query import read
from ddtop.policy import POLICY
from ddtop.present.gpus import gpus_lines, headline, is_free
from ddtop.present.text import cell_width
from ddtop.relay.gpus.amd import AmdDriver
from ddtop.relay.gpus.nvml import NvidiaDriver, driver_is_there
from ddtop.wire.records import Gpu, GpuProcess
from tests.amdsmi import FakeAmdGpu, FakeAmdSmi
from tests.cli.commands import ddtop
from tests.nvml import GIB, IS_LOST, FakeCard
from tests.nvml_library import fake_nvml
from tests.running import python

ROOT = Path(__file__).parents[2]
ME = os.getpid()
"""A child process asks the driver."""

# An earlier test may have left a thread that is still ending.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def asking(opened):
    """NVIDIA's driver, as a double."""
    return (NvidiaDriver(lambda: True, opened),)


def host(*more):
    """A busy GPU of our job, a free one, and more."""
    return fake_nvml(
        FakeCard(uuid="GPU-a", processes={ME: 40 * GIB}),
        FakeCard(uuid="GPU-b", used=300 << 20, util=0),
        *more,
    )


@pytest.fixture
def driver(monkeypatch):
    """Sets the library that the command finds."""

    def found(opened):
        monkeypatch.setattr(gpu_query, "read", partial(read, asking(opened)))

    monkeypatch.setenv("COLUMNS", "120")
    return found


def test_free_and_busy_gpus_and_who_holds_them(driver, capsys):
    driver(host)
    status = gpus(as_json=False)

    out = capsys.readouterr().out.splitlines()
    assert status == 0
    assert out[0] == "1 of 2 GPUs is free (driver 580.65.06)"
    assert f"{ME} " in out[3]
    assert "41.0G/80.0G" in out[3]
    assert out[4].endswith("free")
    assert out[-1] == "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1"


def test_gpus_of_amd_are_listed_and_chosen_by_the_variable_of_rocm(monkeypatch, capsys):
    smi = FakeAmdSmi(
        FakeAmdGpu(processes={ME: 40 * GIB}),
        FakeAmdGpu(hip_uuid="GPU-00c0ffee00c0ffee", bdf="0000:3b:00.0", used_mib=300, gfx=0),
    )
    drivers = (NvidiaDriver(lambda: False), AmdDriver(lambda: True, lambda: smi))
    monkeypatch.setattr(gpu_query, "read", partial(read, drivers))
    monkeypatch.setenv("COLUMNS", "120")
    status = gpus(as_json=False)

    out = capsys.readouterr().out.splitlines()
    assert status == 0
    assert out[0] == "1 of 2 GPUs is free (driver 6.12.12)"
    assert "AMD Instinct" in out[3]
    assert f"{ME} " in out[3]
    assert out[-1] == "ROCR_VISIBLE_DEVICES=GPU-00c0ffee00c0ffee"


def test_none_free_is_exit_code_1(driver, capsys):
    driver(lambda: fake_nvml(FakeCard()))

    assert gpus(as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["gpus"][0]["free"] is False


def test_json_is_versioned_and_says_who_holds_a_gpu(driver, capsys):
    driver(host)
    gpus(as_json=True)
    said = json.loads(capsys.readouterr().out)

    assert (said["schema"], said["driver"]) == ("ddtop.gpus/1", "580.65.06")
    busy, free = said["gpus"]
    assert (busy["free_bytes"], busy["total_bytes"]) == (39 * GIB, 80 * GIB)
    (holder,) = busy["processes"]
    assert (holder["pid"], holder["used_bytes"], bool(holder["user"])) == (ME, 40 * GIB, True)
    assert free["processes"] == []


def test_a_driver_that_does_not_load_is_exit_code_3_and_a_sentence():
    with pytest.raises(CommandError, match="ddtop: no NVIDIA driver") as raised:
        read(asking(lambda: fake_nvml(driver=False)))
    assert raised.value.code == 3


@pytest.mark.skipif(driver_is_there(), reason="a host without a driver")
def test_a_host_without_gpu_gets_one_line_and_no_traceback():
    done = ddtop("gpus")

    assert (done.returncode, done.stdout) == (3, "")
    assert (
        done.stderr == "ddtop: no NVIDIA or AMD driver on this host: there is no GPU that could be"
        " free\n"
    )


def test_a_driver_that_hangs_is_not_waited_for():
    """nvidia-smi is in state D, and so is every process that calls the driver."""
    nv = host()
    nv.answers.clear()
    try:
        with pytest.raises(CommandError, match=r"has not answered for 0\.01 s"):
            read(asking(lambda: nv), 0.01)
    finally:
        nv.answers.set()


@pytest.mark.parametrize(
    ("change", "free"),
    [
        ({}, True),
        ({"used_bytes": 5 * GIB}, False),
        ({"util_ratio": 0.5}, False),
        ({"lost": True}, False),
        ({"mig": True}, False),
        ({"exclusive": True}, True),
        ({"prohibited": True}, False),
        ({"exclusive": True, "processes": (GpuProcess(1, 0),)}, False),
        ({"processes": (GpuProcess(1, 100 << 20),)}, True),
        ({"used_bytes": None}, False),
        ({"util_ratio": None}, True),
    ],
)
def test_what_counts_as_free(change, free):
    """A display server does not make a GPU busy. In exclusive mode any process makes it busy."""
    card = {
        "index": 0,
        "uuid": "GPU-a",
        "used_bytes": GIB,
        "total_bytes": 80 * GIB,
        "util_ratio": 0.0,
    } | change

    assert is_free(Gpu(**card), POLICY) is free


def test_parts_of_a_mig_gpu_are_named_by_their_uuid():
    gpus = (
        Gpu(0, "GPU-a", used_bytes=GIB, total_bytes=80 * GIB, mig=True),
        Gpu(0, "MIG-b", used_bytes=0, total_bytes=40 * GIB, parent="GPU-a"),
    )
    lines = gpus_lines(gpus, None, 100, POLICY)

    assert headline(gpus, None, POLICY) == "1 of 1 GPU is free"
    assert lines[-1].endswith("CUDA_VISIBLE_DEVICES=MIG-b")


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_nothing_is_wider_than_the_terminal(width):
    long = GpuProcess(4711, 40 * GIB, user="ada\x1b[31m", command="python " + "train" * 40)
    card = Gpu(
        0,
        "GPU-a",
        0.9,
        40 * GIB,
        80 * GIB,
        "NVIDIA H100 80GB HBM3 with a very long name",
        processes=(long, long),
    )
    lines = gpus_lines((card, Gpu(1, "GPU-b", lost=True)), "580", width, POLICY)

    assert max(cell_width(line) for line in lines) <= width
    assert "\x1b" not in "".join(lines)


def test_a_lost_gpu_and_one_in_another_container_are_reported():
    nv = fake_nvml(FakeCard(uuid="GPU-a", raises={"*": IS_LOST}))
    gpus, _ = read(asking(lambda: nv))

    assert "lost: it no longer answers" in "\n".join(gpus_lines(gpus, None, 100, POLICY))
    hidden = Gpu(0, "GPU-a", 0.9, GIB, 2 * GIB, processes=(GpuProcess(4711, GIB, local=False),))
    assert "pid 4711 outside this container" in "\n".join(gpus_lines((hidden,), None, 120, POLICY))


def test_a_child_that_cannot_be_killed_holds_up_neither_the_command_nor_its_reader():
    """A child that is stuck in the driver cannot end. `ddtop gpus | less` must not wait for it."""
    code = """
        import os
        from ddtop.cli.gpu_query import read
        from ddtop.cli.errors import CommandError
        from ddtop.relay.gpus.nvml import NvidiaDriver
        from tests.nvml import FakeCard
        from tests.nvml_library import fake_nvml

        nv = fake_nvml(FakeCard())
        nv.answers.clear()
        children = []
        os.kill = lambda pid, number: children.append(pid)
        try:
            read((NvidiaDriver(lambda: True, lambda: nv),), 0.05)
        except CommandError as error:
            print(error.code, children[0])
    """
    done = python("-c", textwrap.dedent(code), env=os.environ | {"PYTHONPATH": str(ROOT)})
    status, child = done.stdout.split()
    os.kill(int(child), signal.SIGKILL)

    assert (status, done.stderr) == ("3", "")


def _dies():
    os._exit(9)


def _breaks():
    raise ValueError("of the library")


@pytest.mark.parametrize(
    ("opened", "said"),
    [(_dies, "ended the process"), (_breaks, "cannot be asked .ValueError: of the library")],
)
def test_a_library_that_fails_is_reported_in_a_sentence(opened, said):
    with pytest.raises(CommandError, match=said) as raised:
        read(asking(opened))
    assert raised.value.code == 3
