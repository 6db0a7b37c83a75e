"""`ddtop stacks` and `ddtop signal` against a relay. The test plays the agents."""

import json
import signal

import pytest

from ddtop import registry
from ddtop.cli import asked_stacks
from ddtop.cli.asked_stacks import Wanted
from ddtop.cli.commands.signal import parse_signal, send
from ddtop.cli.errors import CommandError
from ddtop.cli.find_job import find
from ddtop.cli.ranks import parse_ranks
from ddtop.wire.records import RankState
from tests.agents import LOAD, Answering
from tests.cli.commands import ddtop, finished, write_ended
from tests.relay.stage import DEADLINE_S, Stage
from tests.waiting import until


def stacks(name, wanted):
    return asked_stacks.stacks(find(name, asked_by="stacks"), wanted)


@pytest.fixture
def stage(home, agents_count_as_heard):
    """A relay with two ranks."""
    found = Stage(home)
    found.ranks = [found.rank(number) for number in (0, 1)]
    for number, (link, pid) in enumerate(found.ranks):
        found.says(link, RankState("running"), number, pid)
    found.heard(found.viewer(), lambda record: len(getattr(record, "processes", ())) == 2)
    until(registry.read_entries)
    yield found
    found.close()


def refused(what, *arguments):
    """(exit code, text) of a command that ends with an error."""
    with pytest.raises(CommandError) as caught:
        what(*arguments)
    return caught.value.code, str(caught.value)


def test_stacks_of_two_ranks_are_printed_merged(stage, capsys):
    (link0, pid0), (link1, pid1) = stage.ranks
    with Answering(link0, 0, pid0), Answering(link1, 1, pid1, LOAD):
        code = stacks("train", Wanted())
    lines = capsys.readouterr().out.splitlines()

    assert code == 0
    assert lines[0].startswith("2 ranks asked, 2 answered (2 by agent) ")
    # The relay's second look may already have added a line after it.
    assert lines[1][3:].startswith("1 rank [0]  train.py:88 train_step")
    assert lines[3][3:].startswith("1 rank [1]  data.py:40 load_image")


def test_only_the_wanted_ranks_are_asked(stage, capsys):
    link, pid = stage.ranks[1]
    with Answering(link, 1, pid):
        assert stacks("train", Wanted((1,), as_json=True)) == 0
    found = json.loads(capsys.readouterr().out)

    assert (found["schema"], found["job"], found["live"]) == ("ddtop.stacks/1", "train", True)
    assert [(one["ranks"], one["pids"], one["method"]) for one in found["groups"]] == [
        ([1], [pid], "agent")
    ]
    assert found["groups"][0]["frames"] == [
        {"function": "train_step", "file": "/home/ada/train.py", "line": 88, "owner": "user"}
    ]


def test_a_rank_that_is_gone_is_unanswered_and_that_is_exit_code_1(stage, capsys):
    (link, pid), (_, gone) = stage.ranks
    stage.children[1].kill()
    stage.heard(stage.viewer(), lambda record: type(record).__name__ == "Exit")
    with Answering(link, 0, pid):
        assert stacks("train", Wanted(as_json=True)) == 1

    assert json.loads(capsys.readouterr().out)["unanswered"] == [
        {"rank": 1, "pid": gone, "why": "its process is gone: SIGKILL"}
    ]


def test_the_last_stacks_are_shown_without_asking(stage, capsys):
    """What the rank does is said as of now."""
    link, pid = stage.ranks[0]
    with Answering(link, 0, pid):
        stacks("train", Wanted((0,), as_json=True))
    first = json.loads(capsys.readouterr().out)

    assert stacks("train", Wanted(last=True, as_json=True)) == 0
    last = json.loads(capsys.readouterr().out)
    assert (last["groups"], last["unanswered"]) == (first["groups"], first["unanswered"])


