"""The environment variables of each launcher: one class per launcher, one table, one protocol
(`launcher.Launcher`).

To add a launcher, write a class and its test, and add a line to `every_launcher()`.
"""

from __future__ import annotations

from ddtop import plugins

# False at run time, to save the import: every Python of a DDTOP=1 shell loads this module. The
# launchers are loaded only in a rank; they would cost each Python 1 ms.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from importlib.metadata import EntryPoint

    from ddtop.launch.launcher import Ancestors, Launcher
    from ddtop.launch.start import LauncherStart, NodeOptions

MARKS = frozenset(
    ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"]
)
"""A process without any of these variables did not get a rank from a launcher of this table."""
MASTER_PORT = "29500"
"""torchrun's default."""
_table: tuple[Launcher, ...] = ()


def every_launcher() -> tuple[Launcher, ...]:
    """The table of launchers, innermost first.

    If srun starts mpirun and mpirun starts torchrun, each rank inherits the variables of all three,
    but only those of torchrun describe the rank.
    """
    global _table
    if not _table:
        from ddtop.launch.launchers import (
            Hydra,
            Kubernetes,
            Lsf,
            OpenMpi,
            Pals,
            Pbs,
            Slurm,
            Torchrun,
        )

        _table = (
            Torchrun(),
            OpenMpi(),
            Hydra(),
            *plugins.load(plugins.LAUNCHERS, _plugin),
            Slurm(),
            Lsf(),
            Pals(),
            Pbs(),
            Kubernetes(),
        )
    return _table


def _plugin(point: EntryPoint) -> Launcher:
    """The launcher of a plugin. It is asked once here, because later nothing catches its
    errors."""
    import os

    launcher: Launcher = point.load()()
    launcher.numbers(os.environ)
    launcher.restarts(os.environ)
    launcher.chosen_name(os.environ)
    launcher.start(os.environ, tuple, launcher.job_id(os.environ))
    return launcher


def programs() -> frozenset[str]:
    """Launchers that are not Python programs, and what they start on each node."""
    return frozenset(
        name for launcher in every_launcher() for name in (*launcher.commands, *launcher.helpers)
    )


def begins_a_job(argv: Sequence[str]) -> bool:
    """Whether the ranks below the process with this command line are those of a job of its own."""
    from ddtop.launch.command_line import is_launcher

    return bool(argv) and (argv[0].rpartition("/")[2] in programs() or is_launcher(argv))


# -- variables


def numbers(
    environ: Mapping[str, str], any_task: bool = False
) -> tuple[int | None, int | None, int | None]:
    """(rank, world size, local rank) of the innermost launcher that set the first two.

    `any_task`: also those of srun and jsrun, which number tasks of any kind.
    """
    if MARKS.isdisjoint(environ) and not plugins.entry_points(plugins.LAUNCHERS):
        return None, None, None
    for launcher in every_launcher():
        if (any_task or not launcher.numbers_any_task) and (
            found := launcher.numbers(environ)
        ) is not None:
            return found
    return None, None, None


def rank(environ: Mapping[str, str], any_task: bool = True) -> int | None:
    """The rank, also if the launcher sets no world size."""
    from ddtop.launch.launcher import first_number

    known = (launcher for launcher in every_launcher() if any_task or not launcher.numbers_any_task)
    return _first_number(first_number(environ, launcher.ranks) for launcher in known)


def world_size(environ: Mapping[str, str]) -> int | None:
    """The world size alone."""
    from ddtop.launch.launcher import first_number

    return _first_number(
        first_number(environ, launcher.world_sizes) for launcher in every_launcher()
    )


def local_rank(environ: Mapping[str, str]) -> int | None:
    """The local rank alone."""
    from ddtop.launch.launcher import first_number

    return _first_number(
        first_number(environ, launcher.local_ranks) for launcher in every_launcher()
    )


def local_size(environ: Mapping[str, str]) -> int | None:
    """How many ranks of the job are on this host."""
    from ddtop.launch.launcher import first_number

    return _first_number(
        first_number(environ, launcher.local_sizes) for launcher in every_launcher()
    )


