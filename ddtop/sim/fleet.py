"""The fixed data of a simulated job's ranks: hosts, pids, process groups, and small differences
between ranks.
"""

from __future__ import annotations

from random import Random

from ddtop.wire.records import Group, Hello, pack

WORLD_MAX = 1 << 17
LOCAL_SIZE = 8
GROUPED_FROM = 16
"""From this world size on there are tensor-parallel groups (the ranks of a host) and
data-parallel ones (across hosts).
"""
TOLD_BY_ALL_TO = 512
"""Up to this many ranks, each reports all members of its groups. For larger groups only the first
member does, because 65,536 ranks that list each other would be 13 GB."""
WORLD, BACKEND = "0", "nccl"
PER_STEP = _, BUCKETS, LAYERS = (1, 4, 8)
"""All-reduces a step in the default group, the data-parallel one, and the tensor-parallel one
(half of them forward).
"""
DIGITS = 1024
"""Length of the table of random numbers, a power of two."""
SCRIPT, FOLDER = "pretrain.py", "/workspace/pretrain"
FIRST_PID, PIDS_OF_ATTEMPT = 21_000, 900


class SimulatedFleet:
    """The ranks. `spread_by_rank`: they report one by one; in larger jobs the ranks of a host
    report together.
    """

    def __init__(self, world_size: int, seed: int) -> None:
        """Raises ValueError for a size that cannot be simulated."""
        if not 1 <= world_size <= WORLD_MAX:
            raise ValueError(f"{world_size} ranks cannot be simulated: 1 to {WORLD_MAX:,} can")
        self.world_size = world_size
        self.name = f"sim-{world_size}"
        self.local_size = min(LOCAL_SIZE, world_size)
        self.hosts = -(-world_size // LOCAL_SIZE)
        self.grouped = world_size >= GROUPED_FROM
        self.spread_by_rank = world_size <= TOLD_BY_ALL_TO
        random = Random(f"{seed}/fleet")
        self.step_s = random.uniform(0.185, 0.215)
        self.done_steps = random.randrange(8_000, 40_000)
        self.noise = tuple(random.random() for _ in range(DIGITS))
        self.factors = tuple(
            0.97 + 0.06 * self.noise[(rank * 389 + 17) % DIGITS] for rank in range(world_size)
        )
        self._digits = max(3, len(str(self.hosts - 1)))

    def ranks_of(self, host: int) -> range:
        return range(host * LOCAL_SIZE, min((host + 1) * LOCAL_SIZE, self.world_size))

    def host_name(self, host: int) -> str:
        """`node007`."""
        return f"node{host:0{self._digits}d}"

    def sender(self, host: int) -> str:
        """Its identity, as 12 hex digits."""
        return f"51{host:010x}"

    def pid(self, rank: int, attempt: int) -> int:
        """The pid on its host; ranks of other hosts may have the same."""
        return FIRST_PID + PIDS_OF_ATTEMPT * (attempt % 40) + 37 * (rank % LOCAL_SIZE)

    def groups_of(self, rank: int) -> tuple[str, ...]:
        """Names of its process groups: the default one, then data-parallel and tensor-parallel;
        numbers, as torch gives them.
        """
        host, local = divmod(rank, LOCAL_SIZE)
        return (WORLD, str(1 + local), str(1 + LOCAL_SIZE + host)) if self.grouped else (WORLD,)

    def reported_groups(self, rank: int) -> tuple[Group, ...]:
        """Those that this rank reports."""
        host, local = divmod(rank, LOCAL_SIZE)
        every = self.spread_by_rank
        _, data, tensor = self.groups_of(rank) if self.grouped else (WORLD, "", "")
        groups = []
        if every or rank == 0:
            groups.append(pack(Group(WORLD, "default_pg", tuple(range(self.world_size)), BACKEND)))
        if self.grouped and (every or host == 0):
            groups.append(
                pack(
                    Group(
                        data,
                        f"dp_{local}",
                        tuple(range(local, self.world_size, LOCAL_SIZE)),
                        BACKEND,
                    )
                )
            )
        if self.grouped and (every or local == 0):
            groups.append(pack(Group(tensor, f"tp_{host}", tuple(self.ranks_of(host)), BACKEND)))
        return tuple(groups)

    def hello(
        self, rank: int, attempt: int, started_unix_ns: int, init_unix_ns: int | None
    ) -> Hello:
        """The first record of its agent."""
        host, local = divmod(rank, LOCAL_SIZE)
        return Hello(
            job=self.name,
            run="simulated",
            attempt=attempt,
            rank=rank,
            local_rank=local,
            world_size=self.world_size,
            host=self.host_name(host),
            pid=self.pid(rank, attempt),
            start_ticks=1,
            script=SCRIPT,
            argv=(f"{FOLDER}/{SCRIPT}", "--config", "configs/7b.yaml"),
            python="3.11.9",
            torch="2.6.0",
            backend=BACKEND,
            environment={
                "RANK": str(rank),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(self.world_size),
                "LOCAL_WORLD_SIZE": str(self.local_size),
                "GROUP_WORLD_SIZE": str(self.hosts),
                "MASTER_ADDR": self.host_name(0),
                "MASTER_PORT": "29500",
                "TORCHELASTIC_RUN_ID": self.name,
            },
            started_unix_ns=started_unix_ns,
            agent_version="simulated",
            init_unix_ns=init_unix_ns,
        )
