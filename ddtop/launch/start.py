"""One start of a launcher, and the nodes that were given to torchrun."""

from __future__ import annotations

from typing import NamedTuple


class LauncherStart(NamedTuple):
    """One start of a launcher.

    `run` is equal on all hosts and different for the next start. `label` distinguishes the start
    from others in the name of a job. `whole`: the label is the whole name; otherwise the name
    begins with the script.
    """

    run: str
    label: str
    whole: bool = False


class NodeOptions(NamedTuple):
    """The rendezvous address (HOST:PORT) of one torchrun job, and the possible numbers of nodes."""

    endpoint: str | None
    nodes_max: int
    nodes_min: int = 1
