"""Pages of the findings about whole hosts."""

from __future__ import annotations

from ddtop.diagnosis.explain.page import Explanation

PAGES = (
    Explanation(
        kind="host-lost",
        severity="critical; a warning while nobody waits; info while its collectives are completed",
        brief="nothing of a whole host is heard any more",
        meaning="The relay of a host and all of its ranks fell silent at once, while the hub and others are heard. The host is down or hangs, "
        "or its network is cut. Its ranks have no better state than `lost`: what they said last is old, and no other finding is made of it.",
        found=(
            "Nothing of that host has come for {host_lost_s}, on the hub's clock: a relay that died is replaced sooner. While the hub "
            "itself is not heard, no host is lost, and neither is one whose ranks had all ended.",
            "Ranks of other hosts wait for its ranks: critical. Nobody does, and others move: a warning.",
            "A collective of its ranks was completed since: they are alive, only ddtop's own connection is cut: info.",
        ),
        steps=(
            "Is it up, and can it be reached from the hub's host?\nping HOST; ssh HOST uptime",
            "What does the scheduler say of it?\nsinfo -R; scontrol show node HOST; kubectl describe node HOST",
            "It is up: look at its link, and at what it logged:\nip -s link; dmesg -T | tail -50; ibstat",
            "It is gone: the others wait until torch's timeout. End the job and start it without that host, or let torchrun do so "
            "(--nnodes=MIN:MAX --max-restarts).",
            "Only ddtop's connection is cut: look at its address and port there:\nddtop doctor",
        ),
    ),
)
