"""Jobs of `test_mpi.py` and of the pages of findings."""

from ddtop.wire.mpi import MpiPart
from tests.mpi_jobs import WORLD, MpiJob


def _started(job: MpiJob, number: int, *names: str) -> None:
    """It waits for collectives that it has started. Only their names and numbers are known."""
    parts = tuple(MpiPart(name, WORLD, job.done + 1 + place) for place, name in enumerate(names))
    job.inside(number, job.call("Waitall", parts=parts))
