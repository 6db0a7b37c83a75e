"""Jobs of `test_mpi_ends.py` and of the pages of findings."""

from tests.mpi_jobs import MpiJob
from tests.ranks import unix_ns


def _finalizing(job: MpiJob, *numbers: int) -> None:
    for number in numbers:
        job.ranks[number].trains, job.ranks[number].cores = False, 1.0
        job.outside(number, finalize_since_unix_ns=unix_ns(job.now))
