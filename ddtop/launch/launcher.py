"""The protocol of a launcher: what it sets in the environment of the processes that it starts.

All functions are pure: they get an environment, and at most the command lines of the parent
processes. Each rank loads the files of this package before its program runs. So they import
nothing at the top: no `re`, no `typing`, no `dataclasses`.
"""

from __future__ import annotations

# False at run time, to save the import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ddtop.launch.start import LauncherStart

    Ancestors = Callable[[], Iterable[Sequence[str]]]
    """The command lines of the parent, its parent, and so on. It reads /proc when it is called."""


class Launcher:
    """One launcher. A subclass overrides only the methods for which the launcher sets variables.

    Each tuple of variable names is in order of preference: the first that holds a number counts.
    """

    name = ""

    ranks: tuple[str, ...] = ()
    world_sizes: tuple[str, ...] = ()
    local_ranks: tuple[str, ...] = ()
    local_sizes: tuple[str, ...] = ()
    """How many ranks of the job are on this host."""
    numbers_any_task = False
    """True if tasks of any kind get these numbers. Such a number is a rank only once the task uses
    torch or MPI, and only if no other launcher has set a number."""
    new_for_each_rank: tuple[str, ...] = ()
    """Variables that differ between two launched ranks. A forked child inherits all of them."""
    own_to_rank: tuple[str, ...] = ()
    """Variables that normally differ between the ranks of one job."""

    job_mark = ""
    """The variable that marks the processes of one of its batch jobs; empty for other launchers."""
    nodes_of_job: tuple[str, ...] = ()
    """How many nodes the job has."""
    sent = ""
    """A regular expression, without anchors: variables that say where the ranks are. The agent
    sends these to the relay, even where there are too many variables to send all."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of variables that would make a child process look like a rank."""

    commands: tuple[str, ...] = ()
    """What people type to start it, where that is not a Python program."""
    helpers: tuple[str, ...] = ()
    """Its own processes on each node, which start the ranks."""
    ends_all: tuple[str, ...] = ()
    """Prefixes of its variables, if it ends all ranks when one has gone."""
    requeues = False
    """Whether a command can put its job back into the queue: `watch --then` gets the job's id."""

    def numbers(self, environ: Mapping[str, str]) -> tuple[int, int, int | None] | None:
        """(rank, world size, local rank) where this launcher has set the first two."""
        rank = first_number(environ, self.ranks)
        size = first_number(environ, self.world_sizes)
        if rank is None or size is None:
            return None
        return rank, size, first_number(environ, self.local_ranks)

    def local_and_world_size(self, environ: Mapping[str, str]) -> tuple[int, int] | None:
        """(ranks on this host, ranks of the job) where this launcher has set both."""
        local = first_number(environ, self.local_sizes)
        size = first_number(environ, self.world_sizes)
        return None if local is None or size is None else (local, size)

    def restarts(self, environ: Mapping[str, str]) -> int | None:
        """How often it has restarted the ranks; None if it does not set such a variable."""
        return None

    def job_id(self, environ: Mapping[str, str]) -> str | None:
        """The id of the whole batch job."""
        return environ.get(self.job_mark) or None if self.job_mark else None

    def chosen_name(self, environ: Mapping[str, str]) -> str | None:
        """The name that the user gave to this start, None where the launcher made one up."""
        return None

    def start(
        self,
        environ: Mapping[str, str],
        ancestors: Ancestors,
        batch_job: str | None,
    ) -> LauncherStart | None:
        """The start that numbered this rank: equal on all hosts, different for the next start.

        `batch_job` is the id of the batch job around it, of whichever scheduler.
        """
        return None

    def start_across_nodes(self, environ: Mapping[str, str]) -> str | None:
        """The name of this start if its tasks are on several nodes; the tasks may be any
        programs."""
        return None

    def nodes_of_world(self, environ: Mapping[str, str], world_size: int | None) -> int | None:
        """How many nodes the ranks are on, if this start has as many tasks as there are ranks."""
        return None

    def nodes_of_rank(self, environ: Mapping[str, str], rank: int | None) -> int | None:
        """How many nodes the ranks are on, where this launcher itself numbered this `rank`."""
        return None

    def first_host(self, environ: Mapping[str, str]) -> str:
        """The host of rank 0; empty if it does not set one."""
        return ""

    def started_from(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Where the launcher itself runs: names or addresses, often those of the first host."""
        return ()


def number(environ: Mapping[str, str], name: str) -> int | None:
    """The variable as a number that is not negative; None where it is none."""
    value = environ.get(name, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 8 else None


def first_number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """The first of these variables that is a number."""
    for name in names:
        found = number(environ, name)
        if found is not None:
            return found
    return None
