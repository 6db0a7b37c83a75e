"""What the first release wrote is read whole: journals of 46 jobs, made by that version."""

import tarfile
from collections import Counter

import msgspec

from ddtop import journal
from ddtop.wire import frames
from tools.recorded.record import JOBS

OF_EACH_KIND = 40
"""Frames of one kind in one journal; its first ones have the most different records."""


def old_frames():
    """(name of the journal, envelope, the record as the first release encoded it)."""
    with tarfile.open(JOBS) as archive:
        for member in archive:
            if not member.isfile() or not member.name.endswith(".journal"):
                continue
            _, _, after_head = archive.extractfile(member).read().partition(b"\n")
            read = Counter()
            for data in journal.parse(after_head).frames:
                envelope = frames.open_envelope(data)
                read[envelope.kind] += 1
                if read[envelope.kind] <= OF_EACH_KIND:
                    yield member.name, envelope, msgspec.msgpack.decode(envelope.record)


def is_kept(before, now):
    """Whether all that was said is still said; a later version may say more at the end of a
    record.
    """
    if isinstance(before, list) and isinstance(now, list):
        return len(before) <= len(now) and all(map(is_kept, before, now))
    if isinstance(before, dict) and isinstance(now, dict):
        return all(key in now and is_kept(value, now[key]) for key, value in before.items())
    return before == now


def test_every_record_of_the_first_release_is_read_and_nothing_in_it_is_lost():
    kinds, lost = Counter(), []
    for name, envelope, before in old_frames():
        kinds[envelope.kind] += 1
        record = frames.open_record(envelope)
        now = msgspec.msgpack.decode(msgspec.msgpack.encode(record))
        if not is_kept(before, now):
            lost.append((name, envelope.kind, before, now))

    assert lost[:1] == []
    assert {"Hello", "Groups", "RankState", "HostState", "Stacks", "Arrivals", "Exit"} <= set(
        kinds
    ), kinds
    assert sum(kinds.values()) > 5000
