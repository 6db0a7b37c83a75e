"""Secrets never leave the rank, and text that is not secret stays readable."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop import redaction
from ddtop.agent.environment import redacted_argv, redacted_environment
from ddtop.follow.source_lines import read_excerpt
from ddtop.redaction import HIDDEN, redact, redacted_start
from tests import planted

PLACES = ["{}", "failed with {} at once", "x = load({})  # {}", 'error: "{}"']
"""As an exception, a log line or a line of source has it."""


def seen(core: str, shown: str) -> bool:
    """Whether the secret, or a useful part of it, can be read."""
    return core in shown or core[:10] in shown or core[-8:] in shown


def test_the_corpus_is_as_large_as_it_says():
    assert len(planted.KINDS) >= 165
    assert len(planted.SHAPED) >= 110
    assert len(planted.secrets()) >= 300
    assert len(set(planted.innocent())) >= 200


@pytest.mark.parametrize("form", planted.FORMS)
def test_a_token_is_known_wherever_it_stands(form):
    """In a path, in a URL, behind a name that is no secret's, next to other letters."""
    shown = [
        (kind, text, core, redact(planted.FORMS[form].format(text)))
        for kind, text, core in planted.shaped()
    ]

    assert [each for each in shown if seen(each[2], each[3])] == []


@pytest.mark.parametrize("form", planted.NAMED_FORMS)
def test_any_value_behind_the_name_of_a_secret_is_one(form):
    texts = [
        (value, planted.NAMED_FORMS[form].format(name=name, value=value))
        for name in planted.NAMES_OF_SECRETS
        for value in planted.values()
    ]

    assert [text for value, text in texts if seen(value, redact(text))] == []


@pytest.mark.parametrize("words", planted.SPLIT_FORMS, ids=" ".join)
def test_a_secret_whose_words_are_apart_does_not_pass_through_a_command_line(words):
    for value in planted.values():
        line = ["train.py", *(word.format(value) for word in words), "--lr", "0.1"]
        shown = redacted_argv(line)

        assert not any(seen(value, word) for word in shown)
        assert (len(shown), shown[0], shown[-2:]) == (len(line), "train.py", ("--lr", "0.1"))


@pytest.mark.parametrize("words", [12, 15, 18, 21, 24])
def test_a_recovery_phrase_whose_words_are_apart_does_not_pass_through_a_command_line(words):
    phrase = planted.KINDS[f"a phrase of {words} words"](random.Random(words))[0].split()
    shown = redacted_argv(["train.py", "--wallet", *phrase, "--lr", "0.1"])

    assert shown == ("train.py", "--wallet", *[HIDDEN] * words, "--lr", "0.1")


@pytest.mark.parametrize(
    "words",
    [
        ["--data", "a:b", "--tokenizer", "bert"],
        ["key:", "value", "layers:", "12"],
        ["lr", "=", "0.1", "model", ":", "gpt"],
        ["-H", "Accept:", "text/plain"],
        ["--user", "1000:1000", "-u", "train.py"],
        ["-----BEGIN", "TRAINING-----"],
        ["Authorization: (redacted)", "train.py", "--lr"],
        ["wait", "for", "all", "ranks", "then", "begin", "with", "the", "next", "step", "of", "it"],
    ],
    ids=" ".join,
)
def test_words_that_follow_no_announcement_stay(words):
    shown = redaction.redacted_words(words, 1000)

    assert [one for one in shown if HIDDEN in one] == [one for one in words if HIDDEN in one]


@pytest.mark.parametrize("place", PLACES)
def test_no_planted_secret_passes_through_a_text(place):
    leaked = [
        (kind, text)
        for kind, text, core in planted.secrets()
        if seen(core, redact(place.replace("{}", text)))
    ]  # fmt: skip

    assert leaked == []


def test_no_planted_secret_passes_through_a_command_line():
    """The text around the secret stays: a report without the program's options helps nobody."""
    wrong = []
    for kind, text, core in planted.secrets():
        words = text.split(" ") if text.startswith("-") and "BEGIN" not in text else [text]
        shown = redacted_argv(["python", "train.py", *words, "--lr", "0.1"])
        if any(seen(core, word) for word in shown) or (shown[:2] + shown[-2:]) != (
            "python",
            "train.py",
            "--lr",
            "0.1",
        ):
            wrong.append((kind, text, shown))

    assert wrong == []


def test_no_planted_secret_passes_through_a_variable():
    leaked = [
        kind
        for kind, text, core in planted.secrets()
        if seen(core, redacted_environment({"TORCH_X": text})["TORCH_X"])
    ]

    assert leaked == []


def test_no_planted_secret_passes_through_a_line_of_source(tmp_path):
    source = tmp_path / "train.py"
    lines = [text for _, text, _ in planted.secrets() if "\n" not in text]
    source.write_text("\n".join(f"    run({line})" for line in lines), encoding="utf-8")
    shown = [
        line
        for number in range(1, len(lines) + 1)
        for line in getattr(read_excerpt(str(source), number), "lines", ())
    ]

    assert len(shown) > len(lines)
    assert [
        core
        for _, text, core in planted.secrets()
        if "\n" not in text and seen(core, "\n".join(shown))
    ] == []


@pytest.mark.parametrize("place", PLACES[:2])
def test_what_is_no_secret_stays(place):
    changed = [(text, redact(place.replace("{}", text))) for text in planted.innocent()]

    assert [(text, shown) for text, shown in changed if shown != place.replace("{}", text)] == []


def test_what_is_no_secret_stays_on_the_command_line():
    words = [text.split(" ") for text in planted.innocent()]

    assert [one for one in words if redaction.redacted_words(one, 1000) != tuple(one)] == []


def test_a_text_that_is_cut_shows_no_half_of_a_secret():
    """A token that the first cut splits has lost its shape."""
    text = (
        "x" * 10
        + " "
        + "-----BEGIN PRIVATE KEY-----"
        + "a" * 3900
        + "-----END PRIVATE KEY----- "
        + "hf_"
        + "Ab1" * 100
    )

    shown = redacted_start(text, 500)

    assert shown == "x" * 10 + f" {HIDDEN}"


def test_a_person_may_switch_it_off_for_a_job_of_his_own():
    code = "from ddtop.redaction import redact; print(redact('--auth=abc'))"
    for value, shown in (("0", "--auth=abc"), ("1", f"--auth={HIDDEN}")):
        found = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"DDTOP_REDACT": value},
        )
        assert found.stdout.strip() == shown


def test_the_agent_gets_no_library_for_it():
    code = (
        "import sys, ddtop.redaction; print([one for one in sys.modules if one.startswith(('zmq',"
        " 'yaml', 'detect'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


def test_every_text_within_a_value_is_redacted_and_nothing_else_changes():
    token = planted.KINDS["hugging face"](random.Random(1))[0]
    value = ["Hello", 3, None, b"x", 2.5, {"a": [token, {"b": f"/data/{token}/x"}], "c": True}]

    assert redaction.redact_in(value) == [
        "Hello", 3, None, b"x", 2.5, {"a": [HIDDEN, {"b": f"/data/{HIDDEN}/x"}], "c": True},
    ]  # fmt: skip


@given(st.text() | st.text(st.sampled_from("key=:\"' \n-token/@.eyJ_-pAuth")))
def test_redacting_twice_changes_nothing_more(text):
    once = redact(text)

    assert redact(once) == once
