"""What this process is: a rank, one that may become a rank, a launcher, or none of these.

The decision needs the environment, the command line and the parent. It is made before anything
else of the program runs.
"""

from __future__ import annotations

from ddtop import launch
from ddtop.launch.command_line import (
    is_launcher,
    launched_script,
    program,
    script_base,
    script_name,
)

# Not at run time: this module is loaded in every Python of a DDTOP=1 shell.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RANK, CANDIDATE, LAUNCHER, IGNORED = "rank", "candidate", "launcher", "ignored"

CLAIM = "DDTOP_CLAIM"
"""A rank sets it for its descendants: its pid and its launcher variables."""
TREE = "DDTOP_TREE"
"""The first watched process of a tree sets it, and each launcher: name and run of the job below."""

_NEVER_SCRIPTS = frozenset(
    [
        "ddtop",
        "pip",
        "pip3",
        "py-spy",
        "uv",
        "conda",
        "nvitop",
        "ipython",
        "jupyter",
        "pre-commit",
        "ray",
    ]
)
_NEVER_MODULES = frozenset(
    ["ddtop", "pip", "ensurepip", "venv", "build", "site", "compileall", "json.tool"]
)


class Identity:
    """The result of `identify`. `rank` to `elastic` are set only for a RANK.

    `script` is the name of a file without its folder. It is not a dataclass, because the import of
    `dataclasses` would cost each Python of a DDTOP=1 shell 12 ms.
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
    """The role of the process with this environment and command line (`sys.orig_argv`)."""
    module, script, inline = program(argv)
    name = script_name(module, script)
    top = module.split(".")[0] if module else ""
    if script_base(script) in _NEVER_SCRIPTS or module in _NEVER_MODULES or top in ("pip", "ddtop"):
        return Identity(IGNORED, name)
    if _is_helper(argv, module, script):
        return Identity(IGNORED, name)
    if is_launcher(argv):
        return Identity(LAUNCHER, launched_script(argv) or name)
    rank, world_size, local_rank = launch.numbers(environ)
    if rank is None or world_size is None or not 0 <= rank < world_size or inline:
        return Identity(CANDIDATE, name)
    claim_pid, _, variables = environ.get(CLAIM, "").partition(":")
    if variables == launch.fingerprint(environ) and claim_pid != str(pid):
        return Identity(CANDIDATE, name)
    from ddtop.launch.launchers import is_elastic

    attempt, elastic = launch.restarts(environ), is_elastic(environ)
    return Identity(
        RANK,
        name,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        attempt=attempt,
        elastic=elastic,
    )


def _is_helper(argv: Sequence[str], module: str, script: str) -> bool:
    # Workers that multiprocessing or a compiler starts for itself. A spawned process of the user is
    # a candidate, which costs only an import hook. The fork server is one too, because its children
    # have the import hook only if it has.
    return (
        "multiprocessing.resource_tracker" in " ".join(argv[1:4])
        or "compile_worker" in script
        or "compile_worker" in module
    )
