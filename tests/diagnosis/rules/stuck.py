"""Jobs of the pages of findings."""

from tests.jobs import trained


def stuck():
    job = trained()
    job.others_wait()
    return job
