"""The table: a row is one fault. Its expectation was written before any program was run.

In a body, a line that begins with `-` is only in the faulty program, and one with `+` only in the
correct one. `@` at the end of a line marks it: a finding must name one of these lines. What stands
above `---` is done once, the rest in each turn. The generator takes the marks away.
"""

from __future__ import annotations

from dataclasses import dataclass

CLASSES = {
    "call": "call matching",
    "parameter": "parameter matching",
    "request": "request life cycle",
    "race": "message race",
    "local": "local concurrency",
}
FEATURES = {
    "p2p": "point to point",
    "persistent": "persistent",
    "icoll": "non-blocking collective",
    "coll": "collective",
    "tools": "tools of communicators",
}
LEFT_OUT = {
    "request x coll": "a blocking collective has no request",
    "request x tools": "of these calls only Idup has a request: see local x tools",
    "local x coll": "a blocking collective has given the buffer back when it returns",
    "types of C": "mpi4py takes the type from the buffer",
    "resource leaks": "they end well, or Python frees what was left",
    "RMA, and races in windows": "their effect is a wrong number, neither a hang nor an error",
    "operators that differ": "their effect is a wrong number, neither a hang nor an error",
}
"""Cells and classes without a program, and why."""


@dataclass(frozen=True)
class Row:
    """One fault. `family`: `wait`, `error` or `any`; `ranks`: those that a finding may name."""

    cell: str
    world: int
    family: str
    ranks: str
    body: str


