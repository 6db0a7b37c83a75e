"""Secrets that a job has in its texts: none leaves its rank, and no text takes long to look at."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from ddtop import registry
from ddtop.agent.probes import groups
from ddtop.redaction import redact
from tests import planted

BYTES, TIMES_LONGER = 4 << 10, 16
GROWTH_MAX = 4 * TIMES_LONGER
"""Time that grew with the square of the length would be four times this."""
TEXTS = {
    "log lines": "12:00:01 step=1200 loss: 2.34 lr=1e-4 [rank 3] data from /data/x.bin\n",
    "assignments": "a=b ",
    "secrets": "token=abcdef123 ",
    "quotes": '"',
    "backslashes": "\\",
    "escaped quotes": 'token="' + "\\'" * 3000,
    "json in json": '\\\\\\"token\\\\\\": \\\\\\"x\\\\\\"',
    "begins of keys": "-----BEGIN PRIVATE KEY",
    "netrc": "machine a login b account c passwor ",
    "names and passwords": "-u a:b ",
    "random": "aB3/x+",
    "begins of tokens": "hf_ ghs_1_ eyJ. sk-proj- dp.pt. v1.0- A3-ABCDEF- pat. 8Q~ tskey-a- ",
    "begins of tokens, glued": "eyJ-hf_-sk_live_-glpat-ya29.-SG.-",
    "parts of a token": "eyJaaaaaaaa.",
    "dots": "eyJaaaaaaaa" + "." * 3000,
    "lists of hosts": "M" + "a1" * 12 + ".abcdef.",
    "digits": "123456789012345",
    "hexadecimal": "0123456789abcdef" * 3 + "-us",
    "words of a phrase": "zoo wolf yard then abandon ",
    "words of no phrase": "the and for with ",
    "a phrase that is too short": "zoo wolf yard abandon able acid apple apron arena atom aunt X ",
    "escapes": "\\n%3D\x1b[0m",
    "bars and signs": "1|~:AA@.atlasv1.",
    "urls": "https://a:b",
    "keys": "key",
    "assigned tokens": "token=",
    "letters": "a" * 61,
    "colons and bars": "://",
    "options": "--key ",
    "parts of a web token": "eyJ-.",
    "fields": "key: ",
    "dashes": "-----BEGIN ",
}


def _cpu_s(text: str) -> float:
    """CPU seconds of one call, the least of three."""
    took = []
    for _ in range(3):
        began = time.process_time()
        redact(text)
        took.append(time.process_time() - began)
    return min(took)


@pytest.mark.parametrize("name", TEXTS)
def test_the_time_to_redact_any_text_grows_with_its_length_and_not_with_the_square(name):
    text = TEXTS[name] * (BYTES * TIMES_LONGER // len(TEXTS[name]))

    assert _cpu_s(text) < GROWTH_MAX * _cpu_s(text[:BYTES])


class _Group:
    """A process group of torch, as far as it is asked."""

    def __init__(self, description: str) -> None:
        self.group_desc = description


def test_the_description_of_a_group_has_no_secret():
    """It was sent, recorded and shown as the program gave it."""
    world = SimpleNamespace(pg_group_ranks={}, pg_map={}, default_pg=None)
    for kind, text, core in planted.secrets():
        found = groups.describe(world, "3", _Group(f"ring: {text}"))

        assert core[-8:] not in found.description, kind
        assert found.description.startswith("ring: ")


def test_the_description_of_a_group_without_a_secret_is_unchanged():
    world = SimpleNamespace(pg_group_ranks={}, pg_map={}, default_pg=None)
    for text in ("mesh_tp", "WeightSync", "trainer and rollout, round 3"):
        assert groups.describe(world, "3", _Group(text)).description == text


PROGRAM = """
import os, sys, threading

def work_TOKEN():
    os.makedirs("TOKEN", exist_ok=True)
    with open("TOKEN/step.pt", "w") as file:
        file.write("x")
        file.flush()
        print("ready", flush=True)
        sys.stdin.readline()
    raise RuntimeError("no access with TOKEN")

thread = threading.Thread(target=work_TOKEN, name="thread-TOKEN")
threading.Thread(target=threading.Event().wait, name="idle-TOKEN", daemon=True).start()
work_TOKEN()
"""
DEADLINE_S = 60.0


def _ddtop(*words: str) -> str:
    """What a command prints, on both streams."""
    done = subprocess.run(
        [sys.executable, "-m", "ddtop", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    return done.stdout + done.stderr


def _job_with_stacks(said: list[str]) -> str:
    """The name of the only job, as soon as it answers with the stacks of its program."""
    end = time.monotonic() + DEADLINE_S
    while not said or "work_(redacted)" not in said[-1]:
        assert time.monotonic() < end, said
        said.extend(_ddtop("stacks", entry.job, "--json") for entry in registry.read_entries())
    return registry.read_entries()[0].job


@pytest.mark.job
@pytest.mark.usefixtures("hook_is_installed")
def test_no_text_of_a_job_shows_a_secret_on_any_way(home, tmp_path):
    """Its file, its folder, a function, a thread, where it saves, what it raises, its command line:
    none is in an answer, in the report, or in any file of ddtop.
    """
    token, core = planted.KINDS["hugging face"](random.Random(60))
    script = tmp_path / f"run_{token}" / f"train_{token}.py"
    script.parent.mkdir()
    script.write_text(PROGRAM.replace("TOKEN", token))
    rank = subprocess.Popen(
        [sys.executable, str(script), "-H", "Authorization:", "Bearer", token],
        cwd=script.parent,
        env=os.environ | {"DDTOP": "1", "DDTOP_LINGER_S": "1", "RANK": "0", "WORLD_SIZE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = []
    try:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
        job = _job_with_stacks(said)
        said += [
            _ddtop("status", job, "--json"),
            _ddtop("diagnose", job, "--json"),
            _ddtop("report", job, "-o", "-"),
            _ddtop("status"),
        ]
    finally:
        _, stderr = rank.communicate("\n", timeout=DEADLINE_S)
    # The job prints its own traceback.
    said += [line for line in stderr.splitlines() if line.startswith("ddtop")]
    said.append(_ddtop("diagnose", job, "--json"))
    files = [path for folder in (home.state, home.runtime) for path in folder.rglob("*")]
    kept = {path.name: path.read_bytes() for path in files if path.is_file()}

    assert sum(map(len, kept.values())) > 2000, "there is no recording"
    assert [text for text in said if core in text] == []
    assert [name for name, data in kept.items() if core.encode() in data or core in name] == []
