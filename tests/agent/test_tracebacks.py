"""Tracebacks are the program's own: they are the same with ddtop and without."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from ddtop.agent import wrapper
from ddtop.agent.tracebacks import leave_out, without_ours
from tests.running import python

needs_311 = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 raises again with the traceback as it was"
)
PROGRAM = """
import traceback, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset, Dataset

class Broken(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        raise ValueError(f"sample {index}") from KeyError("path")

def stands():
    torch.save({}, "/nowhere/model.pt")

def chained():
    try:
        torch.save(lambda: 0, "/dev/null")
    except Exception as error:
        raise RuntimeError("no checkpoint") from error

def while_handling():
    try:
        {}["key"]
    except KeyError:
        torch.save({}, "/nowhere/model.pt")

def loads():
    next(iter(DataLoader(Broken())))

def exhausted():
    batches = iter(DataLoader(TensorDataset(torch.ones(1))))
    next(batches), next(batches)

def wraps():
    torch.nn.parallel.DistributedDataParallel(torch.nn.ReLU())

for call in (
    stands, chained, while_handling, loads, exhausted, wraps,
    lambda: dist.send(torch.ones(1), 1), lambda: dist.irecv(torch.ones(1), 0),
    lambda: dist.new_group([0]), lambda: dist.monitored_barrier(),
    lambda: dist.destroy_process_group(), lambda: dist.init_process_group("nosuch"),
):
    try:
        call()
    except BaseException:
        traceback.print_exc()
raise SystemExit(torch.save({}, "/nowhere/model.pt"))
"""


@needs_311
@pytest.mark.torch
@pytest.mark.job
@pytest.mark.parametrize("variables", [{}, {"RANK": "0", "WORLD_SIZE": "1"}], ids=["", "rank"])
def test_a_program_writes_the_same_tracebacks_with_ddtop_and_without(home, variables):
    """torch.save, a DataLoader, DDP, send and the makers of groups fail in it, in many ways."""

    def written(switch):
        switches = {"DDTOP": switch, "DDTOP_QUIET": "1", "DDTOP_LINGER_S": "0"}
        return python("-c", PROGRAM, check=False, env=os.environ | variables | switches)

    with_it, without = written("1"), written("0")

    assert with_it.stderr == without.stderr
    assert (with_it.returncode, with_it.stdout) == (without.returncode, without.stdout) == (1, "")
    assert without.stderr.count("Traceback") > 12


def lines_of(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def fails():
    raise ValueError("sample 7")


def wrapped(function):
    """This function behind a wrapper of ddtop."""
    owner = SimpleNamespace(call=function)
    wrapper.replace(owner, "call")
    return owner.call


def raised_by(function):
    with pytest.raises(BaseException) as found:  # noqa: PT011 - each test has its own
        function()
    return found.value


@needs_311
def test_a_wrapper_adds_no_line():
    error = raised_by(wrapped(fails))

    assert lines_of(error) == ["raised_by", "fails"]
    assert error.__context__ is None
    assert error.__cause__ is None


@needs_311
def test_an_exception_that_is_raised_again_and_again_keeps_its_own_lines_only():
    """A future hands the same exception to everybody who asks for its result."""
    kept = ValueError("sample 7")

    def asks():
        raise kept

    call = wrapped(wrapped(asks))
    raised_by(call)
    error = raised_by(call)

    assert error is kept
    assert lines_of(error) == ["raised_by", "asks", "raised_by", "asks"]


@needs_311
def test_the_lines_of_a_cause_are_the_programs_own_too():
    inner = wrapped(fails)

    def outer():
        try:
            inner()
        except ValueError as error:
            raise RuntimeError("no batch") from error

    error = raised_by(wrapped(outer))

    assert lines_of(error) == ["raised_by", "outer"]
    assert lines_of(error.__cause__) == ["outer", "fails"]
    assert error.__context__ is error.__cause__


@needs_311
def test_an_exception_that_can_not_be_changed_passes_as_well():
    @dataclass(frozen=True)
    class OddError(Exception):
        number: int

    def raises():
        raise OddError(7)

    error = raised_by(wrapped(raises))

    assert error == OddError(7)
    assert lines_of(error) == ["raised_by", "raises"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_what_is_no_error_passes_as_it_is(kind):
    one = kind("x")

    def raises():
        raise one

    assert raised_by(wrapped(raises)) is one


def test_what_comes_from_c_code_alone_has_no_line_less():
    """The original is no Python: its error has our frame and no other."""
    error = raised_by(wrapped(int.__abs__))

    assert lines_of(error)[-1:] == (["raised_by"] if sys.version_info >= (3, 11) else ["wrapper"])


def test_after_hears_what_was_returned_or_raised():
    heard = []
    owner = SimpleNamespace(well=lambda one: one + 1, badly=fails)
    for name in ("well", "badly"):
        wrapper.replace(owner, name, lambda args, _: args, lambda *found: heard.append(found))

    assert owner.well(6) == 7
    error = raised_by(owner.badly)
    assert heard == [((6,), 7, None), ((), None, error)]


def test_frames_of_the_program_stay_though_it_calls_from_code_of_ours():
    """Only the first frames are taken out."""
    with pytest.raises(ValueError, match="sample") as found, without_ours:
        fails()

    leave_out(found.value)
    assert lines_of(found.value)[-1] == "fails"
