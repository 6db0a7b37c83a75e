"""The names of calls, and which ranks each call waits for: single ranks, a root, or all.

The agent, the relay's reader of state pages, the model and the rules share them. The names of MPI
are those of mpi4py: `Send` takes a buffer, `send` pickles an object. Their index in `MPI_CALLS` is
the code on the state page, so names are only appended.
"""

from __future__ import annotations

_TORCH_P2P = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "monitored_barrier"})

INIT_CALLS = ("init_process_group", "MPI_Init")
"""Calls in which a rank connects to the others for the first time."""

NEW_GROUP, SPLIT_GROUP, OF_MEMBERS_ONLY = "new_group", "split_group", 1
"""All ranks of the job have to make the call, members or not. With `use_local_synchronization`, or
where a group other than that of all ranks is split, only some: then the tag on the state page is
OF_MEMBERS_ONLY. So is that of a monitored_barrier in a group that is not of this job."""
GROUP_MAKERS = (NEW_GROUP, SPLIT_GROUP)

MPI_CALLS: tuple[str, ...] = (
    "",
    "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv",
    "Alltoall", "Alltoallv",
    "Alltoallw", "Reduce", "Allreduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan",
    "barrier", "bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce",
    "scan", "exscan",
    "Ibarrier", "Ibcast", "Igather", "Igatherv", "Iscatter", "Iscatterv", "Iallgather",
    "Iallgatherv", "Ialltoall",
    "Ialltoallv", "Ialltoallw", "Ireduce", "Iallreduce", "Ireduce_scatter_block",
    "Ireduce_scatter", "Iscan", "Iexscan",
    "Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_cart", "Create_graph",
    "Create_dist_graph_adjacent", "Create_dist_graph", "Sub", "Create_group", "Create_intercomm",
    "Merge",
    "Send", "Ssend", "Bsend", "Rsend", "send", "ssend", "bsend", "Isend", "Issend", "Ibsend",
    "Irsend", "isend", "issend",
    "ibsend", "Send_init", "Ssend_init", "Bsend_init", "Rsend_init",
    "Recv", "recv", "Irecv", "irecv", "Recv_init", "Probe", "probe", "Mprobe", "mprobe",
    "Sendrecv", "sendrecv", "Sendrecv_replace",
    "Wait", "wait", "Waitall", "waitall", "Waitany", "waitany", "Waitsome", "waitsome",
    "Neighbor_allgather", "Neighbor_allgatherv", "Neighbor_alltoall", "Neighbor_alltoallv",
    "Neighbor_alltoallw",
    "neighbor_allgather", "neighbor_alltoall",
    "Win.Create", "Win.Allocate", "Win.Allocate_shared", "Win.Free", "Win.Fence", "Win.Start",
    "Win.Complete", "Win.Wait",
    "Win.Lock", "Win.Lock_all", "Win.Unlock", "Win.Unlock_all", "Win.Flush", "Win.Flush_all",
    "File.Open", "File.Close", "File.Read_all", "File.Write_all", "File.Read_at_all",
    "File.Write_at_all",
    "File.Read_ordered", "File.Write_ordered", "File.Sync", "File.Set_size",
    "Spawn", "Accept", "Connect", "Disconnect",
    "Finalize",
)  # fmt: skip
"""Names by their code on the state page; 0 is no call."""
FINALIZE = "MPI_Finalize"
"""The model's name for a rank in MPI.Finalize, or in the exit of an interpreter that calls it."""
MPI_CODES = {name: code for code, name in enumerate(MPI_CALLS) if name}

_FIRST = {
    name: MPI_CODES[name]
    for name in ("Barrier", "Ibarrier", "Send", "Recv", "Wait", "Neighbor_allgather")
}
MPI_COLLECTIVES = frozenset(MPI_CALLS[_FIRST["Barrier"] : _FIRST["Send"]]) - {"Create_group"}
"""All members of the communicator make them in the same order: they are numbered."""
MPI_STARTED = frozenset(MPI_CALLS[MPI_CODES["Ibarrier"] : MPI_CODES["Dup"]])
"""Nonblocking collectives."""
MPI_SENDS = frozenset(MPI_CALLS[_FIRST["Send"] : _FIRST["Recv"]])
MPI_RECEIVES = frozenset(MPI_CALLS[_FIRST["Recv"] : MPI_CODES["Sendrecv"]])
MPI_EXCHANGES = frozenset({"Sendrecv", "sendrecv", "Sendrecv_replace"})
MPI_WAITS = frozenset(MPI_CALLS[_FIRST["Wait"] : _FIRST["Neighbor_allgather"]])
MPI_ONE_WAITS = frozenset({"Wait", "wait"})
MPI_ANY_WAITS = frozenset({"Waitany", "waitany", "Waitsome", "waitsome"})
"""One of their requests is enough."""

NAME_ONLY = frozenset(MPI_CALLS[MPI_CODES["Neighbor_allgather"] : MPI_CODES["Finalize"]]) | {
    "Create_group"
}
"""It is not known which ranks they wait for."""

_ROOT_GIVES = (
    "Bcast",
    "Scatter",
    "Scatterv",
    "bcast",
    "scatter",
    "Ibcast",
    "Iscatter",
    "Iscatterv",
)
ROOT_GIVES = frozenset(_ROOT_GIVES)
"""A member that is not the root waits for the root."""


def is_from_root(call: str) -> bool:
    """Whether one rank gives data to all others in this call of MPI or torch."""
    return call in ROOT_GIVES or call.startswith(("broadcast", "scatter"))


ROOTED = ROOT_GIVES | {
    "Gather",
    "Gatherv",
    "Reduce",
    "gather",
    "reduce",
    "Igather",
    "Igatherv",
    "Ireduce",
}
"""All members must name the same root."""
EQUAL_BYTES = frozenset(
    {"Allreduce", "Bcast", "Scan", "Exscan", "Iallreduce", "Ibcast", "Iscan", "Iexscan"}
)
"""All members pass the same number of bytes."""

SENDS = MPI_SENDS | {"send", "isend"}
RECEIVES = MPI_RECEIVES | {"recv", "irecv"}
P2P_CALLS = _TORCH_P2P | MPI_SENDS | MPI_RECEIVES
"""Names of `OpenCall`s that wait for single ranks; gloo makes monitored_barrier out of sends and
receives."""
WAITING_CALLS = P2P_CALLS | set(GROUP_MAKERS) | (frozenset(MPI_CALLS[1:]) - {"Finalize"})
"""A rank in one of these calls waits, even if it is not known for which rank."""


def same_call(name: str) -> str:
    """The name under which two calls are the same collective.

    `barrier` is `Barrier`, and blocking matches blocking only.
    """
    return "Barrier" if name == "barrier" else name
