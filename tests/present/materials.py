"""What a report is written from."""

from ddtop.present.report import Material
from tests.jobs import FakeJob
from tests.ui.builders import NOW


def material(job, **more):
    return Material(NOW, "0.1.0", "its relay, live", job.snapshot(), job.verdict(), **more)


def hang():
    job = FakeJob(4).trains(10)
    job.ranks[2].stands_at("fetch_labels", "/home/ada/data.py", 40)
    job.others_wait(2)
    return job.passes(12)
