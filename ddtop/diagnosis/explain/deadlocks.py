"""Pages of the findings about ranks that wait for each other, and for nobody else."""

from __future__ import annotations

from ddtop.diagnosis.explain.page import Explanation
from ddtop.diagnosis.kinds import Kind

PAGES = (
    Explanation(
        kind=Kind.WAIT_CYCLE,
        severity="critical",
        brief="ranks wait for each other in a cycle",
        meaning=(
            "Each rank of the cycle waits for the next one, and the last for the first. None of"
            " them can continue, whatever other ranks do. No single rank is at fault; the order of"
            " the calls is wrong. The same order may have worked before, with other timing or"
            " smaller messages."
        ),
        found=(
            (
                "Waits in collectives (by number and group) and in send and recv (by peer and tag)"
                " form one graph. A set of ranks that wait for each other and for nobody outside is"
                " a cycle."
            ),
            "The last wait that closed the cycle has lasted for {still_limit_s}.",
            (
                "MPI: for a Waitall, every request counts that the other side has not begun. A"
                " receive from any source counts once all possible senders are waiting too."
            ),
            "If calls in the cycle can never match, the finding is unmatched-p2p instead.",
        ),
        steps=(
            (
                "The evidence has one line per rank: its call, the rank that it waits for, and the"
                " source line."
            ),
            (
                "Neighbours that all send first: let every second one receive first, or start all"
                " calls together, as below (Sendrecv in MPI). Small messages hide this error,"
                " because they are sent before anybody receives them."
            ),
            (
                "Two groups: use them in the same order on all ranks, also if one of them is used"
                " in backward or by a thread."
            ),
        ),
        before=(
            "dist.send(mine, right)        # all ranks send, nobody receives",
            "dist.recv(theirs, left)",
        ),
        after=(
            "sends = dist.P2POp(dist.isend, mine, right)",
            "receives = dist.P2POp(dist.irecv, theirs, left)",
            "for work in dist.batch_isend_irecv([sends, receives]):",
            "    work.wait()",
        ),
    ),
    Explanation(
        kind=Kind.UNMATCHED_P2P,
        severity="critical",
        brief="a send or recv for which the peer has no matching call",
        meaning=(
            "A rank is in send or recv, and its peer does something that cannot match: the peer is"
            " in a collective that needs this rank, or both are in send and recv with each other"
            " and the tags differ. Neither can continue."
        ),
        found=(
            (
                "ddtop wraps send and recv and records peer and tag before each call. ddtop"
                " compares them with the peer's own open call and its collectives."
            ),
            (
                "The ranks wait for each other and for nobody outside, for {still_limit_s}. If the"
                " peer only does something else, the finding is not-in-collective, because the peer"
                " may still join."
            ),
            (
                "MPI: the evidence counts, for each tag, the sends and receives between the two"
                " that each has begun."
            ),
        ),
        steps=(
            "The sentence names both calls with peer, tag and source line: make them match.",
            (
                "One is in a collective: look for the branch that only one of the two takes, or for"
                " an extra message on one side."
            ),
            (
                "A pipeline: both stages must use the same number of micro-batches, also in the"
                " last, shorter batch."
            ),
            "Define tags once, as constants, instead of computing them on both sides.",
        ),
        before=(
            "if rank == 0:",
            "    dist.send(x, dst=1, tag=step)",
            "else:",
            "    dist.recv(x, src=0, tag=step + 1)    # another message",
        ),
        after=(
            "if rank == 0:",
            "    dist.send(x, dst=1, tag=step)",
            "else:",
            "    dist.recv(x, src=0, tag=step)",
        ),
    ),
)
