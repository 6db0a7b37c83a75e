"""Who this process is: a rank, somebody who may become one, a launcher, or none of our business; and which run it
belongs to. Decided from environment, command line and parent before anything else of the program runs.
"""

from __future__ import annotations

import os

# Not at run time: this module is loaded in every Python of a DDTOP=1 shell.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RANK, CANDIDATE, LAUNCHER, IGNORED = "rank", "candidate", "launcher", "ignored"

CLAIM = "DDTOP_CLAIM"
"""Set by a rank for its descendants: pid and launcher variables of the process that already is this rank."""
TREE = "DDTOP_TREE"
"""Set by the first watched process of a tree, and by every launcher: job name and run of its descendants."""

_LAUNCHER_SCRIPTS = {
    "torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "composer", "lightning", "fabric",
}  # fmt: skip
_LAUNCHER_MODULES = {
    "torch.distributed.run", "torch.distributed.launch", "torch.distributed.torchrun_main", "torch.distributed.elastic",
    "accelerate.commands.launch", "accelerate.commands.accelerate_cli", "deepspeed.launcher.launch",
    "deepspeed.launcher.runner",
}  # fmt: skip
_NEVER_SCRIPTS = {"ddtop", "pip", "pip3", "py-spy", "uv", "conda", "nvitop", "ipython", "jupyter", "pre-commit", "ray"}
_NEVER_MODULES = {"ddtop", "pip", "ensurepip", "venv", "build", "site", "compileall", "json.tool"}
_LAUNCHER_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
    "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_NAMESPACE",
)  # fmt: skip
MPI_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
"""Rank, size and local rank as Open MPI gives them, and as Hydra (MPICH, Intel MPI) does; others set PMI_RANK and PMI_SIZE too."""
SLURM_VARIABLES = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
"""srun's; inside mpirun they are those of mpirun itself, so they count only where no launcher of MPI has set its own."""
JSRUN_VARIABLES = ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK")
"""Those of LSF's jsrun, for programs of any kind: they count like srun's."""
_OTHER_LOCAL_RANKS = ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "SLURM_LOCALID")
"""Cray's PALS, and srun with PMI-2, give PMI_RANK and another name to the rest."""
_FLAGS = {
    # torchrun
    "--standalone", "-m", "--module", "--no-python", "--use-env", "--run-path", "--virtual-local-rank",
    # accelerate launch
    "-q", "--quiet", "--cpu", "--multi-gpu", "--tpu", "--enable-cpu-affinity", "--dynamo-use-fullgraph", "--dynamo-use-dynamic",
    "--dynamo-use-regional-compilation", "--use-deepspeed", "--use-fsdp", "--use-parallelism-config", "--use-megatron-lm",
    "--same-network", "--tpu-cluster", "--no-tpu-cluster", "--tpu-use-sudo", "--downcast-bf16",
    "--fp8-use-autocast-during-eval", "--debug",
    # deepspeed
    "--no-local-rank", "--no-ssh", "--no-ssh-check", "--force-multi", "--save-pid", "--bind-cores-to-rank",
    "--enable-elastic-training",
    # composer, horovodrun
    "-v", "--verbose", "-c", "--command-mode", "--module-mode", "--disable-cache", "--autotune", "--gloo", "--mpi", "--jsrun", "--tcp",
    "-h", "--help", "--version",
}  # fmt: skip
"""Options of launchers that stand alone, with dashes; any other takes a value, so the script is the first word after those."""
_SUBCOMMANDS = {"launch", "run", "model", "fabric"}
"""accelerate launch, fabric run, lightning run model."""
_WORKER_SCRIPTS = {"default_worker", "setup_worker"}
"""Ray's, which run whatever the driver sends: their own name says nothing of the job."""


class Identity:
    """What could be decided. `rank` to `elastic` are set for a RANK only; `script` is a file's name without folder.

    Not a dataclass: this module is loaded in every Python of a DDTOP=1 shell, and dataclasses alone would cost 12 ms.
    """

    __slots__ = ("attempt", "elastic", "local_rank", "rank", "role", "script", "world_size")

    def __init__(
        self,
        role: str,
        script: str,
        rank: int | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        attempt: int = 0,
        elastic: bool = False,
    ) -> None:
        self.role, self.script, self.rank, self.local_rank = role, script, rank, local_rank
        self.world_size, self.attempt, self.elastic = world_size, attempt, elastic


def identify(environ: Mapping[str, str], argv: Sequence[str], pid: int) -> Identity:
    """The role of the process with this environment and original command line (`sys.orig_argv`)."""
    module, script, inline = _program(argv)
    name = _script_name(module, script)
    top = module.split(".")[0] if module else ""
    if script_base(script) in _NEVER_SCRIPTS or module in _NEVER_MODULES or top in ("pip", "ddtop"):
        return Identity(IGNORED, name)
    if _is_helper(argv, module, script):
        return Identity(IGNORED, name)
    if script_base(script) in _LAUNCHER_SCRIPTS or module in _LAUNCHER_MODULES:
        return Identity(LAUNCHER, launched_script(argv) or name)
    rank, world_size, local_rank = numbers(environ)
    if rank is None or world_size is None or not 0 <= rank < world_size or inline:
        return Identity(CANDIDATE, name)
    claim = environ.get(CLAIM, "")
    if claim.partition(":")[2] == fingerprint(environ) and claim.partition(":")[0] != str(pid):
        return Identity(CANDIDATE, name)
    return Identity(
        RANK,
        name,
        rank,
        local_rank,
        world_size,
        number(environ, "TORCHELASTIC_RESTART_COUNT") or 0,
        "TORCHELASTIC_RUN_ID" in environ,
    )


