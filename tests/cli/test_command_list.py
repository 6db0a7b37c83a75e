"""The list of commands in `ddtop --help`, made without importing a command."""

import importlib
import pkgutil

import click
import pytest

from ddtop.cli import COMMANDS, cli, commands
from tests.running import python

SUMMARIES = {name: text for listed in COMMANDS.values() for name, text in listed.items()}
NAMES = sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__))


def test_every_module_of_a_command_is_in_the_list():
    assert sorted(cli.commands) == NAMES


@pytest.mark.parametrize("name", SUMMARIES)
def test_the_list_has_the_first_sentence_of_a_command(name):
    text = cli.load(name).get_short_help_str(limit=500)

    assert text.removesuffix(".") == SUMMARIES[name].removesuffix(".")


@pytest.mark.parametrize("name", NAMES)
def test_a_command_has_the_name_of_its_module(name):
    module = name.replace("-", "_")
    command = importlib.import_module(f"ddtop.cli.commands.{module}").command

    assert (command.name, command.hidden) == (name, cli.commands[name].hidden)


def test_help_imports_no_command():
    program = (
        "import sys; from ddtop.cli import cli; cli.main(['--help'], standalone_mode=False);"
        "print([name for name in sys.modules if name.startswith('ddtop.cli.commands.')])"
    )
    done = python("-c", program)

    assert "  watch  " in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_options_of_every_command_are_shown_without_textual_torch_or_zeromq():
    """Help and a mistyped option come at once, and on a host that has none of them."""
    program = (
        "import sys; from ddtop.cli import COMMANDS, cli\n"
        "for name in [name for listed in COMMANDS.values() for name in listed]:\n"
        "    cli.load(name)\n"
        "    for module in {'textual', 'torch', 'zmq', 'asyncio'} & set(sys.modules):\n"
        "        print(name, 'has', module)\n"
    )
    done = python("-c", program)

    assert done.stdout == ""


def test_an_unknown_command_is_a_usage_error_that_names_it():
    with pytest.raises(click.UsageError, match="No such command 'stauts'"):
        cli.main(["stauts"], standalone_mode=False)
