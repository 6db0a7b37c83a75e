"""What is said of ranks and helpers that have ended, and of the errors of others after that."""

from __future__ import annotations

from ddtop.diagnosis import nccl
from ddtop.diagnosis.evidence import end_line
from ddtop.diagnosis.finding import Context, Finding
from ddtop.diagnosis.rules.comm_error import Failed
from ddtop.model.errors import Says, address_in, reason_in
from ddtop.model.facts import RankFacts
from ddtop.say.places import where_text
from ddtop.say.said import Said, Writer, group_text
from ddtop.words.sentences import clipped, collective_text, file_line, quoted, ranks_text, verb
from ddtop.words.units import duration

_WHY = {
    "named": ("did not join{at}", "did not join{at}"),
    "behind": ("had not joined it{at}", "had not joined it{at}"),
    "left": ("has left its process group", "have left their process group"),
    "dead": (
        "is dead or unresponsive according to NCCL",
        "are dead or unresponsive according to NCCL",
    ),
    "silent": ("has not reported for {age}", "have not reported for {age}"),
}
"""By `Failed.why`."""


def failed(finding: Finding, seen: Failed, at: Context) -> Said:
    """Whose backend reports what, and which rank is the reason."""
    ranks, text = list(map(at.snapshot.rank, finding.ranks)), seen.text
    how = "timed out" if Says.TIMEOUT.within(text) else "failed"
    what = "monitored_barrier" if "monitoredbarrier" in text.lower() else "the process group"
    if finding.group is not None:
        what = collective_text(finding.op, finding.seq, group_text(at, finding.group))
    error = clipped(("its backend reports " if seen.by_backend else "") + reason_in(text), 120)
    because = f"{error}; no rank has crashed or been killed or stopped: check the network, not the"
    because += " rank that reports the error"
    if ranks:
        age = duration(max(rank.agent.report_age_s or 0.0 for rank in ranks))
        why = verb(ranks, *_WHY[seen.why]).format(at=_at_text(ranks), age=age)
        because = f"{ranks_text(finding.ranks)} {why}"
    reporting, address = list(map(at.snapshot.rank, finding.victims)), address_in(text)
    lines = [end_line(one, at.snapshot) for one in reporting if one.reported.exception is not None]
    lines += [f"the peer's address: {address}"] if address is not None else []
    own = [f"rank {seen.first.rank}: {error}"] if seen.first.reported.exception is None else []
    host = address.rpartition(":")[0] if address is not None else "PEER"
    rows = (
        (
            any(rank.reported.phase == "leaving" for rank in ranks),
            "leave the group together: dist.barrier() before destroy_process_group() or the end of"
            " the program",
        ),
        (
            ranks and how == "timed out",
            f"find out why {ranks_text(finding.ranks)} did not join in time; if it had work to do:"
            " init_process_group(..., timeout=timedelta(hours=2))",
        ),
        (
            ranks,
            f"read the output of {ranks_text(finding.ranks)}, and check that its host is up",
        ),
        (
            True,
            f"check the links between the hosts: ip -s link; ss -tni dst {quoted(host)}; dmesg on"
            " both; check for firewalls that drop idle connections",
        ),
    )
    return Said(
        f"{what} {how} on {ranks_text(finding.victims)}: {because}",
        (
            *own,
            *lines[:8],
            *nccl.ras_lines(at.snapshot, at.policy)[:3],
        ),
        next(advice for holds, advice in rows if holds),
    )


def _at_text(ranks: list[RankFacts]) -> str:
    """In brackets: where the first of them is, or was."""
    rank, place = ranks[0], ranks[0].reported.place
    if place is None:
        return ""
    spot = where_text(rank)
    if rank.gone:
        spot = f"last seen in {place.function}, {file_line(place)}"
    return f" (rank {rank.rank} {spot})" if len(ranks) > 1 else f" ({spot})"


WRITERS: dict[type, Writer] = {Failed: failed}