def numbers(environ: Mapping[str, str], slurm: bool = False) -> tuple[int | None, int | None, int | None]:
    """(rank, world size, local rank) as a launcher says, torch's own before MPI's; `slurm`: also those of srun and jsrun."""
    tried = [("RANK", "WORLD_SIZE", "LOCAL_RANK"), *MPI_VARIABLES]
    tried += [SLURM_VARIABLES, JSRUN_VARIABLES] if slurm else []
    for names in tried:
        rank, size, local = (number(environ, name) for name in names)
        if rank is None or size is None:
            continue
        if local is None and names[0] == "PMI_RANK":
            local = next((one for name in _OTHER_LOCAL_RANKS if (one := number(environ, name)) is not None), None)
        return rank, size, local
    return None, None, None


def fingerprint(environ: Mapping[str, str]) -> str:
    """What a launcher sets anew for each rank: a child with another one was launched, not merely forked."""
    return ",".join(environ.get(name, "") for name in _LAUNCHER_VARIABLES)


def script_base(path: str) -> str:
    """`/a/b/train.py` as `train`."""
    base = os.path.basename(path)
    return base[:-3] if base.endswith(".py") else base


def launched_script(argv: Sequence[str]) -> str | None:
    """Name of the script that a torchrun-like command line starts, None if there is none to see."""
    words = _launcher_words(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            if os.path.basename(word).startswith("python"):
                module, script, inline = _program([word, *words])
                return None if inline else _script_name(module, script)
            return _launched_name(word)
        if word == "--" or _is_flag(word) or "=" in word:
            continue
        # An option that a later release has brought may be a flag.
        if words and not words[0].endswith(".py"):
            words.pop(0)
    return None


def _launched_name(word: str) -> str:
    """`src/train.py` and `pkg.train` as `train`; `pkg/__main__.py` and `pkg.__main__` as `pkg`."""
    if "/" in word or word.endswith(".py"):
        return _script_name("", word)
    return _script_name(word, "")


def _is_flag(word: str) -> bool:
    return word.replace("_", "-") in _FLAGS


def launcher_options(argv: Sequence[str]) -> dict[str, str]:
    """The options before the script of a torchrun-like command line, by torchrun's own names (`rdzv_endpoint`); a flag is empty."""
    words, found = _launcher_words(argv), {}
    while words and words[0].startswith("-") and words[0] != "--":
        word = words.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not equals and not _is_flag(word) and words:
            value = words.pop(0)
        found[name.replace("-", "_")] = value
    return found


def _launcher_words(argv: Sequence[str]) -> list[str]:
    """What stands behind the launcher's own name."""
    module, script, _ = _program(argv)
    words = list(argv)
    start = words.index(script) + 1 if script in words else words.index(module) + 1 if module in words else 1
    words = words[start:]
    if script_base(script) in ("accelerate", "lightning", "fabric") or module.startswith("accelerate"):
        while words and words[0] in _SUBCOMMANDS:
            words.pop(0)
    return words


def script_of(argv: Sequence[str]) -> str:
    """The path of the script that this command line runs, empty for `-m`, `-c` and the interactive interpreter."""
    return _program(argv)[1]


def chosen_run_id(environ: Mapping[str, str]) -> str | None:
    """TORCHELASTIC_RUN_ID where a person chose it: torchrun fills in `none`, or a UUID with --standalone."""
    value = environ.get("TORCHELASTIC_RUN_ID", "")
    if value in ("", "none"):
        return None
    shape = [len(part) for part in value.split("-")]
    return None if shape == [8, 4, 4, 4, 12] else value


def number(environ: Mapping[str, str], name: str) -> int | None:
    """The variable as a number that is not negative; None where it is none."""
    value = environ.get(name, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 8 else None


def _program(argv: Sequence[str]) -> tuple[str, str, bool]:
    """(module after -m, script path, whether it is -c or interactive)."""
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        if word == "-m" and words[:1] == ["mpi4py"] and len(words) > 1:
            # It runs another program, and aborts the job where that raises.
            return _program(words)
        if word == "-m":
            return (words[0] if words else "", "", False)
        if word in {"-c", "-"}:
            return "", "", True
        if word in ("-W", "-X"):
            words = words[1:]
        elif not word.startswith("-"):
            return "", word, False
        elif len(word) > 2 and word[1] != "-" and word.endswith(("m", "c")) and not word.startswith(("-W", "-X")):
            # Clustered flags: -um module, -uc code.
            return (words[0] if words and word.endswith("m") else "", "", word.endswith("c"))
    return "", "", True


def _script_name(module: str, script: str) -> str:
    if script_base(script) in _WORKER_SCRIPTS:
        return "python"
    if module:
        parts = [part for part in module.split(".") if part != "__main__"]
        return parts[-1] if parts else module
    if script_base(script) == "__main__":
        return os.path.basename(os.path.dirname(os.path.abspath(script))) or "python"
    return script_base(script) or "python"


def _is_helper(argv: Sequence[str], module: str, script: str) -> bool:
    # Workers that multiprocessing or a compiler starts for itself; a spawned *user* process is a candidate, which
    # costs it an import hook and nothing else.
    text = " ".join(argv[1:4])
    if "multiprocessing.resource_tracker" in text or "multiprocessing.forkserver" in text:
        return True
    return "compile_worker" in script or "compile_worker" in module
