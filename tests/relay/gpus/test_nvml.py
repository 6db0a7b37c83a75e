"""What is read of the GPUs: a value that one does not have is None, and no other fails."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddtop.relay.gpus import nvml as reader
from ddtop.relay.gpus.nvml import Nvml
from ddtop.wire.records import Gpu
from tests.nvml import GIB, NOT_SUPPORTED, FakeCard
from tests.nvml_library import fake_nvml


def test_a_gpu_at_work_is_read_in_units_of_its_names():
    nv = fake_nvml(FakeCard(processes={4711: 40 * GIB}, reasons=0x4 | 0x40))

    (card,) = Nvml(nv).sample()

    assert (card.index, card.uuid) == (0, "GPU-11111111-2222-3333-4444-555555555555")
    assert card.name == "NVIDIA H100 80GB HBM3"
    assert card.util_ratio == 0.97
    assert (card.used_bytes, card.total_bytes) == (41 * GIB, 80 * GIB)
    assert (card.sm_mhz, card.sm_max_mhz) == (1755, 1980)
    assert (card.power_watts, card.power_cap_watts, card.celsius) == (650.0, 700.0, 61)
    assert card.throttle == ("hw_thermal", "sw_power_cap")
    assert (card.pcie_generation, card.pcie_width, card.nvlinks) == (5, 16, 18)
    assert card.nvlinks_total == 18
    assert (card.ecc_uncorrected, card.remap_failed) == (0, False)
    assert card.exclusive is False
    assert card.pci == "00000000:1b:00"
    assert [(one.pid, one.used_bytes) for one in card.processes or ()] == [(4711, 40 * GIB)]


_CALLS = sorted(
    set(re.findall(r'"(nvmlDeviceGet\w+)"', Path(reader.__file__).read_text()))
    - {"nvmlDeviceGetUUID"}
)


@pytest.mark.parametrize("call", _CALLS)
def test_one_call_that_is_not_supported_leaves_the_others_alone(call):
    """A GeForce has no ECC, a vGPU no power, a MIG instance no utilisation."""
    whole = Nvml(fake_nvml(FakeCard(processes={1: GIB}, mig=()))).sample()[0]
    card = FakeCard(processes={1: GIB}, mig=(), raises={call: NOT_SUPPORTED})
    part = Nvml(fake_nvml(card)).sample()[0]
    differing = {
        name: getattr(part, name)
        for name in Gpu.__struct_fields__
        if getattr(part, name) != getattr(whole, name)
    }

    assert set(differing.values()) <= {None, ""}
    assert len(differing) <= 4


def test_what_is_not_supported_is_not_asked_again():
    nv = fake_nvml(FakeCard(raises={"nvmlDeviceGetTemperature": NOT_SUPPORTED}))
    nvml = Nvml(nv)
    for second in range(5):
        nvml.sample(float(second))

    assert nv.calls["nvmlDeviceGetTemperature"] == 1
    assert nv.calls["nvmlDeviceGetPowerUsage"] == 5


def test_dear_calls_are_rare():
    """Eight GPUs must not cost 1 % of a core: processes every 5 s, links every 30 s."""
    nv = fake_nvml(*[FakeCard(uuid=f"GPU-{number}") for number in range(8)])
    nvml = Nvml(nv)
    for second in range(30):
        nvml.sample(float(second))

    assert nv.calls["nvmlDeviceGetUtilizationRates"] == 8 * 30
    lists = [name for name in nv.calls if name.startswith("nvmlDeviceGetComputeRunningProcesses")]
    assert [nv.calls[name] for name in lists] == [8 * 6]
    assert nv.calls["nvmlDeviceGetRemappedRows"] == 8
    assert nv.calls["nvmlDeviceGetNvLinkState"] == 8 * nv.NVML_NVLINK_MAX_LINKS


def test_mig_instances_have_their_own_memory_and_no_utilisation():
    part = FakeCard(
        uuid="MIG-a", name="H100 MIG 3g.40gb", used=GIB, total=40 * GIB, processes={77: GIB}
    )
    card, instance = Nvml(fake_nvml(FakeCard(mig=(part,)))).sample()

    assert card.mig is True
    assert (instance.uuid, instance.parent, instance.index) == ("MIG-a", card.uuid, 0)
    assert (instance.used_bytes, instance.total_bytes, instance.util_ratio) == (GIB, 40 * GIB, None)
    assert [one.pid for one in instance.processes or ()] == [77]


def test_bytes_of_a_process_that_the_driver_does_not_tell_are_not_measured():
    nv = fake_nvml(FakeCard(processes={1: None, 2: GIB}, graphics={2: 2 * GIB, 3: (1 << 64) - 1}))
    (card,) = Nvml(nv).sample()

    assert [(one.pid, one.used_bytes) for one in card.processes or ()] == [
        (2, 2 * GIB),
        (1, None),
        (3, None),
    ]


def test_the_library_is_not_loaded_where_there_is_no_driver():
    code = (
        "import sys, ddtop.relay.gpus.reader as g\n"
        "gpus = g.GpuReader(())\n"
        "assert gpus.look({}) == ((), None)\n"
        "assert 'pynvml' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
