"""Open MPI names each start by its namespace."""

import pytest

from ddtop import launch
from tests.launch.environments import OPEN_MPI


@pytest.mark.parametrize(
    ("namespace", "label"),
    [
        ("prterun-node0-4711@1", "4711"),
        ("prterun-gpu-node-7-4711@12", "4711"),
        ("1234567@1", "1234567@1"),
        ("3", "3"),
        ("a-b@c", "a-b@c"),
    ],
)
def test_the_label_is_the_pid_of_mpirun_where_it_is_reported(namespace, label):
    start = launch.find_start(OPEN_MPI | {"PMIX_NAMESPACE": namespace}, list)

    assert start == (f"pmix-{namespace}", label, False)
