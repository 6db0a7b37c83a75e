"""When the tasks of an srun step are the ranks."""

import pytest

from ddtop import launch
from ddtop.launch.launchers import step_numbers_ranks
from tests.launch.environments import (
    COPIED,
    DEEPSPEED,
    INTERACTIVE,
    SBATCH,
    STEP,
    STEP_OF_TORCHRUNS,
    STEP_ON_ONE_NODE,
    TORCHRUN,
)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (STEP, True),
        (STEP | COPIED, True),
        (STEP | {"RANK": "0"}, False),
        (STEP_OF_TORCHRUNS | TORCHRUN, False),
        (STEP_OF_TORCHRUNS | DEEPSPEED, False),
        (STEP_ON_ONE_NODE | COPIED | {"SLURM_STEP_NUM_TASKS": "8"}, False),
        (SBATCH, False),
        ({}, False),
    ],
)
def test_a_task_is_a_rank_where_nothing_else_numbered_it_or_a_script_copied_it(environ, expected):
    assert step_numbers_ranks(environ) is expected


@pytest.mark.parametrize(
    ("environ", "restarts"),
    [
        (STEP, 0),
        (STEP | {"SLURM_RESTART_COUNT": "2"}, 2),
        (STEP_OF_TORCHRUNS | DEEPSPEED | {"SLURM_RESTART_COUNT": "2"}, 0),
        (STEP | TORCHRUN | {"SLURM_RESTART_COUNT": "2", "TORCHELASTIC_RESTART_COUNT": "1"}, 1),
    ],
)
def test_a_job_that_was_requeued_counts_its_lives_where_its_tasks_are_the_ranks(environ, restarts):
    """Below a launcher each life is a separate run, which begins with attempt 0."""
    assert launch.restarts(environ) == restarts


@pytest.mark.parametrize(
    ("environ", "world_size", "nodes"),
    [
        (STEP, 8, 2),
        (STEP | {"RANK": "0"}, 8, 2),
        (STEP | {"RANK": "0"}, 16, None),
        (SBATCH, 2, None),
    ],
)
def test_nodes_of_the_world_are_those_of_a_step_with_as_many_tasks(environ, world_size, nodes):
    assert launch.nodes_of_world(environ, world_size) == nodes


@pytest.mark.parametrize(
    ("environ", "rank", "nodes"),
    [
        (STEP, 5, 2),
        (STEP, 4, None),
        (STEP_ON_ONE_NODE, 5, 1),
        ({"SLURM_PROCID": "0", "SLURM_NNODES": "3"}, 0, 3),
        ({"SLURM_PROCID": "0"}, 0, None),
        ({}, None, None),
    ],
)
def test_nodes_of_a_rank_are_those_of_its_own_step(environ, rank, nodes):
    assert launch.nodes_of_rank(environ, rank) == nodes


@pytest.mark.parametrize(
    ("environ", "name"),
    [(STEP_OF_TORCHRUNS, "77.0"), (STEP_ON_ONE_NODE, None), (INTERACTIVE, None), (SBATCH, None)],
)
def test_a_step_on_several_nodes_has_a_name_whatever_its_tasks_run(environ, name):
    assert launch.start_across_nodes(environ) == name
