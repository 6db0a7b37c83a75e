"""What `ddtop doctor` says about stacks, tracing and the journal."""

import importlib
import sys

import pytest

from ddtop.relay.gpus.amd import AmdDriver
from ddtop.relay.gpus.nvml import NvidiaDriver
from ddtop.relay.processes import pyspy
from tests.amdsmi import FakeAmdGpu, FakeAmdSmi
from tests.nvml import FakeCard
from tests.nvml_library import fake_nvml
from tests.recorders import records_gloo

# In the package the name `doctor` is the command, so the module is imported by its path.
doctor = importlib.import_module("ddtop.cli.commands.doctor")


def test_the_dump_signal_is_sent_and_not_only_registered(home, monkeypatch):
    for wanted in ("", "on"):
        monkeypatch.setenv("DDTOP_SIGNAL", wanted)
        mark, what, text = doctor._dump_signal()

    assert (mark, what) == ("ok", "dump signal")
    assert "makes faulthandler write the stacks" in text


@pytest.mark.parametrize(
    ("wanted", "text"),
    [("off", "switched off"), ("0", "py-spy"), ("KILL", "is not a signal that ddtop can use")],
)
def test_an_impossible_dump_signal_is_a_note(home, monkeypatch, wanted, text):
    monkeypatch.setenv("DDTOP_SIGNAL", wanted)

    mark, _, said = doctor._dump_signal()

    assert mark == "note"
    assert text in said


@pytest.mark.parametrize(
    ("scope", "right", "mark", "text"),
    [
        (None, False, "ok", "not restricted"),
        (0, False, "ok", "not restricted"),
        (1, False, "note", "sudo py-spy dump"),
        (1, True, "ok", "not for this user"),
        (2, False, "note", "root only"),
        (3, True, "note", "off until the next boot"),
    ],
)
def test_the_right_to_trace_is_reported_with_what_works_instead(
    monkeypatch, scope, right, mark, text
):
    """Ubuntu and Debian start with Yama 1, where py-spy's message is cryptic."""
    monkeypatch.setattr(pyspy, "yama_scope", lambda: scope)
    monkeypatch.setattr(pyspy, "may_trace_others", lambda: right)

    said = doctor._ptrace()

    assert said[0] == mark
    assert text in said[2]


def fake_py_spy(folder, monkeypatch, script):
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize(
    ("script", "mark", "text"),
    [
        ("echo py-spy 0.4.3", "ok", "0.4.3 ("),
        ("echo py-spy 0.3.14", "note", "can leave its target stopped"),
        ("exit 1", "note", "does not start"),
    ],
)
def test_an_old_py_spy_is_a_note_and_a_new_one_is_not(tmp_path, monkeypatch, script, mark, text):
    fake_py_spy(tmp_path, monkeypatch, script)

    said = doctor._py_spy()

    assert said[0] == mark
    assert text in said[2]


def test_without_py_spy_the_note_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    assert doctor._py_spy() == (
        "note",
        "py-spy",
        "not installed: pip install 'ddtop[native]' (for --native and --pid)",
    )


def test_the_journal_check_names_its_folder_and_the_free_space(home):
    mark, _, text = doctor._journal()

    assert mark in ("ok", "note")
    assert "MiB free in" in text


@pytest.mark.parametrize(("value", "text"), [("0", "switched off"), ("lots", "not a number of")])
def test_a_journal_that_is_off_or_misspelt_is_a_note(home, monkeypatch, value, text):
    monkeypatch.setenv("DDTOP_JOURNAL_MIB", value)

    mark, _, said = doctor._journal()

    assert mark == "note"
    assert text in said


