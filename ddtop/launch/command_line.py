"""Python command lines: which program runs, whether it is a launcher, and which script the launcher
starts.

Most launchers are recognised by their variables (`every_launcher()`). Launchers that are Python
programs are also listed here, because such a process is not a rank.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SCRIPTS = frozenset(
    [
        *("torchrun", "mpirun", "mpiexec"),
        *("accelerate", "deepspeed", "lightning", "fabric", "composer", "horovodrun"),
    ]
)
"""Commands of launchers, without `.py`."""
_MODULES = frozenset(
    [
        *("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic"),
        "torch.distributed.torchrun_main",
        *("accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
        *("deepspeed.launcher.launch", "deepspeed.launcher.runner"),
    ]
)
"""The same for `python -m MODULE`."""
_SUBCOMMANDS = {
    "accelerate": ("launch",),
    "lightning": ("run", "model", "fabric"),
    "fabric": ("run", "model", "fabric"),
}
"""Words between a command and its options: `accelerate launch`, `lightning run model`."""
_FLAGS = frozenset(
    [
        # torchrun
        *("--standalone", "-m", "--module", "--no-python", "--use-env", "--run-path"),
        *("--virtual-local-rank", "-h", "--help", "--version"),
        # accelerate launch
        *("-q", "--quiet", "--cpu", "--multi-gpu", "--tpu", "--enable-cpu-affinity", "--debug"),
        *("--dynamo-use-fullgraph", "--dynamo-use-dynamic"),
        *("--dynamo-use-regional-compilation", "--use-deepspeed", "--use-fsdp"),
        *("--use-parallelism-config", "--use-megatron-lm", "--same-network", "--tpu-cluster"),
        *("--no-tpu-cluster", "--tpu-use-sudo", "--downcast-bf16"),
        "--fp8-use-autocast-during-eval",
        # deepspeed
        *("--no-local-rank", "--no-ssh", "--no-ssh-check", "--force-multi", "--save-pid"),
        *("--bind-cores-to-rank", "--enable-elastic-training"),
        # composer, horovodrun
        *("-v", "--verbose", "-c", "--command-mode", "--module-mode"),
        *("--disable-cache", "--autotune", "--gloo", "--mpi", "--jsrun", "--tcp"),
    ]
)
"""Options of launchers that take no value, with dashes. All other options take one; the first word
after the options is the script. A launcher may accept the options of the launcher that it calls, so
there is one set for all."""
_WORKER_SCRIPTS = ("default_worker", "setup_worker")
"""Scripts of Ray, which run what the driver sends. Their name says nothing about the job."""


def program(argv: Sequence[str]) -> tuple[str, str, bool]:
    """(module after -m, path of the script, whether it is `-c` or interactive)."""
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        if word == "-m" and words[:1] == ["mpi4py"] and len(words) > 1:
            # mpi4py runs another program, and aborts the job if that raises.
            return program(words)
        if word == "-m":
            return (words[0] if words else "", "", False)
        if word in {"-c", "-"}:
            return "", "", True
        if word in ("-W", "-X"):
            words = words[1:]
        elif not word.startswith("-"):
            return "", word, False
        elif len(word) > 2 and word[1] != "-" and word[-1] in "mc" and word[:2] not in ("-W", "-X"):
            # Clustered flags: -um module, -uc code.
            return (words[0] if words and word[-1] == "m" else "", "", word[-1] == "c")
    return "", "", True


def script_base(path: str) -> str:
    """`/a/b/train.py` as `train`."""
    base = os.path.basename(path)
    return base[:-3] if base.endswith(".py") else base


def script_name(module: str, script: str) -> str:
    """The program as people know it: `train`, or `pkg` for `pkg/__main__.py` and `pkg.__main__`."""
    if script_base(script) in _WORKER_SCRIPTS:
        return "python"
    if module:
        parts = [part for part in module.split(".") if part != "__main__"]
        return parts[-1] if parts else module
    if script_base(script) == "__main__":
        return os.path.basename(os.path.dirname(os.path.abspath(script))) or "python"
    return script_base(script) or "python"


def actor_class(argv: Sequence[str]) -> str:
    """`Trainer` of `ray::Trainer.fit`: the class of the Ray actor with this title; else empty."""
    title = argv[0] if argv else ""
    return title[5:].partition(".")[0].partition("(")[0] if title.startswith("ray::") else ""


def is_launcher(argv: Sequence[str]) -> bool:
    """Whether this is the command line of a launcher that is a Python program."""
    module, script, _ = program(argv)
    return script_base(script) in _SCRIPTS or module in _MODULES


def launched_script(argv: Sequence[str]) -> str | None:
    """Name of the script that a launcher's command line starts; None if it names none."""
    words = _words_behind(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            if os.path.basename(word).startswith("python"):
                module, script, inline = program([word, *words])
                return None if inline else script_name(module, script)
            is_path = "/" in word or word.endswith(".py")
            return script_name("", word) if is_path else script_name(word, "")
        if word == "--" or _is_flag(word) or "=" in word:
            continue
        # An unknown option of a newer release may take no value.
        if words and not words[0].endswith(".py"):
            words.pop(0)
    return None


def launcher_options(argv: Sequence[str]) -> dict[str, str]:
    """The options before the script, by torchrun's names (`rdzv_endpoint`); a flag is empty."""
    words, found = _words_behind(argv), {}
    while words and words[0].startswith("-") and words[0] != "--":
        word = words.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not equals and not _is_flag(word) and words:
            value = words.pop(0)
        found[name.replace("-", "_")] = value
    return found


def _words_behind(argv: Sequence[str]) -> list[str]:
    """The words after the launcher's own name and its subcommands."""
    module, script, _ = program(argv)
    words = list(argv)
    named = script if script in words else module if module in words else None
    words = words[words.index(named) + 1 if named is not None else 1 :]
    command = module.partition(".")[0] or script_base(script)
    subcommands = _SUBCOMMANDS.get(command, ())
    while words and words[0] in subcommands:
        words.pop(0)
    return words


def _is_flag(word: str) -> bool:
    return word.replace("_", "-") in _FLAGS
