"""AMD's GPUs through amdsmi, from a double that answers as AMD documents it."""

import os
import sys

import msgspec
import pytest

from ddtop.relay.gpus import amd
from ddtop.relay.gpus import reader as room
from ddtop.relay.gpus.amd import AmdDriver, AmdSmi
from ddtop.relay.gpus.driver import DriverError
from ddtop.relay.gpus.nvml import NvidiaDriver
from ddtop.relay.gpus.reader import GpuReader, driver_here
from ddtop.wire.records import AMD, NVIDIA, Gpu
from tests.amdsmi import IO, NOT_SUPPORTED, FakeAmdGpu, FakeAmdSmi
from tests.nvml import FakeCard
from tests.nvml_library import fake_nvml
from tests.waiting import until

GIB = 1 << 30


def test_everything_that_amdsmi_tells_is_read():
    smi = FakeAmdSmi(FakeAmdGpu(processes={4711: 40 * GIB}))
    session = AmdSmi(smi)
    (gpu,) = session.sample(0.0)

    assert session.driver == "6.12.12"
    assert (gpu.vendor, gpu.index, gpu.name) == (AMD, 0, "AMD Instinct MI300X")
    assert (gpu.uuid, gpu.pci) == ("GPU-5f3a1c2e4b6d8f00", "00000000:1b:00")
    assert gpu.util_ratio == 0.98
    assert (gpu.used_bytes, gpu.total_bytes) == (41 * GIB, 196_288 << 20)
    assert (gpu.power_watts, gpu.power_cap_watts, gpu.celsius) == (650.0, 750.0, 61)
    assert (gpu.sm_mhz, gpu.sm_max_mhz) == (2100, 2100)
    assert (gpu.throttle, gpu.ecc_uncorrected, gpu.remap_failed) == ((), 0, False)
    assert (gpu.pcie_generation, gpu.pcie_width, gpu.nvlinks, gpu.nvlinks_total) == (5, 16, 7, 7)
    assert [(one.pid, one.used_bytes) for one in gpu.processes] == [(4711, 40 * GIB)]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(gpu), type=Gpu) == gpu


@pytest.mark.parametrize(
    ("active", "throttle"),
    [
        (("prochot_thrm",), ("hw_thermal",)),
        (("socket_thrm", "hbm_thrm"), ("sw_thermal",)),
        (("ppt_pwr", "vr_thrm"), ("hw_thermal", "sw_power_cap")),
    ],
)
def test_what_holds_its_clocks_down_has_the_words_of_any_gpu(active, throttle):
    assert AmdSmi(FakeAmdSmi(FakeAmdGpu(active=active))).sample(0.0)[0].throttle == throttle


def test_throttling_is_read_as_rarely_as_processes_because_each_read_waits_for_100_ms():
    smi = FakeAmdSmi(FakeAmdGpu())
    session = AmdSmi(smi)
    for second in range(10):
        session.sample(float(second))

    assert smi.calls["amdsmi_get_violation_status"] == 2
    assert smi.calls["amdsmi_get_gpu_activity"] == 10


def test_an_older_gpu_has_other_sensors_and_no_word_on_throttling():
    """MI200: average power, a sensor at the edge in mC, no violation status."""
    gpu = FakeAmdGpu(socket_watts="N/A", average_watts=300, temperatures={0: 54_000}, cap=500)
    gpu.raises = {"amdsmi_get_violation_status": NOT_SUPPORTED}
    (read,) = AmdSmi(FakeAmdSmi(gpu)).sample(0.0)

    assert (read.power_watts, read.power_cap_watts) == (300.0, 500.0)
    assert (read.celsius, read.throttle) == (54, None)


def test_what_a_guest_may_not_ask_is_none_and_takes_nothing_else_away():
    gpu = FakeAmdGpu(gfx="N/A", umc="N/A")
    gpu.raises = dict.fromkeys(
        ("amdsmi_get_power_info", "amdsmi_get_gpu_process_list", "amdsmi_get_pcie_info"),
        NOT_SUPPORTED,
    )
    (read,) = AmdSmi(FakeAmdSmi(gpu)).sample(0.0)

    assert (read.util_ratio, read.power_watts, read.processes) == (None, None, None)
    assert (read.used_bytes, read.lost, read.pcie_width) == (41 * GIB, False, None)


