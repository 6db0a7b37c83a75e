"""What torchrun's variables mean: its run id, its restarts, and where its nodes meet."""

import pytest

from ddtop import launch
from ddtop.launch.launchers import is_elastic
from tests.launch.environments import DEEPSPEED, TORCHRUN


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ("", None),
        ("none", None),
        ("2c1d7a0e-9c4b-4f0e-8a57-0a3f7c1f6b11", None),
        ("llama-7b", "llama-7b"),
        ("1234", "1234"),
    ],
)
def test_only_a_run_id_that_a_person_chose_names_the_job(value, chosen):
    """torchrun --standalone makes up a UUID, which no person types into `ddtop attach`."""
    assert launch.chosen_name({"TORCHELASTIC_RUN_ID": value}) == chosen


@pytest.mark.parametrize(
    ("environ", "restarts"), [(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "2"}, 2), (DEEPSPEED, 0)]
)
def test_restarts_are_those_that_torchruns_agent_counts(environ, restarts):
    assert launch.restarts(environ) == restarts


def test_only_ranks_of_torchruns_agent_are_elastic():
    assert is_elastic(TORCHRUN)
    assert not is_elastic(DEEPSPEED)


@pytest.mark.parametrize(
    ("words", "environ", "expected"),
    [
        (
            ["--nnodes", "2", "--rdzv-endpoint", "node0:29400", "--rdzv_backend=c10d"],
            {},
            ("node0:29400", 2),
        ),
        (["--nnodes=1:4", "--rdzv_endpoint=node0"], {}, ("node0", 4)),
        (["--nnodes=2", "--master-addr", "node0", "--master-port=1234"], {}, ("node0:1234", 2)),
        (["--nnodes=2", "--master_addr=node0"], {}, ("node0:29500", 2)),
        (["--nproc-per-node", "4"], {}, (None, 1)),
        (
            ["--standalone", "--nproc-per-node", "4"],
            {"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "a:1"},
            ("a:1", 1),
        ),
        ([], {"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "a:1"}, ("a:1", 2)),
        (
            ["--nnodes", "3"],
            {"PET_NNODES": "2", "PET_MASTER_ADDR": "a", "PET_MASTER_PORT": "5"},
            ("a:5", 3),
        ),
        (["--nnodes", "lots"], {}, (None, 1)),
    ],
)
def test_where_the_nodes_meet_is_read_from_torchruns_own_command_line(words, environ, expected):
    """A shell script may be below it: the nearest launcher above the rank counts."""
    torchrun = ["/env/bin/python", "/env/bin/torchrun", *words, "train.py", "--nnodes", "99"]
    above = [
        ["sh", "run.sh"],
        torchrun,
        ["python", "-m", "torch.distributed.run", "--nnodes", "7", "x.py"],
    ]

    assert launch.node_options(environ, lambda: iter(above))[:2] == expected


@pytest.mark.parametrize(
    ("words", "least"),
    [
        (["--nnodes", "3"], 3),
        (["--nnodes=2:4"], 2),
        ([], 1),
        (["--nnodes", "2", "--standalone"], 1),
    ],
)
def test_the_least_number_of_nodes_is_the_first_of_a_range(words, least):
    above = ["python", "/opt/bin/torchrun", *words, "x.py"]

    assert launch.node_options({}, lambda: iter([above])).nodes_min == least
