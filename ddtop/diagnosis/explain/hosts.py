"""Pages of the findings about whole hosts."""

from __future__ import annotations

from ddtop.diagnosis.explain.page import Explanation
from ddtop.diagnosis.kinds import Kind

PAGES = (
    Explanation(
        kind=Kind.HOST_LOST,
        severity="critical; a warning while nobody waits; info while its collectives are completed",
        brief="nothing has been received from a whole host",
        meaning=(
            "The relay of a host and all of its ranks stopped reporting at once, while the hub and"
            " others report. The host is down or hangs, or its network is cut. Its ranks are"
            " `lost`: their last reports are old, and no other finding uses them."
        ),
        found=(
            (
                "Nothing has arrived from that host for {host_lost_s}, on the hub's clock; a relay"
                " that died would have been replaced by then. While the hub itself does not report,"
                " no host is lost. A host whose ranks had all ended is not lost."
            ),
            (
                "Critical if ranks of other hosts wait for its ranks. A warning if nobody waits and"
                " others make progress."
            ),
            (
                "Info if a collective of its ranks has completed since: they are alive, and only "
                "ddtop's own connection is cut."
            ),
        ),
        steps=(
            "Is it up, and can it be reached from the hub's host?\nping HOST; ssh HOST uptime",
            (
                "What does the scheduler say about it?\nsinfo -R; scontrol show node HOST; kubectl"
                " describe node HOST"
            ),
            (
                "If it is up, look at its network link and its log:\nip -s link; dmesg -T | tail"
                " -50; ibstat"
            ),
            (
                "If it is down, the others wait until torch's timeout. End the job and start it"
                " without that host, or let torchrun do so (--nnodes=MIN:MAX --max-restarts)."
            ),
            (
                "If only ddtop's connection is cut, check its address and port on that host:\nddtop"
                " doctor"
            ),
        ),
    ),
)
