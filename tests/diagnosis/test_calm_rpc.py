"""The verdict on a program that uses torch.distributed.rpc and has no process group."""

from ddtop.policy import POLICY
from ddtop.say.calm import calm_text
from ddtop.wire.records import RpcState
from tests.ui import builders
from tests.ui.changed import replace


def said(*workers):
    snapshot = builders.healthy(len(workers))
    ranks = tuple(
        replace(rank, comm={"rpc": RpcState(f"worker{rank.rank}", rank.rank, *calls)})
        for rank, calls in zip(snapshot.ranks, workers, strict=True)
    )
    return calm_text(
        replace(snapshot, ranks=ranks, groups=(), moving=0, still_since_unix_ns=None), POLICY
    )


def test_who_waits_and_who_runs_calls_is_reported_and_nobody_is_blamed():
    assert said((1, 0), (0, 2), (0, 0)) == (
        "3 workers of torch.distributed.rpc, no process group; rank 0 waits for answers; rank 1"
        " runs calls from others; who waits for whom is not known"
    )


def test_workers_whose_calls_are_not_counted_are_still_named():
    assert said((None, None), (None, None)) == (
        "2 workers of torch.distributed.rpc, no process group; who waits for whom is not known"
    )
