"""Ranks without an agent that end, one after the other."""

from __future__ import annotations

from ddtop.wire.records import OutsideLook
from tests.jobs import SECOND, unix_ns

KILL, SEGV, TERM, ABRT = 9, 11, 15, 6


def computes(job, number):
    since = unix_ns(job.now) - SECOND
    job.ranks[number].says["outside"] = OutsideLook(None, None, since, True, apart_looks=3)


def go(job, *ends):
    """`(rank, seconds later, exit code or None, signal or None)`; then some time passes."""
    for number, later_s, code, number_of_signal in ends:
        job.ranks[number].ends(code, number_of_signal, later_s=later_s, exiting=False)
    job.passes(4)