ROWS = (
    # -- call matching
    Row("call p2p", 2, "wait", "01", """
        -comm.Recv(into, source=1 - rank) @
        -comm.Send(big, dest=1 - rank)
        +if rank == 0:
        +    comm.Send(big, dest=1)
        +    comm.Recv(into, source=1)
        +else:
        +    comm.Recv(into, source=0)
        +    comm.Send(big, dest=0)
    """),
    Row("call p2p", 3, "wait", "012", """
        -comm.Recv(into, source=left) @
        -comm.Send(big, dest=right)
        +comm.Sendrecv(big, dest=right, recvbuf=into, source=left)
    """),
    Row("call p2p", 2, "wait", "01", """
        if rank == 0:
        +    comm.Send(big, dest=1)
            comm.Barrier() @
        else:
            comm.Recv(into, source=0) @
            comm.Barrier()
    """),
    Row("call p2p", 3, "wait", "01", """
        if rank == 0:
            comm.Ssend(one, dest=1) @
        +if rank == 1:
        +    comm.Recv(got, source=0)
        comm.Barrier() @
    """),
    Row("call p2p", 2, "wait", "01", """
        if rank == 0:
            comm.Send(big, dest=1) @
            comm.Recv(into, source=1)
        else:
        -    comm.Send(big, dest=0) @
            comm.Recv(into, source=0)
        +    comm.Send(big, dest=0)
    """),
    Row("call p2p", 3, "wait", "12", """
        +if rank == 2:
        +    comm.Isend(one, dest=1).Wait()
        if rank == 1:
            request = comm.Irecv(got, source=2)
            request.Wait() @
        comm.Barrier() @
    """),
    Row("call p2p", 2, "wait", "01", """
        if rank == 0:
            comm.Probe(source=1) @
            comm.Recv(got, source=1)
        +else:
        +    comm.Send(one, dest=0)
        comm.Barrier() @
    """),
    Row("call persistent", 2, "wait", "01", """
        receive = comm.Recv_init(into, source=1 - rank)
        send = comm.Ssend_init(big, dest=1 - rank)
        ---
        receive.Start()
        +send.Start()
        receive.Wait() @
        -send.Start()
        send.Wait()
    """),
    Row("call persistent", 3, "wait", "01", """
        send = comm.Ssend_init(one, dest=1)
        receive = comm.Recv_init(got, source=0)
        ---
        if rank == 0:
            send.Start()
            send.Wait() @
        +if rank == 1:
        +    receive.Start()
        +    receive.Wait()
        comm.Barrier() @
    """),
    Row("call persistent", 3, "wait", "12", """
        send = comm.Send_init(one, dest=2)
        receive = comm.Recv_init(got, source=1)
        ---
        if rank == 2:
            receive.Start()
            receive.Wait() @
        +if rank == 1:
        +    send.Start()
        +    send.Wait()
        comm.Allreduce(one, got) @
    """),
    Row("call persistent", 3, "wait", "012", """
        receive = comm.Recv_init(into, source=left)
        send = comm.Send_init(big, dest=right)
        ---
        receive.Start()
        -receive.Wait() @
        send.Start()
        send.Wait()
        +receive.Wait()
    """),
    Row("call icoll", 2, "wait", "01", """
        -if rank == 0:
        -    comm.Ibarrier().Wait() @
        -    comm.Ibcast(big).Wait()
        -else:
        -    comm.Ibcast(big).Wait() @
        -    comm.Ibarrier().Wait()
        +comm.Ibarrier().Wait()
        +comm.Ibcast(big).Wait()
    """),
    Row("call icoll", 3, "wait", "1", """
        -if rank != 1:
        -    comm.Iallreduce(one, got).Wait() @
        +comm.Iallreduce(one, got).Wait()
        comm.Barrier() @
    """),
    Row("call icoll", 3, "wait", "2", """
        -if rank == 2:
        -    comm.Iallreduce(big, into).Wait() @
        -else:
        -    comm.Allreduce(big, into) @
        +comm.Iallreduce(big, into).Wait()
    """),
    Row("call icoll", 2, "wait", "01", """
        if rank == 0:
            comm.Ibarrier().Wait() @
            comm.Send(one, dest=1)
        else:
        +    comm.Ibarrier().Wait()
            comm.Recv(got, source=0) @
        -    comm.Ibarrier().Wait()
    """),
    Row("call coll", 3, "wait", "2", """
        -if rank == 2:
        -    comm.Barrier() @
        -    comm.Allreduce(big, into)
        -else:
        -    comm.Allreduce(big, into) @
        -    comm.Barrier()
        +comm.Allreduce(big, into)
        +comm.Barrier()
    """),
    Row("call coll", 3, "wait", "2", """
        -if rank != 2:
        -    comm.allgather(rank) @
        +comm.allgather(rank)
        comm.Allreduce(big, into) @
    """),
    Row("call coll", 4, "wait", "3", """
        -if rank == 3:
        -    comm.alltoall([rank] * size) @
        -else:
        -    comm.Barrier() @
        +comm.Barrier()
        comm.Bcast(big)
    """),
    Row("call coll", 3, "wait", "1", """
        -for _ in range(3 if rank == 1 else 2):
        +for _ in range(2):
            comm.Allgather(one, three) @
        comm.Allreduce(big, into) @
    """),
    Row("call coll", 2, "wait", "01", """
        if rank == 0:
            comm.Barrier() @
            comm.Send(one, dest=1)
        else:
        +    comm.Barrier()
            comm.Recv(got, source=0) @
        -    comm.Barrier()
    """),
    Row("call coll", 3, "wait", "1", """
        -if rank == 1:
        -    sys.exit()
        comm.Barrier() @
    """),
    Row("call tools", 3, "any", "2", """
        -if rank == 2:
        -    other = comm.Split(0, rank) @
        -else:
        -    other = comm.Dup() @
        +other = comm.Dup()
        other.Free()
    """),
    Row("call tools", 3, "wait", "2", """
        -if rank != 2:
        -    other = comm.Split(0, rank) @
        -    other.Free()
        +other = comm.Split(0, rank)
        +other.Free()
        comm.Barrier() @
    """),
    Row("call tools", 2, "wait", "01", """
        -if rank == 0:
        -    other = comm.Dup() @
        -    comm.Barrier()
        -else:
        -    comm.Barrier() @
        -    other = comm.Dup()
        +other = comm.Dup()
        +comm.Barrier()
        other.Free()
    """),
    Row("call tools", 2, "wait", "01", """
        first, second = comm.Dup(), comm.Dup()
        ---
        -if rank == 1:
        -    second.Barrier() @
        -    first.Barrier()
        -else:
        -    first.Barrier() @
        -    second.Barrier()
        +first.Barrier()
        +second.Barrier()
    """),
    Row("call tools", 3, "wait", "1", """
        -if rank != 1:
        -    comm.Create_cart([size]).Free() @
        +comm.Create_cart([size]).Free()
        comm.Barrier() @
    """),
    Row("call tools", 4, "wait", "02", """
        half = comm.Split(rank % 2, rank)
        ---
        if rank == 2:
            half.Recv(got, source=0) @
        +if rank == 0:
        +    half.Send(one, dest=1)
        comm.Barrier() @
    """),
    Row("call tools", 3, "wait", "1", """
        pair = comm.Get_group().Incl([0, 1])
        ---
        -if rank == 0:
        +if rank < 2:
            comm.Create_group(pair).Free() @
        comm.Barrier() @
    """),
    # -- parameter matching
    Row("parameter p2p", 2, "wait", "01", """
        if rank == 0:
            comm.Ssend(one, dest=1, tag=1) @
        else:
        -    comm.Recv(got, source=0, tag=2) @
        +    comm.Recv(got, source=0, tag=1)
    """),
    Row("parameter p2p", 3, "wait", "012", """
        if rank == 0:
        -    comm.Recv(got, source=2) @
        +    comm.Recv(got, source=1)
        if rank == 1:
            comm.Ssend(one, dest=0) @
        comm.Barrier() @
    """),
    Row("parameter p2p", 3, "wait", "01", """
        if rank == 0:
        -    comm.Send(one, dest=2) @
        +    comm.Send(one, dest=1)
        if rank == 1:
            comm.Recv(got, source=0) @
        comm.Barrier() @
    """),
    Row("parameter p2p", 2, "wait", "01", """
        other = comm.Dup()
        ---
        if rank == 0:
        -    other.Ssend(one, dest=1) @
        +    comm.Ssend(one, dest=1)
        else:
            comm.Recv(got, source=0) @
    """),
    Row("parameter p2p", 2, "error", "1", """
        if rank == 0:
            comm.Send(big, dest=1)
        else:
        -    comm.Recv(into[:50_000], source=0) @
        +    comm.Recv(into, source=0)
        comm.Barrier()
    """),
    Row("parameter p2p", 3, "error", "2", """
        if rank == 2:
        -    comm.Send(one, dest=rank + 1) @
        +    comm.Send(one, dest=rank - 1)
        if rank == 1:
            comm.Recv(got, source=2)
    """),
    Row("parameter p2p", 2, "error", "0", """
        if rank == 0:
        -    comm.Send(one, dest=1, tag=-3) @
        +    comm.Send(one, dest=1, tag=3)
        else:
            comm.Recv(got, source=0, tag=3)
    """),
    Row("parameter persistent", 2, "wait", "01", """
        -send = comm.Ssend_init(one, dest=1, tag=4)
        +send = comm.Ssend_init(one, dest=1, tag=5)
        receive = comm.Recv_init(got, source=0, tag=5)
        ---
        request = receive if rank else send
        request.Start()
        request.Wait() @
    """),
    Row("parameter persistent", 2, "error", "1", """
        send = comm.Send_init(big, dest=1)
        -receive = comm.Recv_init(into[:10], source=0)
        +receive = comm.Recv_init(into, source=0)
        ---
        request = receive if rank else send
        request.Start()
        request.Wait() @
        comm.Barrier()
    """),
    Row("parameter persistent", 3, "error", "0", """
        if rank == 0:
        -    request = comm.Send_init(one, dest=size) @
        +    request = comm.Send_init(one, dest=size - 1)
            request.Start()
            request.Wait()
        if rank == 2:
            comm.Recv(got, source=0)
    """),
    Row("parameter persistent", 3, "wait", "012", """
        send = comm.Ssend_init(one, dest=2)
        -receive = comm.Recv_init(got, source=1)
        +receive = comm.Recv_init(got, source=0)
        ---
        if rank != 1:
            request = receive if rank else send
            request.Start()
            request.Wait() @
        comm.Barrier() @
    """),
    Row("parameter icoll", 3, "any", "1", """
        -comm.Ibcast(big, root=1 if rank == 1 else 0).Wait() @
        +comm.Ibcast(big, root=0).Wait()
    """),
    Row("parameter icoll", 3, "any", "2", """
        -request = comm.Ireduce(big, into, root=2 if rank == 2 else 0)
        +request = comm.Ireduce(big, into, root=0)
        request.Wait() @
    """),
    Row("parameter icoll", 2, "any", "01", """
        -comm.Ibcast(big[:50_000] if rank else big).Wait() @
        +comm.Ibcast(big).Wait()
    """),
    Row("parameter icoll", 3, "error", "1", """
        -comm.Ibcast(big, root=3 if rank == 1 else 0).Wait() @
        +comm.Ibcast(big, root=0).Wait()
    """),
    Row("parameter coll", 4, "any", "3", """
        -comm.Bcast(big, root=3 if rank == 3 else 0) @
        +comm.Bcast(big, root=0)
    """),
    Row("parameter coll", 2, "any", "01", """
        -comm.Bcast(big[:50_000] if rank else big) @
        +comm.Bcast(big)
    """),
    Row("parameter coll", 3, "any", "2", """
        -part = 10 if rank == 2 else 100_000
        +part = 100_000
        comm.Allreduce(big[:part], into[:part]) @
    """),
    Row("parameter coll", 3, "any", "1", """
        -comm.gather("x" * 100_000, root=1 if rank == 1 else 0) @
        +comm.gather("x" * 100_000, root=0)
    """),
    Row("parameter coll", 3, "error", "2", """
        -comm.Bcast(big, root=-7 if rank == 2 else 0) @
        +comm.Bcast(big, root=0)
    """),
    Row("parameter coll", 2, "error", "1", """
        -part = 10 if rank else 50_000
        +part = 50_000
        comm.Scatter(big, into[:part]) @
        comm.Barrier()
    """),
    Row("parameter coll", 3, "any", "2", """
        -comm.bcast("x" * 100_000, root=2 if rank == 2 else 0) @
        +comm.bcast("x" * 100_000, root=0)
        comm.Barrier() @
    """),
    Row("parameter tools", 3, "any", "012", """
        everybody = comm.Get_group()
        -pair = everybody.Incl([0, 1] if rank == 0 else [0, 1, 2])
        +pair = everybody.Incl([0, 1, 2])
        ---
        comm.Create_group(pair).Free() @
        comm.Barrier() @
    """),
    Row("parameter tools", 3, "error", "1", """
        -other = comm.Split(-5 if rank == 1 else 0, rank) @
        +other = comm.Split(0, rank)
        other.Free()
    """),
    Row("parameter tools", 3, "error", "2", """
        -cart = comm.Create_cart([size + 1 if rank == 2 else size]) @
        +cart = comm.Create_cart([size])
        cart.Free()
    """),
    Row("parameter tools", 2, "wait", "01", """
        alone = comm.Split(rank, 0)
        ---
        -bridge = alone.Create_intercomm(0, comm, 1 - rank, tag=rank) @
        +bridge = alone.Create_intercomm(0, comm, 1 - rank, tag=9)
        bridge.Free()
    """),
    Row("parameter tools", 3, "error", "2", """
        -other = comm.Split(MPI.UNDEFINED if rank == 2 else 0, rank)
        +other = comm.Split(0, rank)
        ---
        other.Barrier() @
        comm.Barrier()
    """),
    Row("parameter tools", 2, "error", "1", """
        everybody = comm.Get_group()
        ---
        -everybody.Incl([rank * 2]).Free() @
        +everybody.Incl([rank]).Free()
        comm.Barrier()
    """),
    # -- request life cycle
    Row("request p2p", 2, "wait", "01", """
        if rank == 0:
            time.sleep(0.2)
            comm.Ssend(one, dest=1) @
        else:
            request = comm.Irecv(got, source=0)
        -    request.Cancel() @
            request.Wait()
        comm.Barrier() @
    """),
    Row("request p2p", 2, "wait", "01", """
        if rank == 0:
            time.sleep(0.2)
            comm.Send(2 * one, dest=1)
            for _ in range(2):
                comm.Ssend(one, dest=1, tag=1) @
        else:
            request = comm.Irecv(got, source=0)
        +    request.Wait()
            for _ in range(int(got[0])):
                comm.Recv(three, source=0, tag=1)
        comm.Barrier() @
    """),
    Row("request p2p", 3, "wait", "02", """
        if rank == 0:
            time.sleep(0.2)
            comm.Send(3 * one, dest=2)
            for _ in range(3):
                comm.Ssend(one, dest=2, tag=1) @
        if rank == 2:
            request = comm.Irecv(got, source=0)
        -    request.Free()
            request.Wait()
            for _ in range(int(got[0])):
                comm.Recv(three, source=0, tag=1)
        comm.Barrier() @
    """),
    Row("request persistent", 2, "wait", "01", """
        receive = comm.Recv_init(got, source=0)
        ---
        if rank == 0:
            comm.Ssend(one, dest=1) @
        else:
        +    receive.Start()
            receive.Wait()
        comm.Barrier() @
    """),
    Row("request persistent", 3, "wait", "12", """
        send = comm.Send_init(one, dest=2)
        ---
        if rank == 1:
        +    send.Start()
            send.Wait()
        if rank == 2:
            comm.Recv(got, source=1) @
        comm.Barrier() @
    """),
    Row("request persistent", 2, "error", "0", """
        send = comm.Ssend_init(one, dest=1)
        ---
        if rank == 0:
            send.Start()
        -    send.Start() @
            send.Wait()
        else:
            comm.Recv(got, source=0)
        comm.Barrier()
    """),
    Row("request persistent", 3, "error", "1", """
        send = comm.Send_init(one, dest=right)
        receive = comm.Recv_init(got, source=left)
        ---
        receive.Start()
        -if rank == 1:
        -    send.Free()
        send.Start() @
        send.Wait()
        receive.Wait()
    """),
    Row("request persistent", 2, "wait", "01", """
        receive = comm.Recv_init(got, source=0)
        ---
        if rank == 0:
            time.sleep(0.2)
            comm.Send(2 * one, dest=1)
            for _ in range(2):
                comm.Ssend(one, dest=1, tag=1) @
        else:
            receive.Start()
        +    receive.Wait()
            for _ in range(int(got[0])):
                comm.Recv(three, source=0, tag=1)
        comm.Barrier() @
    """),
    Row("request persistent", 3, "wait", "1", """
        meeting = comm.Barrier_init()
        ---
        -if rank != 1:
        -    meeting.Start()
        +meeting.Start()
        meeting.Wait() @
        comm.Bcast(big) @
    """),
    Row("request icoll", 2, "wait", "01", """
        count = np.full(1, 0 if rank else 2)
        ---
        if rank == 0:
            time.sleep(0.2)
        request = comm.Ibcast(count)
        +request.Wait()
        if rank == 0:
            for _ in range(2):
                comm.Ssend(one, dest=1) @
        else:
            for _ in range(int(count[0])):
                comm.Recv(got, source=0)
        comm.Barrier() @
    """),
    Row("request icoll", 3, "error", "2", """
        request = comm.Iallreduce(big, into)
        -if rank == 2:
        -    request.Free() @
        request.Wait()
    """),
    Row("request icoll", 3, "error", "0", """
        request = comm.Ibarrier()
        -if rank == 0:
        -    request.Cancel() @
        request.Wait()
    """),
    # -- message race
    Row("race p2p", 3, "wait", "01", """
        if rank == 0:
        -    comm.Recv(got)
        +    comm.Recv(got, source=2)
            comm.Recv(got, source=1) @
        else:
            time.sleep(0.2 * (rank - 1))
            comm.Send(one, dest=0)
        comm.Barrier() @
    """),
    Row("race p2p", 3, "error", "0", """
        if rank == 0:
        -    first, second = comm.Irecv(into), comm.Irecv(got)
        +    first, second = comm.Irecv(into, source=1), comm.Irecv(got, source=2)
            MPI.Request.Waitall([first, second]) @
        else:
            time.sleep(0.2 * (2 - rank))
            comm.Send(big if rank == 1 else one, dest=0)
        comm.Barrier()
    """),
    Row("race p2p", 3, "wait", "012", """
        status = MPI.Status()
        ---
        if rank == 0:
            for _ in range(2):
        -        comm.Recv(got, status=status)
        +        comm.Recv(got, tag=1, status=status)
                comm.Send(one, dest=status.Get_source(), tag=3)
        -    comm.Recv(got)
        +    comm.Recv(got, tag=2)
        else:
            time.sleep(0.2 * (rank - 1))
            comm.Send(one, dest=0, tag=1)
            if rank == 1:
                comm.Send(one, dest=0, tag=2)
            comm.Recv(got, source=0, tag=3) @
        comm.Barrier() @
    """),
    Row("race persistent", 3, "wait", "01", """
        -receive = comm.Recv_init(got)
        +receive = comm.Recv_init(got, source=2)
        ---
        if rank == 0:
            receive.Start()
            receive.Wait()
            comm.Recv(got, source=1) @
        else:
            time.sleep(0.2 * (rank - 1))
            comm.Send(one, dest=0)
        comm.Barrier() @
    """),
    Row("race persistent", 3, "error", "0", """
        -first, second = comm.Recv_init(into), comm.Recv_init(got)
        +first, second = comm.Recv_init(into, source=1), comm.Recv_init(got, source=2)
        ---
        if rank == 0:
            MPI.Prequest.Startall([first, second])
            MPI.Request.Waitall([first, second]) @
        else:
            time.sleep(0.2 * (2 - rank))
            comm.Send(big if rank == 1 else one, dest=0)
        comm.Barrier()
    """),
    Row("race icoll", 3, "wait", "01", """
        if rank == 2:
            time.sleep(0.2)
            comm.Send(one, dest=0)
        if rank == 0:
        -    comm.Recv(got)
        +    comm.Recv(got, source=2)
        comm.Ireduce(one, got).Wait()
        if rank == 1:
            comm.Send(one, dest=0)
        if rank == 0:
            comm.Recv(got, source=1) @
        comm.Barrier() @
    """),
    Row("race coll", 3, "wait", "01", """
        if rank == 2:
            time.sleep(0.2)
            comm.Send(one, dest=0)
        if rank == 0:
        -    comm.Recv(got)
        +    comm.Recv(got, source=2)
        comm.Reduce(one, got)
        if rank == 1:
            comm.Send(one, dest=0)
        if rank == 0:
            comm.Recv(got, source=1) @
        comm.Barrier() @
    """),
    Row("race tools", 4, "wait", "02", """
        half = comm.Split(rank == 3, rank)
        ---
        if rank == 0:
        -    half.Recv(got)
        +    half.Recv(got, source=1)
            half.Recv(got, source=2) @
        elif rank < 3:
            time.sleep(0.2 * (2 - rank))
            half.Send(one, dest=0)
        comm.Barrier() @
    """),
    # -- local concurrency
    Row("local p2p", 2, "wait", "01", """
        if rank == 0:
            time.sleep(0.2)
            comm.Send(2 * one, dest=1)
            for _ in range(2):
                comm.Ssend(one, dest=1, tag=1) @
        else:
            got[0] = 0
            request = comm.Irecv(got, source=0)
        +    request.Wait()
            for _ in range(int(got[0])):
                comm.Recv(three, source=0, tag=1)
        -    request.Wait()
        comm.Barrier() @
    """),
    Row("local p2p", 2, "wait", "01", """
        if rank == 0:
            big[:] = 2
            request = comm.Isend(big, dest=1)
        -    big[:] = 0
            request.Wait()
            for _ in range(2):
                comm.Ssend(one, dest=1, tag=1) @
        else:
            time.sleep(0.2)
            comm.Recv(into, source=0)
            for _ in range(int(into[-1])):
                comm.Recv(got, source=0, tag=1)
        comm.Barrier() @
    """),
    Row("local persistent", 3, "wait", "02", """
        receive = comm.Recv_init(got, source=0)
        ---
        if rank == 0:
            time.sleep(0.2)
            comm.Send(2 * one, dest=2)
            for _ in range(2):
                comm.Ssend(one, dest=2, tag=1) @
        if rank == 2:
            got[0] = 0
            receive.Start()
        +    receive.Wait()
            for _ in range(int(got[0])):
                comm.Recv(three, source=0, tag=1)
        -    receive.Wait()
        comm.Barrier() @
    """),
    Row("local persistent", 2, "wait", "01", """
        send = comm.Send_init(big, dest=1)
        ---
        if rank == 0:
            big[:] = 2
            send.Start()
        -    big[:] = 0
            send.Wait()
            for _ in range(2):
                comm.Ssend(one, dest=1, tag=1) @
        else:
            time.sleep(0.2)
            comm.Recv(into, source=0)
            for _ in range(int(into[-1])):
                comm.Recv(got, source=0, tag=1)
        comm.Barrier() @
    """),
    Row("local icoll", 3, "wait", "01", """
        count = np.zeros(1)
        ---
        count[0] = 0 if rank else 2
        if rank == 0:
            time.sleep(0.2)
        request = comm.Ibcast(count)
        +request.Wait()
        if rank == 0:
            for _ in range(2):
                comm.Ssend(one, dest=1) @
        if rank == 1:
            for _ in range(int(count[0])):
                comm.Recv(got, source=0)
        -request.Wait()
        comm.Barrier() @
    """),
    Row("local icoll", 2, "wait", "01", """
        big[:] = 0 if rank else 2
        time.sleep(0.2 * rank)
        request = comm.Ibcast(big)
        -if rank == 0:
        -    big[:] = 0
        request.Wait()
        if rank == 0:
            for _ in range(2):
                comm.Ssend(one, dest=1) @
        else:
            for _ in range(int(big[-1])):
                comm.Recv(got, source=0)
        comm.Barrier() @
    """),
    Row("local tools", 2, "any", "01", """
        other, request = comm.Idup()
        +request.Wait()
        other.Barrier() @
        -request.Wait()
        other.Free()
    """),
)  # fmt: skip
