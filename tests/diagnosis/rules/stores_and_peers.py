"""Jobs of `test_stores_and_peers.py` and of the pages of findings."""

from tests.diagnosis.rules.rendezvous import all_enter, meets


def dials(**more):
    """Rank 1 has the store, and tries to reach rank 0 at the address of rank 0's other network."""
    job = meets(2)
    job.ranks[0].told["environment"] |= {"GLOO_SOCKET_IFNAME": "docker0"}
    all_enter(job, 0, listens=("172.17.0.1:41234", "0.0.0.0:29500"))
    all_enter(job, 1, dials=("172.17.0.1:41234",), **more)
    return job
