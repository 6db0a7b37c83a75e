"""An MPI without MPI: classes with mpi4py's names and signatures, in one process, rank 1 of 3."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

WORLD_SIZE, RANK = 3, 1


def make() -> Any:
    """A fresh module; `during` is called inside every call that would wait."""
    mpi: Any = SimpleNamespace(
        ANY_SOURCE=-2, ANY_TAG=-1, PROC_NULL=-1, during=lambda: None, handles=100
    )

    class Group:
        def __init__(self, members: tuple[int, ...]) -> None:
            self.members = members

        def Get_size(self) -> int:  # noqa: N802
            return len(self.members)

        def Translate_ranks(self, ranks: list[int], _other: Any) -> list[int]:  # noqa: N802
            return [self.members[rank] for rank in ranks]

        def Free(self) -> None:  # noqa: N802
            pass

    class Comm:
        def __init__(self, members: tuple[int, ...]) -> None:
            mpi.handles += 1
            self.handle, self.members = mpi.handles, members

        def Is_inter(self) -> bool:  # noqa: N802
            return False

        def Get_group(self) -> Group:  # noqa: N802
            return Group(self.members)

        def Get_size(self) -> int:  # noqa: N802
            return len(self.members)

        def Get_rank(self) -> int:  # noqa: N802
            return self.members.index(RANK)

        def Barrier(self) -> None:  # noqa: N802
            """Waits for all."""
            mpi.during()

        def Allreduce(self, sendbuf: Any, recvbuf: Any) -> None:  # noqa: N802
            mpi.during()

        def bcast(self, obj: Any, root: int = 0) -> Any:
            mpi.during()
            return obj

        def Ibarrier(self) -> Any:  # noqa: N802
            return Request()

        def send(self, obj: Any, dest: int, tag: int = 0) -> None:
            mpi.during()

        def recv(self, buf: Any = None, source: int = -2, tag: int = -1, status: Any = None) -> Any:
            mpi.during()

        def irecv(self, buf: Any = None, source: int = -2, tag: int = -1) -> Any:
            return Request()

        def Send_init(self, buf: Any, dest: int, tag: int = 0) -> Any:  # noqa: N802
            return Prequest()

        def Recv_init(self, buf: Any, source: int = -2, tag: int = -1) -> Any:  # noqa: N802
            return Prequest()

        def sendrecv(
            self,
            sendobj: Any,
            dest: int,
            sendtag: int = 0,
            recvbuf: Any = None,
            source: int = -2,
            recvtag: int = -1,
        ) -> None:
            mpi.during()

        def Split(self, members: tuple[int, ...]) -> Any:  # noqa: N802
            mpi.during()
            return Intracomm(members)

        def Free(self) -> None:  # noqa: N802
            pass

    class Intercomm(Comm):
        def Is_inter(self) -> bool:  # noqa: N802
            return True

        def Get_remote_group(self) -> Group:  # noqa: N802
            return Group(self.members)

    class Intracomm(Comm):
        def Spawn(self, command: str, maxprocs: int = 1) -> Intercomm:  # noqa: N802
            mpi.during()
            return Intercomm((-1,) * maxprocs)

    class Request:
        def __init__(self) -> None:
            mpi.handles += 1
            self.handle = mpi.handles

        def wait(self) -> None:
            mpi.during()

        @classmethod
        def waitall(cls, requests: list[Any]) -> None:
            mpi.during()

        @classmethod
        def Waitany(cls, requests: list[Any]) -> None:  # noqa: N802
            mpi.during()

        def Free(self) -> None:  # noqa: N802
            pass

    class Prequest(Request):
        def Start(self) -> None:  # noqa: N802
            mpi.during()

        @classmethod
        def Startall(cls, requests: list[Any]) -> None:  # noqa: N802
            mpi.during()

    class File:
        def __init__(self) -> None:
            mpi.handles += 1
            self.handle = mpi.handles

        @classmethod
        def Open(cls, comm: Comm, filename: str, amode: int = 0) -> Any:  # noqa: N802
            mpi.during()
            return cls()

        def Write_all(self, buf: Any) -> None:  # noqa: N802
            mpi.during()

        def Close(self) -> None:  # noqa: N802
            mpi.during()

    mpi.Group, mpi.Comm, mpi.Intracomm, mpi.Request = Group, Comm, Intracomm, Request
    mpi.Prequest, mpi.File = Prequest, File
    mpi.Intercomm = Intercomm
    mpi._handleof = lambda thing: thing.handle
    mpi.COMM_NULL, mpi.COMM_SELF = Intracomm(()), Intracomm((RANK,))
    mpi.COMM_WORLD = Intracomm(tuple(range(WORLD_SIZE)))
    return mpi
