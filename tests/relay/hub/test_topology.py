"""Which environments mean several hosts, which relay is the hub, and where it is looked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.relay.hub.topology import (
    GRACE_S,
    PORT_FIRST,
    PORT_SPAN,
    PORTS,
    derived_ports,
    hub_wanted,
    is_here,
    topology_of,
)
from ddtop.wire.records import Hello

HERE = frozenset(("node0", "10.0.0.1"))
MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def hello(rank, world=4, attempt=0, **environment):
    return Hello(
        "train", "r1", attempt, rank, None, world, "node0", 100 + rank, 1, environment=environment
    )


def where(*hellos, waited_s=0.0, relay=None, here=HERE):
    return topology_of("train", hellos, relay or {}, here, waited_s)


@pytest.mark.parametrize(
    ("environment", "spans"),
    [
        ({"LOCAL_WORLD_SIZE": "4"}, False),
        ({"LOCAL_WORLD_SIZE": "2"}, True),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, True),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, False),
        ({"MPI_LOCALNRANKS": "1"}, True),
        ({"MPI_LOCALNRANKS": "4"}, False),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_NODES": "2"}, True),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_NNODES": "2"}, False),
        ({"SLURM_PROCID": "0", "SLURM_NNODES": "2"}, True),
        ({"SLURM_NNODES": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}, False),
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NNODES": "2"}, False),
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}, False),
        ({"MASTER_ADDR": "0.0.0.0", "MASTER_PORT": "29500"}, False),
        ({"MASTER_ADDR": "ip6-localhost", "MASTER_PORT": "29500"}, False),
        ({"LOCAL_WORLD_SIZE": "4", "DDTOP_HUB": "login:7000"}, True),
        ({}, None),
    ],
)
def test_the_launcher_says_whether_there_are_other_hosts(environment, spans):
    assert where(hello(0, **environment)).spans is spans


def test_a_plain_rank_whose_master_is_elsewhere_is_on_another_host_at_once():
    found = where(hello(1, MASTER_ADDR="10.0.0.9", MASTER_PORT="29500"))

    assert (found.spans, found.is_hub, found.hosts) == (True, False, ("10.0.0.9",))


@pytest.mark.parametrize("rank", [0, 1])
def test_plain_ranks_beside_their_master_wait_for_the_others_before_they_look_elsewhere(rank):
    """Four ranks, started by hand in four panes, are not a job of several hosts."""
    soon, late = (where(hello(rank, **MASTER), waited_s=seconds) for seconds in (0.0, GRACE_S))
    whole = where(*(hello(number, **MASTER) for number in range(4)), waited_s=60.0)

    assert (soon.spans, late.spans, whole.spans) == (None, True, False)


def test_rank_0_makes_the_hub():
    assert where(hello(0, **MASTER), hello(1, **MASTER)).is_hub
    assert not where(hello(2, **MASTER), hello(1, **MASTER)).is_hub


def test_the_newest_attempt_counts():
    """torchrun chooses another port, and may choose another number of ranks, at each restart."""
    old, new = hello(0, 8, 0, **MASTER), hello(0, 4, 1, MASTER_ADDR="10.0.0.1", MASTER_PORT="29777")

    assert where(old, new).master == "10.0.0.1:29777"


def test_what_a_hello_leaves_out_is_read_from_the_relays_own_environment():
    found = where(
        hello(1, SLURM_PROCID="1"),
        relay={"SLURM_STEP_NUM_NODES": "2", "SLURM_NODELIST": "gpu[07-09],x"},
    )

    assert (found.spans, found.hosts) == (True, ("gpu07",))


def test_without_a_master_the_launcher_hints_at_the_host():
    hints = {"PMI_PORT": "login1:41234", "LSB_HOSTS": "h1 h1 h2"}

    assert where(hello(1), relay=hints).hosts == ("h1", "login1")


def test_kubeflows_first_pod_is_told_localhost_and_is_known_by_its_name():
    told = {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "23456",
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    }
    found = where(hello(0, HOSTNAME="job-master-0", **told), waited_s=GRACE_S)

    assert (found.spans, found.public_host) == (True, "job-master-0")
    assert found.master == "job-master-0:23456"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("node0:7000", ("node0", 7000)),
        ("[fe80::1]:7000", ("fe80::1", 7000)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("", None),
    ],
)
def test_the_hub_is_where_the_user_says(text, wanted):
    assert hub_wanted(text) == (wanted, None)


@pytest.mark.parametrize(
    "text",
    ["node0", "node0:0", "node0:70000", ":7000", "a b:1", "tcp://x:1", "x:1:2", "fe80::1:7000"],
)
def test_a_hub_that_is_no_host_and_port_is_complained_about(text):
    wanted, complaint = hub_wanted(text)

    assert wanted is None
    assert complaint.startswith("DDTOP_HUB=")


@given(st.text(max_size=80))
def test_any_name_has_its_ports_and_they_never_change(name):
    ports = derived_ports(name)

    assert ports == derived_ports(name)
    assert len(set(ports)) == PORTS
    assert all(PORT_FIRST <= port < PORT_FIRST + PORT_SPAN for port in ports)


def test_the_port_at_which_the_ranks_meet_is_left_to_them():
    """The relay of rank 0 may start before its store does."""
    first = derived_ports("train")[0]

    assert first not in derived_ports("train", first)
    assert derived_ports("train", first) == derived_ports("train")[1:]


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "DDTOP_HUB",
                "MASTER_ADDR",
                "MASTER_PORT",
                "SLURM_NODELIST",
                "PMI_PORT",
                "LOCAL_WORLD_SIZE",
                "OMPI_MCA_orte_hnp_uri",
            ]
        ),
        st.text(max_size=60),
    )
)
def test_no_environment_is_too_strange(environment):
    found = where(hello(0, **environment), hello(3))

    assert found.is_hub
    assert all(host.isprintable() for host in found.hosts)


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("node0", True),
        ("node0.cluster", True),
        ("10.0.0.1", True),
        ("10.0.0.2", False),
        ("node1", False),
        ("::1", True),
    ],
)
def test_a_host_knows_its_own_names(name, here):
    assert is_here(name, HERE) is here
