"""`comm-error`: the backend has failed under ranks, and no rank has crashed, been killed or been
stopped.

A rank that reports such an error is never blamed for it. The peer is named if there is evidence:
the text of the error, the ranks that had not joined the collective that timed out, a rank that has
left its process group, one that no longer reports.
"""

from __future__ import annotations

CLOSED = (
    "[/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:41233. This is"
    " typically caused by a remote worker crashing."
)


def fails(job, *numbers, text=CLOSED, kind="RuntimeError", leaves=True):
    for number in numbers:
        job.ranks[number].raises(kind, text)
        if leaves:
            job.ranks[number].ends(1, later_s=0.2)
