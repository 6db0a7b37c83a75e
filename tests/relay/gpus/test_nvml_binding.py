"""NVML through the real pynvml, over a double of the driver's library."""

import re
import textwrap
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddtop.relay.gpus import nvml as reader
from ddtop.relay.gpus import reader as room
from ddtop.relay.gpus.nvml import NO_DRIVER, NOT_ANSWERING, NvidiaDriver, Nvml, NvmlError
from ddtop.relay.gpus.reader import GpuReader
from tests.nvml import GIB, IS_LOST, NO_PERMISSION, NOT_SUPPORTED, UNKNOWN, FakeCard
from tests.nvml_library import RESERVED, Library, loaded
from tests.running import python
from tests.waiting import until

NEWER = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetTemperatureV",
)
"""Functions that drivers have had for a few years only."""


@pytest.fixture
def watched(monkeypatch):
    """Makes the relay's watch over a library; its threads end before the double goes."""
    monkeypatch.setattr(room, "SAMPLE_EVERY_S", 0.01)
    monkeypatch.setattr(room, "AGAIN_S", 0.01)
    made = []

    def make(library):
        holder = loaded(library)
        nv = holder.__enter__()
        gpus = GpuReader((NvidiaDriver(lambda: True, lambda: nv),))
        gpus.look({})
        made.append((library, holder, gpus))
        return gpus

    yield make
    for library, holder, gpus in made:
        library.answers.set()
        gpus.close()
        for thread in (gpus._thread, gpus._xids._thread):
            if thread is not None:
                thread.join(20)
        holder.__exit__(None, None, None)


_uint = st.integers(0, 2**32 - 1)
_bytes = st.integers(0, 2**40)
_held = st.dictionaries(st.integers(1, 2**22), st.none() | _bytes, max_size=6)
_cards = st.builds(
    FakeCard,
    uuid=st.uuids().map(lambda one: f"GPU-{one}"),
    name=st.text("ABCabc 0123-", max_size=90),
    util=st.integers(0, 100),
    memory_util=st.integers(0, 100),
    used=_bytes,
    processes=_held,
    graphics=_held,
    sm_mhz=_uint,
    sm_max_mhz=_uint,
    power_mw=_uint,
    cap_mw=_uint,
    celsius=st.integers(0, 120),
    reasons=st.integers(0, 2**63),
    ecc=st.integers(0, 2**63),
    rows=st.tuples(_uint, _uint, st.sampled_from((0, 1)), st.sampled_from((0, 1))),
    pcie=st.tuples(_uint, _uint, _uint, _uint),
    links=st.lists(st.sampled_from((0, 1)), max_size=18).map(tuple),
    mode=st.integers(0, 3),
    mig=st.none()
    | st.just(())
    | st.just(
        (FakeCard(uuid="MIG-1", used=GIB, raises={"nvmlDeviceGetUtilizationRates": NOT_SUPPORTED}),)
    ),
)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_cards, max_size=3, unique_by=lambda card: card.uuid))
def test_whatever_the_gpus_tell_is_read_alike_again_and_fits_the_record(cards):
    with loaded(Library(*cards)) as nv:
        nvml = Nvml(nv)
        real = nvml.sample(0.0)
        assert nvml.sample(60.0) == real

    assert [card.uuid for card in real if card.parent is None] == [card.uuid for card in cards]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(real), type=tuple[reader.Gpu, ...]) == real


def test_an_older_driver_loses_only_what_it_does_not_have():
    card = FakeCard(processes={11: GIB, 12: 2 * GIB, 13: None}, graphics={14: 5}, reasons=0x40)
    with loaded(Library(card)) as nv:
        (whole,) = Nvml(nv).sample()
    library = Library(card, absent=NEWER)
    with loaded(library) as nv:
        nvml = Nvml(nv)
        (older,) = nvml.sample(0.0)
        calls = library.calls["nvmlDeviceGetMemoryInfo"]
        again = nvml.sample(1.0)

    differing = {
        name for name in whole.__struct_fields__ if getattr(whole, name) != getattr(older, name)
    }
    # Releases before 12.550 do not have the older call for processes.
    differing -= (
        {"processes"} if not hasattr(nv, "nvmlDeviceGetComputeRunningProcesses_v2") else set()
    )
    assert differing == {"used_bytes", "remap_pending", "remap_failed"}
    assert older.used_bytes == card.used + RESERVED
    assert (again, library.calls["nvmlDeviceGetMemoryInfo"]) == ((older,), calls + 1)


_FUNCTIONS = sorted(
    {*re.findall(r'"(nvmlDevice\w+)"', Path(reader.__file__).read_text()), *NEWER}
    - {
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses",
    }
)


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_a_function_that_the_driver_does_not_have_costs_its_own_fields_only(name):
    """`GetTemperature` is deprecated, `ThrottleReasons` renamed, others were added late."""
    card = FakeCard(processes={11: GIB}, mig=(FakeCard(uuid="MIG-1"),))
    with loaded(Library(card)) as nv:
        whole = Nvml(nv).sample()[0]
    with loaded(Library(card, absent=(name,))) as nv:
        part = Nvml(nv).sample()[0]

    differing = [
        getattr(part, one)
        for one in part.__struct_fields__
        if getattr(part, one) != getattr(whole, one)
    ]
    assert len(differing) <= 3
    assert all(value in (None, "", card.used + RESERVED) for value in differing)


