"""Names that would move the cursor of a terminal."""

from tests.entries import fresh

BAD = "a\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202eb\x00"


def entry(job="train", **more):
    return fresh(
        job, 0.0, **({"host": "host", "relay_pid": 1, "port": 1, "script": "script"} | more)
    )


def calm(text):
    return all(line.isprintable() for line in text.split("\n"))
