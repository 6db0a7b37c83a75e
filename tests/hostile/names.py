"""Names that would move the cursor of a terminal."""

import time

import msgspec

from ddtop import registry

BAD = "a\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202eb\x00"


def entry(job="train", **more):
    now = time.time_ns()
    found = registry.JobEntry(
        registry.SCHEMA,
        job,
        "r1",
        "host",
        "0" * 12,
        1,
        1,
        "127.0.0.1",
        1,
        "/s",
        "script",
        4,
        4,
        now,
        now,
    )
    return msgspec.structs.replace(found, **more)


def calm(text):
    return all(line.isprintable() for line in text.split("\n"))