def local_and_world_size(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """(ranks on this host, ranks of the job), both from the same launcher."""
    found = (launcher.local_and_world_size(environ) for launcher in every_launcher())
    return next((sizes for sizes in found if sizes is not None), None)


def restarts(environ: Mapping[str, str]) -> int:
    """How often the launcher has restarted the ranks; 0 if it does not set such a variable."""
    return _first_number(launcher.restarts(environ) for launcher in every_launcher()) or 0


def fingerprint(environ: Mapping[str, str]) -> str:
    """The variables that are new for each rank: a child with others was launched, not forked."""
    return ",".join(
        environ.get(name, "")
        for launcher in every_launcher()
        for name in launcher.new_for_each_rank
    )


# -- jobs and starts


def batch_job(environ: Mapping[str, str]) -> str | None:
    """The id of the whole batch job. Check: `squeue --me`, `qstat -u $USER`, `bjobs`."""
    return next(
        (job for launcher in every_launcher() if (job := launcher.job_id(environ)) is not None),
        None,
    )


def in_batch_job(environ: Mapping[str, str]) -> bool:
    """Whether a scheduler runs this process, in whichever job."""
    return any(launcher.job_mark in environ for launcher in every_launcher() if launcher.job_mark)


def chosen_name(environ: Mapping[str, str]) -> str | None:
    """The name that the user gave to the launcher."""
    return next(
        (name for launcher in every_launcher() if (name := launcher.chosen_name(environ))), None
    )


def find_start(environ: Mapping[str, str], ancestors: Ancestors) -> LauncherStart | None:
    """The start of mpirun or srun that numbered this rank; None if neither did.

    `ancestors` gives the command lines of the parent processes, the nearest first.
    """
    job = batch_job(environ)
    for launcher in every_launcher():
        if (found := launcher.start(environ, ancestors, job)) is not None:
            return found
    return None


# -- nodes


def start_across_nodes(environ: Mapping[str, str]) -> str | None:
    """The name of a start whose tasks are on several nodes: ranks, or a launcher on each node."""
    found = (launcher.start_across_nodes(environ) for launcher in every_launcher())
    return next((name for name in found if name), None)


def nodes_of_world(environ: Mapping[str, str], size: int | None) -> int | None:
    """How many nodes the ranks are on, from a launcher that has as many tasks as there are
    ranks."""
    return _first_number(launcher.nodes_of_world(environ, size) for launcher in every_launcher())


def nodes_of_rank(environ: Mapping[str, str], number: int | None) -> int | None:
    """How many nodes the ranks are on, from the launcher that numbered this rank."""
    return _first_number(launcher.nodes_of_rank(environ, number) for launcher in every_launcher())


def likely_first_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Where rank 0 may be, likeliest first. A launcher often runs on the first host."""
    first = [launcher.first_host(environ) for launcher in every_launcher()]
    started = [host for launcher in every_launcher() for host in launcher.started_from(environ)]
    return tuple(dict.fromkeys(host for host in (*first, *started) if host))


def node_options(environ: Mapping[str, str], ancestors: Ancestors) -> NodeOptions:
    """The nodes of the nearest torchrun among the parents: from its options, else from the
    variables PET_*, which Kubeflow sets."""
    from ddtop.launch.command_line import is_launcher, launcher_options
    from ddtop.launch.start import NodeOptions

    options: dict[str, str] = {}
    for words in ancestors():
        if is_launcher(words):
            options = launcher_options(words)
            break

    def option(name: str) -> str:
        return options.get(name) or environ.get(f"PET_{name.upper()}", "")

    endpoint = option("rdzv_endpoint")
    if not endpoint and option("master_addr"):
        endpoint = f"{option('master_addr')}:{option('master_port') or MASTER_PORT}"
    least, _, most = option("nnodes").partition(":")
    counts = [1, 1]
    if "standalone" not in options:
        counts = [_nodes(most or least), _nodes(least)]
    return NodeOptions(endpoint or None, *counts)


def _nodes(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 1


def _first_number(found: Iterable[int | None]) -> int | None:
    return next((number for number in found if number is not None), None)
