"""`ddtop attach --plain`: typed words and their answers, and changes as lines."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest

from ddtop.cli import watching
from ddtop.cli.by_words import WORDS, ByWords
from ddtop.cli.commands import attach
from ddtop.cli.output import DUMB
from ddtop.diagnosis.kinds import Kind
from ddtop.follow.look import Dump, Look
from ddtop.present.events import appeared
from tests.cli.commands import ddtop, finished, write_ended
from tests.relay.stage import DEADLINE_S
from tests.ui import builders


@pytest.fixture
def typed(monkeypatch):
    """Writes a line to standard input."""
    read, write = os.pipe()
    with os.fdopen(read) as stdin, closing(os.fdopen(write, "w")) as keys:
        monkeypatch.setattr("sys.stdin", stdin)

        def enter(line):
            keys.write(line + "\n")
            keys.flush()

        enter.ends = keys.close
        yield enter


class Source:
    """Notes which stacks were asked for."""

    def __init__(self, why=None):
        self.asked, self.why = [], why

    async def ask_stacks(self, ranks, how=""):
        self.asked.append(ranks)
        return self.why


def hangs():
    snapshot, verdict = builders.hang()
    return Look(snapshot, verdict)


async def answer(typed, capsys, line, look=None, source=None):
    """What is printed after that line, below what is printed at first."""
    words, look = ByWords(source or Source()), look or hangs()
    await words.turn(look)
    capsys.readouterr()
    typed(line)
    left = await words.turn(look)
    return capsys.readouterr().out, left


async def test_the_first_lines_say_how_the_job_is_and_what_can_be_typed(typed, capsys):
    look, words = hangs(), ByWords(Source())

    await words.turn(look)
    await words.turn(look)

    out = capsys.readouterr().out
    assert look.verdict.findings[0].summary.split(";")[0] in out
    assert out.count("status, why, ranks, stacks, explain, help, quit") == 1


@pytest.mark.parametrize("word", ["why", "w", "WHY"])
async def test_why_has_the_evidence(typed, capsys, word):
    out, left = await answer(typed, capsys, word)

    assert hangs().verdict.findings[0].evidence[0][:40] in out
    assert not left


async def test_equal_ranks_are_one_line_and_those_at_fault_come_first(typed, capsys):
    look = hangs()
    out, _ = await answer(typed, capsys, "ranks", look)
    culprit = look.verdict.findings[0].ranks

    lines = out.splitlines()
    assert lines[0].startswith(f"rank {culprit[0]}: culprit, ")
    assert len(lines) < len(look.snapshot.ranks)


async def test_a_kind_is_explained_and_without_one_the_worst(typed, capsys):
    worst, _ = await answer(typed, capsys, "explain")
    named, _ = await answer(typed, capsys, "explain straggler")
    wrong, _ = await answer(typed, capsys, "explain nothing")

    assert worst.startswith(str(hangs().verdict.findings[0].kind))
    assert named.startswith(Kind.STRAGGLER)
    assert wrong == "there is no finding named nothing\n"


async def test_a_wrong_word_is_not_a_silence(typed, capsys):
    wrong, _ = await answer(typed, capsys, "rnks")
    several, _ = await answer(typed, capsys, "s")
    listed, _ = await answer(typed, capsys, "help")

    assert wrong == "rnks is not one of the words; did you mean ranks?; type help\n"
    assert several == "s could be status or stacks; type help\n"
    assert [line.partition(":")[0] for line in listed.splitlines()] == list(WORDS)


async def test_stacks_are_printed_once_all_have_come(typed, capsys):
    look, source = hangs(), Source()
    words = ByWords(source)
    typed("stacks 0, 2")
    await words.turn(replace(look, dump=Dump("earlier", 0, 4, 4)))
    capsys.readouterr()
    asked = Dump("r1", look.snapshot.time_unix_ns, 2, 1)
    await words.turn(replace(look, dump=asked))
    before = capsys.readouterr().out
    for _ in range(2):
        await words.turn(replace(look, dump=replace(asked, answered=2)))

    assert (source.asked, before) == ([(0, 2)], "")
    assert capsys.readouterr().out.count("asked, ") == 1


@pytest.mark.parametrize(
    ("line", "why"),
    [("stacks x", "not a list of ranks"), ("stacks 999", "has no rank 999"), ("stacks", "deaf")],
)
async def test_stacks_that_cannot_be_had_say_why(typed, capsys, line, why):
    out, left = await answer(typed, capsys, line, source=Source("deaf"))

    assert why in out
    assert not left


async def test_quit_leaves_and_the_end_of_the_input_does_not(typed, capsys):
    _, left = await answer(typed, capsys, "quit")
    typed.ends()
    words = ByWords(Source())
    stays = [await words.turn(hangs()) for _ in range(2)]

    assert (left, stays) == (True, [False, False])


def test_a_finding_comes_with_what_to_do_and_without_control_characters(capsys):
    finding = replace(hangs().verdict.findings[0], advice="look at \x1b[2Jit")

    ByWords(Source()).tell(appeared(finding, 0))

    assert capsys.readouterr().out.splitlines()[1] == "to do: look at ?[2Jit"


def test_the_command_answers_what_is_typed_about_a_live_job(here):
    done = subprocess.run(
        [sys.executable, "-m", "ddtop", "attach", "--plain", "train"],
        input=b"ranks\nquit\n",
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )

    out = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    assert "type a word and Enter: status, why" in out
    assert "rank 0: " in out


@pytest.mark.parametrize(("why", "told"), [(DUMB, True), ("no terminal", False)])
def test_a_terminal_that_cannot_move_the_cursor_gets_lines(here, monkeypatch, why, told):
    watched = []
    monkeypatch.setattr(attach, "no_dashboard", lambda: why)
    monkeypatch.setattr(watching, "watch", lambda place, by_words: watched.append(by_words) or 0)
    done = ddtop("attach", "train")

    assert (done.returncode, watched) == (0, [True] if told else [])
    assert ("so here is the status table" in done.stderr) is not told


def test_of_a_job_that_has_ended_the_status_is_all_there_is_to_tell(home):
    write_ended(finished())
    done = ddtop("attach", "--plain", "train-47")

    assert done.returncode == 0
    assert "finished" in done.stdout
