"""`ddtop mute` against a real relay, and what it refuses."""

import json
from contextlib import closing

import pytest

from ddtop import registry
from ddtop.cli import cli
from ddtop.cli.errors import CommandError
from tests.cli.commands import ddtop
from tests.relay.stage import Stage, sees_ranks
from tests.waiting import until


def test_what_is_muted_is_reported_to_whoever_looks(home):
    with closing(Stage(home)) as stage:
        stage.rank()
        stage.heard(stage.viewer(), sees_ranks)
        until(registry.read_entries)
        done = ddtop(
            "mute", "train", "straggler", "--rank", "1", "--for", "10m", "--because", "slow"
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "muted: straggler for 10 min: slow\n"

        status = ddtop("status", "train").stdout
        assert "straggler of ranks 1: slow" in " ".join(status.split())
        assert json.loads(ddtop("diagnose", "train", "--json").stdout)["muted"] == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--for", "10m", "--because", "x"), "needs a KIND, or --rank"),
        (("stragler", "--for", "1m", "--because", "x"), "did you mean straggler?"),
        (("straggler", "--for", "10m"), "needs --because"),
        (("straggler", "--for", "0.5s", "--because", "x"), "whole seconds"),
    ],
)
def test_what_cannot_be_muted_is_one_sentence(home, words, text):
    with pytest.raises(CommandError, match=text.replace("?", r"\?")) as raised:
        cli.main(["mute", "train", *words], standalone_mode=False)
    assert raised.value.code == 2
    assert "\n" not in str(raised.value)