def test_processes_that_may_not_be_listed_are_not_measured():
    """A foreign process on a GPU with MIG, under WSL, or on a vGPU."""
    name = "nvmlDeviceGetComputeRunningProcesses"
    for code in (NO_PERMISSION, NOT_SUPPORTED):
        with loaded(Library(FakeCard(processes={1: 1}, raises={name: code}))) as nv:
            (card,) = Nvml(nv).sample()
        assert (card.processes, card.util_ratio) == (None, 0.97)


def test_a_struct_of_processes_that_does_not_fit_the_drivers_is_not_read(monkeypatch):
    """With nvidia-ml-py 12.535.77 half of the pids would be parts of other numbers."""
    with loaded(Library(FakeCard(processes={1: GIB, 2: GIB}))) as nv:
        struct = type(
            "c_nvmlProcessInfo_t",
            (),
            {"_fields_": [("pid", int), ("usedGpuCcProtectedMemory", int)]},
        )
        monkeypatch.setattr(nv, "c_nvmlProcessInfo_t", struct)
        (card,) = Nvml(nv).sample()

    assert card.processes is None


@pytest.mark.parametrize("code", [IS_LOST, UNKNOWN])
def test_a_gpu_that_is_lost_in_the_middle_is_reported_and_may_come_back(code):
    """Drivers have two error codes for a handle that is no longer available."""
    lost = FakeCard(uuid="GPU-a", name="A")
    with loaded(Library(lost, FakeCard(uuid="GPU-b"))) as nv:
        nvml = Nvml(nv)
        nvml.sample(0.0)
        lost.raises = {"*": IS_LOST, "nvmlDeviceGetHandleByIndex": code}
        first, other = nvml.sample(1.0)
        lost.raises = {}
        back, _ = nvml.sample(2.0)
        lost.raises = {"nvmlDeviceGetHandleByIndex": code}
        from_the_start = Nvml(nv).sample()

    assert (first.uuid, first.name, first.lost, first.util_ratio) == ("GPU-a", "A", True, None)
    assert other.lost is False
    assert (back.lost, back.util_ratio) == (False, 0.97)
    assert [card.lost for card in from_the_start] == [True, False]


def test_a_gpu_of_another_container_is_not_there():
    hidden = FakeCard(uuid="GPU-a", raises={"nvmlDeviceGetHandleByIndex": NO_PERMISSION})
    with loaded(Library(hidden, FakeCard(uuid="GPU-b"))) as nv:
        assert [(card.index, card.uuid) for card in Nvml(nv).sample()] == [(1, "GPU-b")]


@pytest.mark.parametrize(
    ("absent", "is_loaded", "said"),
    [((), False, NO_DRIVER), (("nvmlInitWithFlags",), True, NOT_ANSWERING)],
)
def test_a_driver_that_is_there_and_cannot_be_asked_is_not_called_absent(absent, is_loaded, said):
    with (
        loaded(Library(absent=absent, is_loaded=is_loaded)) as nv,
        pytest.raises(NvmlError, match=f"^{said} \\("),
    ):
        Nvml(nv)


def test_a_driver_that_is_unloaded_and_loaded_again_is_asked_anew(watched):
    """Each session is ended. A session that stays would keep the old driver's state."""
    library = Library(FakeCard(uuid="GPU-a"))
    gpus = watched(library)
    until(lambda: gpus.look({})[0])
    library.loaded = False

    assert until(lambda: gpus.look({})[1].why).startswith(("the driver does not answer", NO_DRIVER))
    library.cards[0] = FakeCard(uuid="GPU-b")
    library.loaded = True

    assert until(lambda: gpus.look({})[0][0].uuid == "GPU-b")
    assert until(lambda: gpus.look({})[1].why is None)


def test_an_xid_is_heard_though_its_gpu_answers_no_more_and_the_others_are_listened_to(watched):
    """Xid 79: the GPU has fallen off the bus, and its name cannot be read."""
    a, b = FakeCard(uuid="GPU-a"), FakeCard(uuid="GPU-b")
    library = Library(a, b)
    gpus = watched(library)
    until(lambda: gpus.look({})[0])
    until(library.heard.is_set)
    a.raises = {"*": IS_LOST, "nvmlDeviceGetHandleByIndex": UNKNOWN}
    library.xids += [(a, 79), (a, -IS_LOST), (b, 48)]

    until(lambda: len(gpus._xids.last_events("GPU-b")) == 1)

    assert [one.code for one in gpus._xids.last_events("GPU-a")] == [79]
    lost = until(lambda: next((one for one in gpus.look({})[0] if one.lost and one.xids), None))
    assert lost.xids[0].code == 79


