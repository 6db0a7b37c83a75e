"""`ddtop schema`, and the documents that real commands print checked against it."""

import json

import jsonschema
import pytest

from ddtop.cli import cli
from ddtop.cli.errors import CommandError
from ddtop.present.schemas import KEYS
from tests.cli.commands import ddtop, killed, write_ended


def printed(capsys, *words):
    cli.main(["schema", *words], standalone_mode=False)
    return json.loads(capsys.readouterr().out)


def test_all_schemas_by_their_name_and_version(capsys):
    assert set(printed(capsys)) == set(KEYS)


@pytest.mark.parametrize("name", ["status", "ddtop.status/1"])
def test_one_schema_by_its_name(capsys, name):
    assert printed(capsys, name)["title"] == "ddtop.status/1"


def test_watch_prints_events(capsys):
    assert printed(capsys, "watch") == printed(capsys, "event")


def test_a_name_that_is_none_is_refused():
    with pytest.raises(CommandError, match="there is no schema named 'colour'") as raised:
        cli.main(["schema", "colour"], standalone_mode=False)
    assert raised.value.code == 2


@pytest.mark.parametrize("words", [("status", "old"), ("diagnose", "old"), ("jobs",)])
def test_what_a_command_prints_is_valid(home, capsys, words):
    write_ended(killed(), "old")
    document = json.loads(ddtop(*words, "--json").stdout)

    jsonschema.validate(document, printed(capsys, words[0]))
