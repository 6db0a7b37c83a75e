"""Jobs on another host, and `ddtop attach` to them."""

from ddtop import registry
from tests.cli.commands import ddtop_process, write_ended


def over(job, name="train-47"):
    """A job on the other host that has ended, with the last state that its relay left."""
    entry = write_ended(job, name)
    there = registry.last_state_path(name, "r1", entry.sender)
    registry.last_state_path(name, "r1").rename(there)
    return entry, there


def attach(there, *words, **variables):
    """What the command prints without a terminal."""
    # What an ssh may say is limited by the memory of the process, and this one has all tests in it.
    return ddtop_process("attach", *words, **{**there.environment, **variables})