def test_a_gpu_that_answers_no_call_any_more_is_lost_after_three_samples():
    gpu = FakeAmdGpu()
    session = AmdSmi(FakeAmdSmi(gpu, FakeAmdGpu(bdf="0000:3b:00.0")))
    session.sample(0.0)
    gpu.raises["*"] = IO
    lost = [session.sample(float(second))[0].lost for second in (1, 2, 3)]

    assert lost == [False, False, True]
    gpu.raises.clear()
    assert session.sample(4.0)[0].lost is False


def test_the_parts_of_a_divided_gpu_share_an_address_that_says_nothing():
    session = AmdSmi(FakeAmdSmi(FakeAmdGpu(hip_uuid="GPU-a"), FakeAmdGpu(hip_uuid="GPU-b")))

    assert [(gpu.uuid, gpu.pci) for gpu in session.sample(0.0)] == [
        ("GPU-a", None),
        ("GPU-b", None),
    ]


def test_pages_that_cannot_be_retired_are_a_fault_of_the_memory():
    (gpu,) = AmdSmi(FakeAmdSmi(FakeAmdGpu(pages=(0, 2), uncorrectable=4))).sample(0.0)

    assert (gpu.remap_pending, gpu.remap_failed) == (False, True)
    assert gpu.ecc_uncorrected == 4


def test_a_driver_that_is_not_loaded_is_reported_in_one_line():
    with pytest.raises(DriverError) as raised:
        AmdSmi(FakeAmdSmi(driver=False))

    assert str(raised.value).startswith("the AMD driver cannot be asked (Error code: 34")


def test_without_amdsmi_the_way_to_install_it_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "amdsmi", None)

    with pytest.raises(DriverError, match="pip install /opt/rocm/share/amd_smi"):
        amd.library()


def test_an_amdsmi_without_its_library_is_a_reason_and_no_crash(monkeypatch, tmp_path):
    """amdsmi looks up `_libraries['libamd_smi.so']`, which is missing without the library."""
    package = tmp_path / "amdsmi"
    package.mkdir()
    (package / "__init__.py").write_text("{}['libamd_smi.so']")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)

    with pytest.raises(DriverError, match="KeyError"):
        amd.library()


@pytest.fixture
def watching(monkeypatch):
    """Makes a `GpuReader` over drivers, and ends it after the test."""
    monkeypatch.setattr(room, "SAMPLE_EVERY_S", 0.01)
    monkeypatch.setattr(room, "AGAIN_S", 0.01)
    made = []

    def make(*drivers):
        made.append(GpuReader(drivers))
        return made[-1]

    yield make
    for gpus in made:
        thread = gpus._thread
        gpus.close()
        if thread is not None:
            thread.join(20)


def test_the_relay_watches_an_amd_gpu_and_knows_its_rank(watching):
    smi = FakeAmdSmi(FakeAmdGpu(processes={os.getpid(): 2 * GIB}))
    gpus = watching(NvidiaDriver(lambda: False), AmdDriver(lambda: True, lambda: smi))
    (gpu,), watch = until(lambda: (found := gpus.look({os.getpid(): 3}))[0] and found)

    assert (gpu.vendor, gpu.processes[0].rank, gpu.xids) == (AMD, 3, ())
    assert watch.why is None


def test_beside_an_nvidia_driver_a_processor_with_an_amd_gpu_is_left_alone(watching):
    nvidia = NvidiaDriver(lambda: True, lambda: fake_nvml(FakeCard()))
    other = AmdDriver(lambda: True, lambda: pytest.fail("asked for"))
    gpus = watching(nvidia, other)

    assert until(lambda: gpus.look({})[0])[0].vendor == NVIDIA
    assert driver_here((NvidiaDriver(lambda: False), other)) is other
