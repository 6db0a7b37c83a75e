"""mpirun over two hosts: a launch agent starts its daemon on the other host by `ip netns exec`, as
ssh would.
"""

import sys

import pytest

from tests import netns

pytest.importorskip("mpi4py")
from tests.end_to_end.mpi_programs import ANY_HOST, MPIRUN, PROGRAM

pytestmark = pytest.mark.skipif(MPIRUN is None, reason="mpirun is not here")
if why := netns.unable():
    pytest.skip(why, allow_module_level=True)


def test_the_rank_of_another_host_that_misses_a_collective_is_named(tmp_path):
    net = netns.Net(tmp_path / "net", ("node0", "node1", "login"))
    view = net["login"]
    try:
        # Both hosts are this machine. What killed ranks leave is removed together with the network.
        left = net["node0"].environment["TMPDIR"]
        environment = ANY_HOST | {
            "PRTE_MCA_plm_ssh_agent": net.agent,
            "OMPI_MCA_btl_sm_backing_directory": left,
        }
        spread = ["-H", "node0,node1", "--map-by", "ppr:1:node:oversubscribe", "-x", "DDTOP"]
        program = [sys.executable, str(PROGRAM), "reduce_on_new"]
        net["node0"].start_command([str(MPIRUN), *spread, *program], **environment)

        finding = view.finding("not-in-collective")

        assert (finding["ranks"], finding["victims"], finding["op"]) == ([1], [0], "allreduce")
        assert "reduce_on_new (simulating.py:" in finding["summary"]
        assert [(row["rank"], row["host"]) for row in view.status()] == [(0, "node0"), (1, "node1")]
    finally:
        net.close()
