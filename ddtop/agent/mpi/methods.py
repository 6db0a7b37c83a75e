"""Which of mpi4py's methods are watched, and which of their arguments are read.

Get_rank, Get_size, Test, Iprobe and other methods that programs call in hot loops are left out on
purpose.
"""

from __future__ import annotations

from ddtop.wire.calls import MPI_CODES, MPI_COLLECTIVES, ROOTED

CREATIONS = (
    "Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_cart", "Create_graph",
    "Create_dist_graph_adjacent", "Create_dist_graph", "Sub", "Create_intercomm", "Merge",
)  # fmt: skip
NONBLOCKING = tuple(name for name in MPI_CODES if name in MPI_COLLECTIVES and name.startswith("I"))
BLOCKING = tuple(
    name for name in MPI_CODES if name in MPI_COLLECTIVES and name not in (*NONBLOCKING, *CREATIONS)
)

# Place of the root among the arguments.
ROOTS = {
    "Bcast": 1, "Gather": 2, "Gatherv": 2, "Scatter": 2, "Scatterv": 2, "Reduce": 3,
    "bcast": 1, "gather": 1, "scatter": 1, "reduce": 2,
    "Ibcast": 1, "Igather": 2, "Igatherv": 2, "Iscatter": 2, "Iscatterv": 2, "Ireduce": 3,
}  # fmt: skip
# Index of the buffer that must have the same length on all members: the receive buffer, because the
# other one may be IN_PLACE.
BUFFERS = {
    "Bcast": 0,
    "Ibcast": 0,
    "Allreduce": 1,
    "Iallreduce": 1,
    "Scan": 1,
    "Iscan": 1,
    "Exscan": 1,
    "Iexscan": 1,
}

SENDS = ("Send", "Ssend", "Bsend", "Rsend", "send", "ssend", "bsend")
STARTED_SENDS = ("Isend", "Issend", "Ibsend", "Irsend", "isend", "issend", "ibsend")
PREPARED_SENDS = ("Send_init", "Ssend_init", "Bsend_init", "Rsend_init")
RECEIVES = ("Recv", "recv")
STARTED_RECEIVES = ("Irecv", "irecv")
PREPARED_RECEIVES = ("Recv_init",)
PROBES = ("Probe", "probe", "Mprobe", "mprobe")
# Places of dest, sendtag, source, recvtag.
EXCHANGES = {"Sendrecv": (1, 2, 4, 5), "sendrecv": (1, 2, 4, 5), "Sendrecv_replace": (1, 2, 3, 4)}

WAITS = ("Wait", "wait")
MANY_WAITS = ("Waitall", "waitall", "Waitany", "waitany", "Waitsome", "waitsome")

# Methods of which only the name is noted: (class, method).
NAMED: tuple[tuple[str, str], ...] = (
    *((name.partition(".")[0], name.partition(".")[2]) for name in MPI_CODES if "." in name),
    ("Topocomm", "Neighbor_allgather"),
    ("Topocomm", "Neighbor_allgatherv"),
    ("Topocomm", "Neighbor_alltoall"),
    ("Topocomm", "Neighbor_alltoallv"),
    ("Topocomm", "Neighbor_alltoallw"),
    ("Topocomm", "neighbor_allgather"),
    ("Topocomm", "neighbor_alltoall"),
    ("Intracomm", "Spawn"),
    ("Intracomm", "Accept"),
    ("Intracomm", "Connect"),
    ("Intracomm", "Create_group"),
    ("Comm", "Disconnect"),
)

assert set(ROOTS) == set(ROOTED)
