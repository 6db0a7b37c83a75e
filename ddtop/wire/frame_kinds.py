"""The meaning of frames of the standard library and of torch, one word each.

The agent uses it for its own rank, and the diagnosis for stacks from other sources. The words are
those of `Place.waits_on`. If there are several library frames below a user line, the one nearest to
that line counts: a Queue.get, for example, waits on a lock inside. Calls into C (time.sleep, input,
lock.acquire) have no frame; the kernel reports those (`ProcessState.syscall`, `wchan`).
"""

from __future__ import annotations

_SAVERS = frozenset(
    {"save", "save_file", "save_model", "save_state_dict", "async_save", "_save_state_dict"}
)
_LOADERS = frozenset({"load", "load_file", "load_model", "load_state_dict", "_load_state_dict"})

# (end of the file's path, or a folder in it; functions, None for any; word). The first that fits.
_MEANINGS: tuple[tuple[str, frozenset[str] | None, str], ...] = (
    ("torch/utils/data/dataloader.py", None, "DataLoader"),
    (
        "torch/distributed/distributed_c10d.py",
        frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv"}),
        "p2p",
    ),
    ("torch/distributed/distributed_c10d.py", None, "collective"),
    ("torch/distributed/_functional_collectives.py", None, "collective"),
    ("torch/distributed/pipelining/schedules.py", frozenset({"_wait_batch_p2p"}), "p2p"),
    ("ddtop/agent/wrap/p2p.py", frozenset({"wait"}), "collective"),
    # It serves the calls of others until all have come here, whatever it waits on inside.
    ("torch/distributed/rpc/api.py", frozenset({"shutdown"}), "rpc-shutdown"),
    ("torch/distributed/rpc/api.py", frozenset({"rpc_sync"}), "rpc"),
    # Out of data: it joins the collectives of ranks that still have data.
    ("torch/distributed/algorithms/join.py", frozenset({"__exit__"}), "join"),
    ("torch/autograd/graph.py", frozenset({"_engine_run_backward"}), "backward"),
    ("torch/cuda/__init__.py", frozenset({"synchronize"}), "cuda-sync"),
    ("torch/cuda/streams.py", frozenset({"synchronize"}), "cuda-sync"),
    ("torch/distributed/checkpoint/state_dict_saver.py", None, "checkpoint-save"),
    ("torch/distributed/checkpoint/state_dict_loader.py", None, "checkpoint-load"),
    ("torch/serialization.py", _SAVERS, "checkpoint-save"),
    ("torch/serialization.py", _LOADERS, "checkpoint-load"),
    ("torch/serialization.py", None, "file"),
    ("safetensors/torch.py", _SAVERS, "checkpoint-save"),
    ("safetensors/torch.py", _LOADERS, "checkpoint-load"),
    ("accelerate/accelerator.py", frozenset({"save_state", "save_model"}), "checkpoint-save"),
    ("accelerate/accelerator.py", frozenset({"load_state"}), "checkpoint-load"),
    ("deepspeed/runtime/engine.py", frozenset({"save_checkpoint"}), "checkpoint-save"),
    ("deepspeed/runtime/engine.py", frozenset({"load_checkpoint"}), "checkpoint-load"),
    ("pytorch/trainer/trainer.py", frozenset({"save_checkpoint"}), "checkpoint-save"),
    ("pytorch_lightning/trainer/trainer.py", frozenset({"save_checkpoint"}), "checkpoint-save"),
    # Only what compiles: a compiled model's every call passes through torch._dynamo.eval_frame.
    ("torch/_dynamo/convert_frame.py", None, "compile"),
    ("torch/_dynamo/symbolic_convert.py", None, "compile"),
    ("torch/_inductor/async_compile.py", None, "compile"),
    (
        "torch/_inductor/compile_fx.py",
        frozenset({"compile_fx", "compile_fx_inner", "codegen_and_compile"}),
        "compile",
    ),
    ("torch/jit/_script.py", frozenset({"script"}), "compile"),
    ("torch/jit/_trace.py", frozenset({"trace", "trace_module"}), "compile"),
    ("triton/compiler/compiler.py", None, "compile"),
    ("torch/multiprocessing/spawn.py", frozenset({"join"}), "child"),
    ("subprocess.py", None, "child"),
    ("multiprocessing/popen_fork.py", None, "child"),
    ("multiprocessing/process.py", frozenset({"join"}), "child"),
    ("multiprocessing/pool.py", None, "pool"),
    ("concurrent/futures/_base.py", None, "future"),
    ("concurrent/futures/thread.py", frozenset({"shutdown"}), "future"),
    ("concurrent/futures/process.py", frozenset({"shutdown"}), "future"),
    ("threading.py", frozenset({"_shutdown"}), "exit"),
    (
        "threading.py",
        frozenset({"wait", "wait_for", "acquire", "join", "_wait_for_tstate_lock"}),
        "lock",
    ),
    ("multiprocessing/synchronize.py", None, "lock"),
    ("torch/utils/file_baton.py", None, "lock"),
    ("filelock/", None, "lock"),
    ("queue.py", None, "queue"),
    ("multiprocessing/queues.py", None, "queue"),
    ("multiprocessing/connection.py", None, "pipe"),
    ("asyncio/", None, "asyncio"),
    ("selectors.py", None, "socket"),
    ("socket.py", None, "socket"),
    ("ssl.py", None, "socket"),
    ("http/client.py", None, "socket"),
    ("getpass.py", None, "stdin"),
    ("code.py", frozenset({"interact", "raw_input"}), "stdin"),
    ("bdb.py", None, "debugger"),
    ("pdb.py", None, "debugger"),
    ("debugpy/", None, "debugger"),
    ("IPython/terminal/", None, "debugger"),
    ("tarfile.py", None, "file"),
    ("zipfile.py", None, "file"),
    ("zipfile/", None, "file"),
    ("gzip.py", None, "file"),
    ("shutil.py", None, "file"),
    ("glob.py", None, "file"),
    (
        "pathlib.py",
        frozenset(
            {"read_text", "read_bytes", "write_text", "write_bytes", "open", "stat", "exists"}
        ),
        "file",
    ),
    ("os.py", frozenset({"walk", "fwalk", "makedirs"}), "file"),
    ("numpy/lib/npyio.py", None, "file"),
    ("numpy/lib/_npyio_impl.py", None, "file"),
    ("<frozen importlib._bootstrap>", None, "import"),
)


def word_of(file: str, function: str) -> str | None:
    """What a library's frame waits on or does; None if that is not known.

    Do not call it for frames of the user.
    """
    for end, functions, word in _MEANINGS:
        fits = f"/{end}" in file if end.endswith("/") else file.endswith(f"/{end}") or file == end
        if fits and (functions is None or function in functions):
            return word
    return None
