"""A rank that saves a checkpoint, validates or compiles while the others wait for it."""

import pytest

from tests.diagnosis.rules.phases import saving

KIND = "not-in-collective"


@pytest.mark.parametrize(
    ("scene", "seconds"),
    [
        pytest.param({}, (50, 30), id="one that works has the limits for work"),
        pytest.param({"usual_s": 35.0}, (100, 10), id="usually long: three times as much"),
        pytest.param(
            {"still": True, "usual_s": 35.0}, (40, 6), id="an upload that has always waited so long"
        ),
    ],
)
def test_a_checkpoint_is_a_hang_after_what_it_usually_takes(scene, seconds):
    job = saving(**scene)
    before = job.passes(seconds[0]).kinds()
    job.passes(seconds[1])

    assert (before, job.kinds()) == ([("warning", KIND, (0,))], [("critical", KIND, (0,))])
