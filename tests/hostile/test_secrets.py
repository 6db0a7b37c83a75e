"""Secrets that a job has in its texts: none leaves its rank, and no text takes long to look at."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

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
