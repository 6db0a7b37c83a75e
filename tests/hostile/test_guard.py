"""A guard of a job: what the job says is text, and never runs."""

import pytest

from ddtop.cli.actions import SCHEDULER_VARIABLES, OnCritical, variables
from tests.hostile.names import BAD


def ran(words, environment):
    """The complaints of `--then` with these words."""
    said = []
    last = OnCritical(words, said.append, "--then", SCHEDULER_VARIABLES)
    last.start(b"{}", "host-lost", environment)
    last.leave()
    return said


@pytest.mark.parametrize("name", ["g$(touch {})", "g`touch {}`", "g; touch {} #", "g\ntouch {}"])
def test_the_name_of_a_group_is_not_shell_code(tmp_path, name):
    """`$DDTOP_EVENT_TEXT` was replaced in the words, before the shell saw them."""
    touched, out = tmp_path / "touched", tmp_path / "out"
    text = "all_reduce in " + name.format(touched)
    event = {"event": "appeared", "job": "train", "text": text, "finding": None}
    said = ran(f"sh -c 'printf %s \"$DDTOP_EVENT_TEXT\" >{out}'", variables(event))

    assert (said, out.read_text()) == ([], text)
    assert not touched.exists()


@pytest.mark.parametrize("number", ["1; touch {}", "$(touch {})", "-f", "", "1\n2", BAD])
def test_a_malformed_id_of_a_batch_job_is_not_passed_on(tmp_path, number):
    """A job may have any text in its own SLURM_JOB_ID."""
    touched = tmp_path / "touched"
    said = ran("sh -c 'echo $SLURM_JOB_ID'", {"SLURM_JOB_ID": number.format(touched).rstrip("\0")})

    assert said == ["--then sh was not run for host-lost: $SLURM_JOB_ID is not a job id"]
    assert not touched.exists()