def test_a_gpu_without_events_is_listened_to_by_nobody(watched):
    gpus = watched(Library(FakeCard(raises={"nvmlDeviceRegisterEvents": NOT_SUPPORTED})))
    until(lambda: gpus.look({})[0])

    assert until(lambda: gpus._xids._thread is not None and not gpus._xids._thread.is_alive())


def test_all_sessions_are_ended_with_the_watch(watched):
    library = Library(FakeCard())
    gpus = watched(library)
    until(lambda: library.sessions == 2)
    gpus.close()

    assert until(lambda: library.sessions == 0)


def test_a_call_that_stands_blocks_no_look(watched):
    library = Library(FakeCard())
    gpus = watched(library)
    until(lambda: gpus.look({})[0])
    library.answers.clear()
    asked = sum(library.calls.values())
    until(lambda: sum(library.calls.values()) > asked)
    # The call is not released before that, so a look that waits for it would never return.
    found = [gpus.look({})[0] for _ in range(1000)]

    assert found[-1][0].util_ratio == 0.97
    assert until(lambda: gpus.look({})[1].age_ms >= 50)


def test_a_process_ends_at_once_and_without_a_word_while_calls_of_it_stand():
    """The relay's process, when its job has ended and a GPU hangs."""
    code = """
        import sys, time
        sys.path.insert(0, %r)
        from ddtop.relay.gpus.nvml import NvidiaDriver
        from ddtop.relay.gpus.reader import GpuReader
        from tests.nvml import FakeCard
        from tests.nvml_library import Library, loaded

        library = Library(FakeCard())
        with loaded(library) as nv:
            gpus = GpuReader((NvidiaDriver(lambda: True, lambda: nv),))
            while not gpus.look({})[0]:
                time.sleep(0.01)
            library.answers.clear()
            asked = sum(library.calls.values())
            while sum(library.calls.values()) == asked:
                time.sleep(0.01)
            gpus.close()
            print("ends", flush=True)
            sys.exit(5)
    """
    code = textwrap.dedent(code) % str(Path(__file__).parents[2])
    done = python("-c", code, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (5, "ends\n", "")


def test_each_name_that_is_asked_for_is_in_pynvml():
    pynvml = pytest.importorskip("pynvml")
    source = Path(reader.__file__).read_text() + Path(room.__file__).read_text()
    names = set(re.findall(r"(?:nv\.|\")(nvml[A-Z]\w+)\b", source))

    assert len(names) > 30
    optional = {"nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetTemperatureV"}
    assert {name for name in names if not hasattr(pynvml, name)} <= optional


def test_numbers_of_the_header_are_as_pynvml_has_them():
    pynvml = pytest.importorskip("pynvml")
    pairs = {
        "NVML_CLOCK_SM": reader._SM,
        "NVML_TEMPERATURE_GPU": reader._GPU_SENSOR,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": reader._UNCORRECTED,
        "NVML_VOLATILE_ECC": reader._SINCE_BOOT,
        "NVML_COMPUTEMODE_EXCLUSIVE_PROCESS": reader._EXCLUSIVE,
        "NVML_COMPUTEMODE_PROHIBITED": reader._PROHIBITED,
        "nvmlMemory_v2": reader._MEMORY_V2,
        "NVML_ERROR_NOT_SUPPORTED": reader._NOT_SUPPORTED,
        "NVML_ERROR_NO_PERMISSION": reader._NO_PERMISSION,
        "NVML_ERROR_NOT_FOUND": reader._NOT_FOUND,
        "NVML_ERROR_INVALID_ARGUMENT": reader._INVALID,
        "NVML_ERROR_DRIVER_NOT_LOADED": reader._DRIVER_NOT_LOADED,
        "NVML_ERROR_LIBRARY_NOT_FOUND": reader._LIBRARY_NOT_FOUND,
        "NVML_ERROR_FUNCTION_NOT_FOUND": reader._FUNCTION_NOT_FOUND,
        "NVML_ERROR_GPU_IS_LOST": reader._LOST,
        "NVML_ERROR_RESET_REQUIRED": reader._RESET_REQUIRED,
        "NVML_ERROR_TIMEOUT": room._TIMEOUT,
        "nvmlEventTypeXidCriticalError": room._XID_EVENTS,
    }

    assert {name: getattr(pynvml, name) for name in pairs} == pairs
    assert room._NO_EVENTS == (
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    )
    named = {
        "hw_slowdown": "HwSlowdown",
        "hw_thermal": "HwThermalSlowdown",
        "hw_power_brake": "HwPowerBrakeSlowdown",
        "sw_power_cap": "SwPowerCap",
        "sync_boost": "SyncBoost",
        "sw_thermal": "SwThermalSlowdown",
    }
    for bit, word in reader._BITS.items():
        names = [
            f"nvmlClocksEventReason{named.get(word, 'ApplicationsClocksSetting')}",
            f"nvmlClocksThrottleReason{named.get(word, 'ApplicationsClocksSetting')}",
        ]
        assert bit in [getattr(pynvml, name, None) for name in names], word
