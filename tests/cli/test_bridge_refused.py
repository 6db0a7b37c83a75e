"""A bridge that fails: one sentence and an exit code, whatever the other host does."""

import pytest

from ddtop.cli.attach_remote import attach_through
from ddtop.cli.errors import CommandError
from ddtop.feeds.bridge import SshTarget
from tests.cli.commands import ddtop_process, finished
from tests.cli.elsewhere import over


def test_a_job_that_left_nothing_is_no_contact(home, stand_in, monkeypatch):
    monkeypatch.setenv("DDTOP_SSH", stand_in.environment["DDTOP_SSH"])
    _, last = over(finished())
    last.unlink()

    with pytest.raises(CommandError, match="the relay of train-47 is gone and left nothing on"):
        attach_through(SshTarget("there", stand_in.says()), "train-47", 0.0, readonly=True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nosuch"], 3, ["no job named nosuch", "train-47", "train-48"]),
        (["train"], 2, ["train may mean 2 jobs", "train-47", "train-48"]),
        ([], 3, ["no live job found", "ddtop attach --ssh there train-4"]),
        (["$(touch x); 'y\n"], 3, ["no job named"]),
    ],
    ids=["unknown", "ambiguous", "none-live", "shell"],
)
def test_an_unknown_job_there_has_the_message_of_a_local_one(watched, home, words, code, said):
    over(finished())
    over(finished(), "train-48")
    found = watched("--ssh", "there", "--", *words)

    assert (found.returncode, found.stdout) == (code, "")
    assert all(text in found.stderr for text in said), found.stderr


def test_an_unreachable_host_is_reported_in_the_words_of_ssh(there):
    there.down()
    found = ddtop_process("watch", "--ssh", "there", **there.environment)

    assert (found.returncode, found.stdout) == (3, "")
    assert found.stderr.startswith("ddtop: no contact with there: ssh: connect to host ")
    assert found.stderr.endswith(": Connection refused\n")


@pytest.mark.parametrize(
    ("remote", "said"),
    [
        ("/no/such/ddtop", "/no/such/ddtop is not found on there"),
        ("yes noise | head -c 100000; true", "it answers with 64 KiB of other text"),
        ("echo hello; true", "it ended with exit code 0"),
        ("exit 9 #", "it ended with exit code 9"),
        (
            "echo \"Error: No such command 'bridge'.\" >&2; exit 2 #",
            "the ddtop on there is too old",
        ),
        (
            'echo \'ddtop-bridge {"protocol":9,"version":"7.5","host":"x"}\'; sleep 30 #',
            "ddtop '7.5', which speaks 9, this one speaks 1: install the same version on both",
        ),
        (
            'echo \'ddtop-bridge {"protocol":1,"version":"7","host":"x"}\'; '
            "echo AAAAAAAAAAAA; sleep 30 #",
            "a message of",
        ),
        ("printf '\\033[31mred' >&2; exit 1 #", "(?[31mred)"),
    ],
    ids=["not-found", "noise", "other", "exit", "old", "skew", "garbage", "escape"],
)
def test_a_program_that_is_no_bridge_is_reported_in_one_sentence(watched, remote, said):
    found = watched("--ssh", "there", "--remote", remote)

    assert (found.returncode, found.stdout) == (3, "")
    assert said in found.stderr
    assert found.stderr.count("\n") == 1, found.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ssh", "-oProxyCommand=false"], "is not the name of a host"),
        (["--ssh", ""], "is not the name of a host"),
        (["--ssh", "a\x1b[31m"], "is not the name of a host"),
        (["--ssh", "there", "--pid", "1"], "cannot be used together"),
        (["--ssh", "there", "--hub", "there:1"], "cannot be used together"),
        (["--hub", "there"], "--hub takes HOST:PORT"),
        (["--hub", "there:99999"], "--hub takes HOST:PORT"),
    ],
)
def test_a_contradictory_command_line_is_a_usage_error_and_starts_nothing(
    stand_in, attached, words, said
):
    found = attached(*words)

    assert (found.returncode, found.stdout) == (2, "")
    assert said in found.stderr
    assert stand_in.bridges == []


def test_a_missing_ssh_is_reported(attached):
    found = attached("--ssh", "there", DDTOP_SSH="/no/such/ssh -v")

    assert (found.returncode, found.stdout) == (3, "")
    assert "cannot start /no/such/ssh: No such file or directory" in found.stderr
