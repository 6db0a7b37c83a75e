"""A command line of torchrun is read as torchrun reads it."""

import pytest

from ddtop.cli.check.trial import FLAGS, WITH_VALUE, NotUnderstoodError, read


def test_options_are_read_in_all_their_forms():
    words = "torchrun --nnodes=2 --nproc_per_node 4 --rdzv-back c10d --rdzv_endpoint n0:29400 -t3"
    line = read([*words.split(), "train.py", "--nnodes", "9"], {})

    assert (line.nodes, line.backend, line.endpoint) == (2, "c10d", ("n0", 29400))
    assert line.program == "train.py"


def test_the_trial_keeps_the_launcher_and_drops_what_is_about_the_program():
    launcher = "srun -N 2 python -m torch.distributed.run"
    words = f"{launcher} --nnodes 2 --tee 3 --node-rank=1 -m pkg.train x"
    line = read(words.split(), {})

    assert line.has_other_launcher
    assert line.is_module
    assert line.node_rank == 1
    kept = ("--nnodes", "2", "--node-rank=1", "--max-restarts", "0", "own.py")
    assert line.trial("own.py") == [*launcher.split(), *kept]


@pytest.mark.parametrize(
    ("words", "endpoint"),
    [
        ("torchrun t.py", None),
        ("torchrun --standalone --rdzv-endpoint n0:1 t.py", None),
        ("torchrun --rdzv-backend c10d --rdzv-endpoint localhost:0 t.py", None),
        ("torchrun --nnodes 2 --master-addr n0 t.py", ("n0", 29500)),
        ("torchrun --master-port 5000 t.py", ("127.0.0.1", 5000)),
        ("torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint n0 t.py", ("n0", 29400)),
        ("torchrun --rdzv-backend c10d --rdzv-endpoint [fe80::1]:7 t.py", ("fe80::1", 7)),
    ],
)
def test_the_endpoint_is_the_one_that_torchrun_takes(words, endpoint):
    assert read(words.split(), {}).endpoint == endpoint


def test_what_is_not_given_comes_from_the_variables_of_torchrun():
    line = read(["torchrun", "t.py"], {"PET_NNODES": "2:4", "PET_NPROC_PER_NODE": "gpu"})

    assert line.nodes == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("python train.py", "there is no torchrun in 'python train.py'"),
        ("torchrun", "has no program to run"),
        ("torchrun --nnodes", "--nnodes of torchrun needs a value"),
        ("torchrun --nodes 2 t.py", "--nodes is not an option of torchrun"),
        ("torchrun --nnodes two t.py", "--nnodes 'two' is not a number from 1 on"),
        ("torchrun --nnodes 4:2 t.py", "more nodes than it allows"),
        ("torchrun --nproc-per-node 0 t.py", "is not a number from 1 on"),
        ("torchrun --rdzv-endpoint n0:99999 t.py", "99999 is not a port"),
        ("torchrun --nnodes 2 --rdzv-backend c10d t.py", "needs --rdzv-endpoint HOST:PORT"),
    ],
)
def test_a_wrong_command_line_gets_one_sentence(words, why):
    with pytest.raises(NotUnderstoodError, match=why) as caught:
        read(words.split(), {})

    assert "\n" not in str(caught.value)


def test_every_option_of_the_torchrun_here_is_known():
    parser = pytest.importorskip("torch.distributed.run").get_args_parser()
    there = {
        (one.option_strings[-1].replace("_", "-"), one.nargs == 0)
        for one in parser._actions
        if one.option_strings and one.dest != "help"
    }

    known = {(name, False) for name in WITH_VALUE} | {(name, True) for name in FLAGS}
    assert there <= known
