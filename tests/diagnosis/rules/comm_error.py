"""Jobs in which the backend fails, and the errors that ranks report then."""

TIMED_OUT = (
    "[/src/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 8000ms for recv operation to"
    " complete"
)

BARRIER = "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 3000 ms Original exception: ..."
CLOSED = (
    "[/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:41233. This is"
    " typically caused by a remote worker crashing."
)


def fails(job, *numbers, text=CLOSED, kind="RuntimeError", leaves=True):
    for number in numbers:
        job.ranks[number].raises(kind, text)
        if leaves:
            job.ranks[number].ends(1, later_s=0.2)