def test_without_any_stacks_there_is_nothing_to_show(stage, home):
    assert refused(stacks, "train", Wanted(last=True)) == (
        3,
        "ddtop: train still runs, but no stacks of it have been taken yet: "
        "leave out --last to take them now",
    )
    write_ended(finished(), "ended-1")
    code, text = refused(stacks, "ended-1", Wanted())
    assert code == 3
    assert "has ended and left no stacks" in text


def test_a_rank_that_the_job_does_not_have_is_a_usage_error(stage):
    assert refused(stacks, "train", Wanted((0, 7))) == (
        2,
        "ddtop: train has no rank 7, its ranks are 0,1",
    )
    assert refused(send, "train", "2", "TERM", True)[0] == 2


# -- signals


def test_a_signal_reaches_the_ranks_that_were_named(stage, capsys):
    assert send("train", "0", "term", True) == 0
    assert capsys.readouterr().out == f"sent SIGTERM to rank 0 (pid {stage.ranks[0][1]})\n"
    assert stage.children[0].wait(DEADLINE_S) == -signal.SIGTERM
    assert stage.children[1].poll() is None


def test_a_rank_that_is_gone_gets_no_signal_and_that_is_exit_code_3(stage, capsys):
    stage.children[0].kill()
    stage.heard(stage.viewer(), lambda record: type(record).__name__ == "Exit")

    assert send("train", "0,1", "CONT", True) == 3
    assert capsys.readouterr().out.splitlines() == [
        "rank 0: no signal was sent, its process is gone",
        f"sent SIGCONT to rank 1 (pid {stage.ranks[1][1]})",
    ]


def test_without_a_terminal_it_needs_yes(stage):
    done = ddtop("signal", "train", "--rank", "0", "KILL")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ddtop: there is no terminal to ask at: add --yes if you are sure\n"
    assert stage.children[0].poll() is None


@pytest.mark.parametrize(("answer", "ended"), [(True, True), (False, False)])
def test_at_a_terminal_it_names_the_processes_and_asks(stage, capsys, monkeypatch, answer, ended):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.confirm", lambda _: answer)

    assert send("train", "1", "KILL", False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "SIGKILL to 1 of 2 ranks of train:",
        f"  rank 1  pid {stage.ranks[1][1]}  h  train",
    ]
    assert lines[2].startswith("sent SIGKILL" if ended else "no signal was sent")
    assert (stage.children[1].wait(DEADLINE_S) if ended else stage.children[1].poll()) == (
        -9 if ended else None
    )


def test_a_job_that_has_ended_gets_no_signal(home):
    write_ended(finished(), "ended-1")

    assert refused(send, "ended-1", "0", "TERM", True)[0] == 3


# -- what people type


@pytest.mark.parametrize(
    ("text", "ranks"), [("0", (0,)), ("0,3-5", (0, 3, 4, 5)), ("3-3, 1", (1, 3)), ("2,2", (2,))]
)
def test_ranks_are_read_as_users_write_them(text, ranks):
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "x", "3-", "-1", "5-3", "1,,2", "0-9999999", "٣"])
def test_a_wrong_list_of_ranks_is_answered_with_a_right_one(text):
    code, said = refused(parse_ranks, text)

    assert code == 2
    assert "--rank 0,3-5" in said


@pytest.mark.parametrize("text", ["TERM", "SIGTERM", "sigterm", "15"])
def test_a_signal_by_name_or_number(text):
    assert parse_signal(text) is signal.SIGTERM


@pytest.mark.parametrize("text", ["", "0", "99", "SIGNOTHING", "-9", "²"])
def test_an_unknown_signal_is_a_usage_error(text):
    assert refused(parse_signal, text)[0] == 2


@pytest.mark.parametrize(
    "words", [["stacks", "--pid", "1", "job"], ["stacks", "--rank", "0", "--pid", "1"]]
)
def test_pid_and_a_job_exclude_each_other(home, words):
    done = ddtop(*words, exits=2)

    assert "--pid takes no job name" in done.stderr
