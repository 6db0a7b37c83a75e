"""The meaning of library frames follows from the end of their path, whatever the Python and the
prefix.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.wire.names import word_of

PREFIXES = (
    "/usr/lib/python3.11/",
    "/opt/conda/lib/python3.13/site-packages/",
    "/home/ada/.venv/lib64/python3.10/",
)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    ("file", "function", "word"),
    [
        ("torch/utils/data/dataloader.py", "_try_get_data", "DataLoader"),
        ("torch/serialization.py", "save", "checkpoint-save"),
        ("torch/serialization.py", "load", "checkpoint-load"),
        ("torch/serialization.py", "persistent_load", "file"),
        ("torch/distributed/checkpoint/state_dict_saver.py", "async_save", "checkpoint-save"),
        ("torch/distributed/checkpoint/state_dict_loader.py", "load", "checkpoint-load"),
        ("safetensors/torch.py", "save_file", "checkpoint-save"),
        ("safetensors/torch.py", "load_file", "checkpoint-load"),
        ("torch/distributed/distributed_c10d.py", "recv", "p2p"),
        ("torch/distributed/distributed_c10d.py", "barrier", "collective"),
        ("torch/distributed/algorithms/join.py", "__exit__", "join"),
        ("torch/distributed/algorithms/join.py", "notify_join_context", None),
        ("torch/_dynamo/convert_frame.py", "_compile", "compile"),
        ("torch/_dynamo/eval_frame.py", "_fn", None),
        ("torch/_inductor/compile_fx.py", "run", None),
        ("torch/utils/file_baton.py", "wait", "lock"),
        ("torch/distributed/rpc/api.py", "rpc_sync", "rpc"),
        ("torch/distributed/rpc/api.py", "shutdown", "rpc-shutdown"),
        ("filelock/_api.py", "acquire", "lock"),
        ("asyncio/base_events.py", "_run_once", "asyncio"),
        ("concurrent/futures/_base.py", "result", "future"),
        ("mpi4py/futures/_core.py", "recv", "orders"),
        ("mpi4py/futures/_core.py", "call", None),
        ("mpi4py/futures/pool.py", "result_iterator", "results"),
        ("subprocess.py", "_execute_child", "child"),
        ("threading.py", "_shutdown", "exit"),
        ("threading.py", "run", None),
        ("code.py", "interact", "stdin"),
        ("pdb.py", "interaction", "debugger"),
        ("selectors.py", "select", "socket"),
        ("vllm/distributed/device_communicators/shm_broadcast.py", "dequeue", "orders"),
        # The engine has written, and a worker does not read.
        ("vllm/distributed/device_communicators/shm_broadcast.py", "acquire_write", None),
    ],
)
def test_a_library_frame_has_its_word(prefix, file, function, word):
    assert word_of(prefix + file, function) == word


@pytest.mark.parametrize(
    "file", ["/home/ada/myqueue.py", "queue.pyc", "/a/notasyncio/x.py", "", "<string>"]
)
def test_a_name_that_only_looks_alike_has_none(file):
    assert word_of(file, "get") is None


def test_an_import_is_told_by_its_frozen_frame():
    assert word_of("<frozen importlib._bootstrap>", "_find_and_load") == "import"


@given(st.text(), st.text())
def test_no_name_makes_it_raise(file, function):
    assert word_of(file, function) is None or isinstance(word_of(file, function), str)
