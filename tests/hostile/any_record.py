"""Any record of the wire, between those of a job."""

import json

import msgspec

from ddtop.diagnosis.judge import Judge
from ddtop.follow.history import empty_memory
from ddtop.follow.look import Look
from ddtop.model.job import Job
from ddtop.policy import POLICY
from ddtop.present import documents
from ddtop.present.events import EventLog, rows_of
from ddtop.present.findings import event_row, events_table
from ddtop.present.hosts import host_row, hosts_facts, hosts_table, names_of
from ddtop.present.map import codes_of, hosts_of_ranks
from ddtop.present.plain import diagnose_text, status_text
from ddtop.present.rank import detail_lines
from ddtop.present.text import plain
from ddtop.say.told import look
from ddtop.wire import frames
from ddtop.wire.records import Hello
from tests.jobs import FakeJob
from tests.wire.strategies import RECORDS, struct_of

SECOND = 1_000_000_000


ANY = {cls: struct_of(cls) for cls in RECORDS}


def of_job():
    """The frames of a job of two hosts, in which a rank hangs."""
    job = FakeJob(4, hosts=2).trains(3)
    job.others_wait(2)
    job.passes(8)
    return [(envelope, record) for envelope, record in job.in_order()], int(
        job.in_order()[-1][0].unix_ns
    )


VALID, LAST = of_job()


def bears(found):
    """Take in these records and look at them in every way. All text that is drawn is printable."""
    job, judge, timeline = Job("train", POLICY), Judge(POLICY), EventLog(POLICY)
    for at, (envelope, record) in enumerate(found):
        job.apply(envelope, record)
        if at in (len(found) // 2, len(found) - 1):
            snapshot = job.snapshot(LAST + SECOND * at)
            verdict = look(judge, snapshot)[1]
            timeline.take(Look(snapshot, verdict))
    lines = [
        *status_text(snapshot, verdict, 100).split("\n"),
        *diagnose_text(snapshot, verdict, 100).split("\n"),
    ]
    codes = codes_of(snapshot, ())
    hosts = hosts_facts(snapshot, hosts_of_ranks(names_of(snapshot.ranks)), codes, POLICY)
    table = hosts_table(160, hosts)
    lines += [plain(host_row(host, codes, 0.1, table)) for host in hosts]
    lines += [
        plain(event_row(row, snapshot.time_unix_ns, events_table(120)))
        for row in rows_of(timeline.events)
    ]
    for rank in range(min(4, snapshot.world_size)):
        lines += [plain(line) for line in detail_lines(snapshot, rank, empty_memory(), 100)]
    json.dumps(documents.status_json(snapshot))
    json.dumps(documents.diagnose_json(snapshot, verdict))
    assert all(line.isprintable() for line in lines), [
        line for line in lines if not line.isprintable()
    ]


def sealed(record, rank, pid, sender, unix_ns):
    """Send it through the wire, as in a real job. None if it could not have come that way."""
    if isinstance(record, Hello):
        # A world of 131,072 is allowed, but drawing it takes seconds, so it is not tried here. A
        # larger one is refused.
        small = {
            name: value % 64
            for name in ("rank", "world_size")
            if 64 <= (value := getattr(record, name) or 0) <= 1 << 20
        }
        record = msgspec.structs.replace(record, **small)
    try:
        data = frames.seal(
            record, sender=sender, unix_ns=unix_ns, mono_ns=unix_ns, rank=rank, pid=pid
        )
        envelope = frames.open_envelope(data)
        return envelope, frames.open_record(envelope)
    except (frames.WireError, UnicodeEncodeError, OverflowError):
        return None
