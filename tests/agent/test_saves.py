"""Where the program saves, and what is known of a save that failed."""

import io
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from ddtop.agent import current, saves
from ddtop.agent.frameworks import torch_phases
from ddtop.agent.guard import guard


@pytest.fixture
def rank(monkeypatch, clean_notes):
    """The rank of this process; `sent` are the requests for a Hello."""
    monkeypatch.setattr(guard, "off", {})
    sent = []
    found = SimpleNamespace(
        saves_to=(), failed_save=None, sent=sent, wake=lambda: None,
        send_hello_again=lambda: sent.append(1),
    )  # fmt: skip
    monkeypatch.setattr(current, "_rank", found)
    return found


@pytest.fixture
def torchs():
    """A module like torch.serialization, wrapped. Its `save` raises what it is given."""
    module = ModuleType("serialization")

    def save(what, f, fails=None):
        if fails is not None:
            raise fails
        return f

    module.save = save
    torch_phases.wrap_save(module)
    return module


def test_a_save_that_failed_has_path_error_and_the_space_that_is_left(rank, torchs, tmp_path):
    error = RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")
    with pytest.raises(RuntimeError) as raised:
        torchs.save("model", tmp_path / "e7.pt", fails=error)
    found = rank.failed_save

    assert raised.value is error
    assert (found.call, found.path) == ("torch.save", str(tmp_path / "e7.pt"))
    assert found.error == f"RuntimeError: {error}"
    assert 0 <= found.free_bytes < found.total_bytes


@pytest.mark.parametrize("by_name", [False, True])
def test_the_folder_of_each_save_is_told_once(rank, torchs, tmp_path, monkeypatch, by_name):
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        path = f"ckpt/e{number}.pt"
        assert torchs.save("model", **{"f": path} if by_name else {"f": Path(path)}) is not None

    assert (rank.saves_to, len(rank.sent)) == ((str(tmp_path / "ckpt"),), 1)
    assert rank.failed_save is None


def test_only_the_last_folders_are_remembered(rank, torchs):
    """`checkpoint-100/`, `checkpoint-200/`, ..."""
    for number in range(9):
        torchs.save("model", f"/ckpt/step-{number}/model.pt")

    assert rank.saves_to == tuple(f"/ckpt/step-{number}" for number in (5, 6, 7, 8))


def test_a_file_that_is_open_has_its_name_and_memory_has_none(rank, torchs, tmp_path):
    with (tmp_path / "e7.pt").open("wb") as file:
        torchs.save("model", file)
    torchs.save("model", io.BytesIO())

    assert rank.saves_to == (str(tmp_path),)


@pytest.mark.parametrize("target", [7, None, SimpleNamespace(name=3), b"x"])
def test_a_target_that_is_no_path_is_passed_on_and_not_noted(rank, torchs, target):
    assert torchs.save("model", target) == target
    assert rank.saves_to == ()
    assert guard.off == {}


def test_a_folder_that_is_gone_when_it_is_asked_leaves_the_programs_own_error(rank, torchs):
    with pytest.raises(OSError, match="no such"):
        torchs.save("model", "/nowhere/e7.pt", fails=OSError("no such"))

    assert (rank.failed_save.path, rank.failed_save.free_bytes) == ("/nowhere/e7.pt", None)
    assert guard.off == {}


def test_a_process_that_is_no_rank_saves_as_before(monkeypatch, clean_notes, torchs):
    monkeypatch.setattr(current, "_rank", None)

    assert torchs.save("model", "/ckpt/e7.pt") == "/ckpt/e7.pt"


def test_a_distributed_save_is_noted_by_its_id(rank):
    module = ModuleType("state_dict_saver")
    module.save = module.async_save = lambda state, *, checkpoint_id=None: None
    torch_phases.wrap_distributed_save(module)
    module.save({}, checkpoint_id="/ckpt/step-7")

    assert rank.saves_to == ("/ckpt",)
    assert saves.FOLDERS_MAX == 4
