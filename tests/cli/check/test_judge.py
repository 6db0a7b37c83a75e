"""What the ranks of a trial report is judged, and each problem comes with a fix."""

import pytest

from ddtop.cli.check.trial import Trial, judge_trial
from ddtop.cli.output import BAD, GOOD
from ddtop.policy import POLICY
from tests.cli.check.trials import MIB, lines_of, node


def bad(lines, what):
    [found] = [one for one in lines if one.mark == BAD and one.what == what]
    assert found.fix
    return found.text


def test_two_nodes_alike_are_good():
    lines = lines_of(node(), node(2, "node1"))

    assert {one.mark for one in lines} - {"note"} == {GOOD}


@pytest.mark.parametrize(
    ("changes", "what", "text"),
    [
        ({"torch": "2.8.0"}, "versions", "torch differs: 2.9.0 on node0; 2.8.0 on node1"),
        ({"nccl": None}, "versions", "NCCL differs: 2.27.5 on node0; none on node1"),
        ({"driver": "nvidia 5"}, "versions", "GPU driver differs"),
        ({"offset": [4.0, 0.1]}, "clock", "the clock of node1 is 4 s behind that of node0"),
        ({"offset": [-4.0, 0.1]}, "clock", "the clock of node1 is 4 s ahead of that of node0"),
        ({"shm_bytes": 64 * MIB}, "/dev/shm", "has 64 MiB free on node1; 2 ranks may need 256"),
        ({"shm_bytes": None}, "/dev/shm", "/dev/shm is missing on node1"),
        ({"nofile": 256}, "limits", "a process may open 256 files on node1; 1,024 are needed"),
        ({"nproc": 100}, "limits", "50 more threads may start on node1; 128 are needed"),
        ({"infiniband": True}, "limits", "64 KiB may be locked on node1, which has InfiniBand"),
    ],
)
def test_what_is_wrong_on_a_node_is_named(changes, what, text):
    assert text in bad(lines_of(node(), node(2, "node1", **changes)), what)


def test_an_uncertain_clock_is_not_called_wrong():
    lines = lines_of(node(), node(2, "node1", offset=[1.5, 0.8]))

    assert [one.mark for one in lines if one.what == "clock"] == [GOOD]


def test_ranks_need_a_free_gpu_each():
    used = ((0, 70000), (1, 4))
    gpus = [{"index": at, "used_mib": mib, "total_mib": 80000} for at, mib in used]

    text = bad(lines_of(node(gpus=gpus)), "GPUs")
    assert text == "1 of 2 GPUs are free on node0, and 2 ranks start there"


def test_a_rank_whose_all_reduce_does_not_end_is_named():
    tries = [{"kind": "try", "rank": rank, "host": "n", "what": "nccl"} for rank in range(4)]
    goods = [
        {"kind": "good", "rank": rank, "host": "n", "what": "nccl", "seconds": 1}
        for rank in (0, 1, 3)
    ]

    lines = lines_of(node(), *tries, *goods)
    assert bad(lines, "all_reduce nccl") == "no answer within 30 s from rank 2"


def test_an_all_reduce_that_fails_says_what_torch_says():
    tries = [{"kind": "try", "rank": rank, "host": "n", "what": "gloo"} for rank in range(2)]
    fails = [{"kind": "fail", "rank": 1, "host": "n", "what": "gloo", "why": "Connection refused"}]

    lines = lines_of(node(), *tries, *fails, size=2)
    assert bad(lines, "all_reduce gloo") == "rank 1 on n: Connection refused"


def test_of_many_nodes_only_the_bad_ones_are_listed():
    many = [node(8 * at, f"node{at}") for at in range(31)] + [node(248, "node31", nofile=9)]

    lines = lines_of(*many, size=4, nodes=32)
    assert [one.text for one in lines if one.what == "nodes"] == [
        "31 of 32 have enough room in /dev/shm, high enough limits and free GPUs"
    ]
    assert "on node31" in bad(lines, "limits")


def test_nodes_that_do_not_come_are_missed():
    lines = judge_trial(Trial(), 2, 60.0, 30.0, POLICY)

    assert [one.text for one in lines] == ["no rank has started within 60 s"]
    assert lines[0].fix.startswith("start the same check on all 2 nodes")


def test_a_launcher_that_fails_is_quoted():
    trial = Trial(exit_code=1, last_words=("error: no such partition",))

    text = bad(judge_trial(trial, 1, 60.0, 30.0, POLICY), "meeting")
    assert text.endswith("with exit code 1 before the ranks meet: error: no such partition")
