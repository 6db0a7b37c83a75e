"""Hydra's proxies show which mpiexec started them."""

import pytest

from ddtop import launch
from tests.launch.environments import HYDRA

UPSTREAM = ["--upstream-host", "node0", "--upstream-port", "34921", "--tree-width", "16"]


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["--control-port", "node0:4711", "--rmk", "user"], ("hydra-node0:4711", "4711", False)),
        ([*UPSTREAM, "--tree-level", "1"], ("hydra-node0:34921", "34921", False)),
        ([*UPSTREAM, "--tree-level", "2"], None),
        (["--control-port"], None),
        ([], None),
    ],
)
def test_the_port_of_mpiexec_names_the_start(words, start):
    """Below the first level of its tree, proxies of Intel MPI are started by another proxy, not by
    mpiexec.
    """
    above = [["sh", "-c", "true"], ["hydra_pmi_proxy", *words]]

    assert launch.find_start(HYDRA, lambda: iter(above)) == start


def test_the_processes_above_are_not_read_for_other_launchers():
    """It costs reads of /proc in each rank."""

    def ancestors():
        raise AssertionError

    assert launch.find_start({"OMPI_COMM_WORLD_RANK": "1"}, ancestors) is None