def test_a_journal_without_a_folder_is_bad(home, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DDTOP_STATE", str(tmp_path / "file" / "state"))

    assert doctor._journal()[0] == "bad"


@pytest.mark.parametrize(
    ("script", "mark", "said"),
    [
        ("print('4.1.2|Open MPI|5.0.11')", "ok", "mpi4py 4.1.2 on Open MPI 5.0.11"),
        ("raise SystemExit('cannot load MPI library')", "note", "cannot load MPI library"),
        ("import os; os._exit(7)", "note", "exit code 7"),
    ],
)
def test_the_mpi_library_is_loaded_by_a_process_of_its_own(monkeypatch, script, mark, said):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(doctor, "_ASKS_MPI", script)

    found = doctor._mpi()

    assert found[:2] == (mark, "MPI")
    assert said in found[2]


def test_without_mpi4py_the_note_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    assert doctor._mpi() == (
        "note",
        "MPI",
        "mpi4py is not in this Python: pip install 'ddtop[mpi]', for jobs under MPI only",
    )


@pytest.mark.torch
def test_the_flight_recorder_is_tried_in_a_process_of_its_own():
    mark, what, text = doctor._torch()

    assert what == "torch"
    if records_gloo():
        assert mark == "ok", text
        assert "the flight recorder's entries are read" in text
    else:
        assert mark == "note"
        assert "verdicts name ranks, not operations" in text


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (
            (
                "print('off|torch 2.16: entries cannot be read (x); verdicts name ranks, not"
                " operations')"
            ),
            "torch 2.16: entries",
        ),
        ("raise SystemExit(3)", "could not be tried: exit code 3"),
        ("import os; os.abort()", "could not be tried: exit code -6"),
    ],
)
def test_a_torch_whose_recorder_cannot_be_read_is_a_note(monkeypatch, program, text):
    """A torch that crashes in the trial must not end `ddtop doctor`."""
    monkeypatch.setattr(doctor, "_TRIES_RECORDER", program)
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "2.16.0")

    mark, _, said = doctor._torch()

    assert mark == "note"
    assert text in said


def test_gpus_that_are_not_read_are_reported(tmp_path, monkeypatch):
    device = tmp_path / "accel"
    monkeypatch.setattr(doctor, "OTHER_GPUS", ((str(device), "accelerators of another maker"),))

    assert doctor._other_gpus()[0] == "ok"
    device.touch()
    mark, _, text = doctor._other_gpus()

    assert mark == "note"
    assert text.startswith("accelerators of another maker: not read")


def test_an_intel_gpu_for_data_centres_is_reported_and_one_for_a_screen_is_not(
    tmp_path, monkeypatch
):
    device = tmp_path / "renderD128/device"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x8086\n")
    (device / "class").write_text("0x030000\n")
    monkeypatch.setattr(doctor, "_DISPLAYS", f"{tmp_path}/renderD*/device".lstrip("/"))

    assert doctor._other_gpus()[0] == "ok"
    (device / "class").write_text("0x038000\n")
    assert doctor._other_gpus()[2].startswith("Intel GPUs: not read")


def test_doctor_says_which_of_the_two_drivers_is_there(monkeypatch):
    nvidia = NvidiaDriver(lambda: True, lambda: fake_nvml(FakeCard()))
    amd = AmdDriver(lambda: True, lambda: FakeAmdSmi(FakeAmdGpu(), FakeAmdGpu()))
    monkeypatch.setattr(doctor, "driver_here", lambda: nvidia)

    assert doctor._ask_driver(nvidia, "NVML")[2].startswith("1 GPU, driver 580.65.06")
    mark, what, text = doctor._ask_driver(amd, "amdsmi")
    assert (mark, what) == ("ok", "amdsmi")
    assert text.startswith("2 GPUs, driver 6.12.12")
    assert text.endswith("ddtop watches those of NVIDIA here")
    absent = doctor._ask_driver(AmdDriver(lambda: False), "amdsmi")
    assert absent == ("note", "amdsmi", "no AMD driver on this host")


@pytest.mark.parametrize(
    ("answer", "mark", "text"),
    [
        (["ok|hf-trainer|5.23.0", "end"], "ok", "ddtop reads hf-trainer 5.23.0"),
        (["end"], "ok", "ddtop reads tqdm, torch and ddtop.step()"),
        (
            ["off|fabric|AttributeError: no log_dict", "end"],
            "note",
            "ddtop cannot read fabric (AttributeError: no log_dict)",
        ),
        ("timed out", "note", "their step and phase could not be tested: timed out"),
    ],
)
def test_a_framework_that_has_changed_is_named(monkeypatch, answer, mark, text):
    monkeypatch.setattr(doctor, "_output_lines", lambda *_arguments: answer)

    assert doctor._frameworks()[0] == mark
    assert doctor._frameworks()[2].startswith(text)


def test_frameworks_are_tried_in_a_process_of_their_own(tmp_path, monkeypatch):
    """A package has the name of a wrapped one, but its class lacks the method that is wrapped."""
    package = tmp_path / "accelerate"
    package.mkdir()
    (package / "__init__.py").write_text("print('noise')\n")
    (package / "accelerator.py").write_text("class Accelerator: pass\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    mark, _, text = doctor._frameworks()

    assert mark == "note"
    assert "accelerate (AttributeError:" in text
