"""One start of a launcher, and the nodes that torchrun was given."""

from __future__ import annotations

from typing import NamedTuple


class LauncherStart(NamedTuple):
    """One start of a launcher.

    `run` is equal on all hosts and different for the next start. `label` tells the start from
    others in the name of a job. `whole`: the label is the name; otherwise the script goes first.
    """

    run: str
    label: str
    whole: bool = False


class NodeOptions(NamedTuple):
    """Where the nodes of one torchrun job meet (HOST:PORT), and how many they may be."""

    endpoint: str | None
    nodes_max: int
