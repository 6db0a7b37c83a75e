"""MPI programs that count wrong: one message, one turn, one stop, one neighbour too many or too
few; and some that look so and count right.
"""

import json
import sys
import time

import numpy as np
from mpi4py import MPI

CASES = {
    "one-result-too-many": {
        "story": (
            "The root counts itself among the workers and receives one result more than was sent; "
            "the workers wait for its next parameters."
        ),
        "source": "hpc/mpifileutils#26",
        "expected": ["unmatched-p2p 0", "unmatched-p2p 0,1,2", "wait-cycle 0,1,2"],
        "place": "collect",
        "launcher": "mpirun",
        "needs": ["mpi4py"],
        "cause": [
            r"\b(no|nobody|none|never)\b.{0,60}\b(sends?|sent|message)\b",
            r"any (source|rank|of the)",
            r"(recv|receives?|receive).{0,80}(fewer|more|match|begun)",
            r"in a broadcast|in bcast",
        ],
        "cure": [
            r"extra (message|recv|receive|call)",
            r"\bcounts?\b",
            r"same number",
            r"\bmatch\b",
            r"\bbranch\b",
        ],
    },
    "remainder-left-out": {
        "story": (
            "The root rounds the rows of each rank down to blocks, finds none on rank 2 and "
            "leaves it out; rank 2 sends its rows, the others go on to a barrier."
        ),
        "source": "trixi-framework/Trixi.jl#1366",
        "expected": ["unmatched-p2p 2", "unmatched-p2p 0,2"],
        "place": "gather_by_hand",
        "launcher": "mpirun",
        "needs": ["mpi4py"],
        "cause": [
            r"\bsend\b.{0,120}\bbarrier\b",
            r"\b(no|not|never|without)\b.{0,60}(recv|receives?|received|matching)",
            r"cannot match|does not match|no matching",
        ],
        "cure": [
            r"\bmatch\b",
            r"\bbranch\b",
            r"extra message",
            r"same number",
            r"\bcounts?\b",
        ],
    },
    "one-stop-too-few": {
        "story": (
            "The master of a farm sends one stop too few; the last worker waits for its next task, "
            "the others gather their statistics."
        ),
        "source": "sebp/scikit-learn-mpi-grid-search#3",
        "expected": ["unmatched-p2p 3", "unmatched-p2p 0,3"],
        "place": "work",
        "launcher": "mpirun",
        "world": 4,
        "needs": ["mpi4py"],
        "cause": [
            r"(recv|receive).{0,120}(allgather|collective)",
            r"\b(no|not|never|nobody|without)\b.{0,60}(sends?|sent|matching)",
            r"cannot match|no matching",
        ],
        "cure": [
            r"\bmatch\b",
            r"\bbranch\b",
            r"extra message",
            r"same number",
            r"stop (message|signal)",
            r"\bcounts?\b",
        ],
    },
    "one-turn-more": {
        "story": (
            "Each rank decides by its own residual when to stop; rank 2 exchanges once more, the "
            "others are in the sum that follows."
        ),
        "source": "mpi4py/mpi4py#53",
        "expected": ["collective-mismatch 2", "calls-differ 2"],
        "place": "relax",
        "launcher": "mpirun",
        "needs": ["mpi4py"],
        "cause": [
            r"allgather.{0,200}allreduce",
            r"allreduce.{0,200}allgather",
            r"one (call|allgather|turn|iteration) more",
            r"different (collectives|calls|operations)",
        ],
        "cure": [
            r"\bbranch\b",
            r"\bcondition\b",
            r"(decide|decision)",
            r"own data",
            r"depends on the rank",
        ],
    },
    "two-owners": {
        "story": (
            "Rank 1 takes itself for the owner of the next block and scatters from there; the "
            "others scatter from rank 0."
        ),
        "expected": ["collective-mismatch 1"],
        "place": "hand_out",
        "launcher": "mpirun",
        "needs": ["mpi4py"],
        "cause": [r"\broots?\b", r"(from|by) rank 0.{0,120}(from|by) rank 1"],
        "cure": [
            r"\broots?\b.{0,60}(same|all|every|differ)",
            r"(same|one|all|every).{0,60}\broots?\b",
            r"\bbranch\b",
            r"(decide|decision)",
            r"depends on the rank",
        ],
    },
    "wrong-left-neighbour": {
        "story": (
            "After a new partition rank 2 of a ring receives from rank 0, which sends to rank 1 "
            "only; soon all others wait for what comes before them."
        ),
        "expected": ["wait-cycle 0,2,3", "unmatched-p2p 2", "unmatched-p2p 0,2"],
        "place": "pass_on",
        "launcher": "mpirun",
        "world": 4,
        "needs": ["mpi4py"],
        "cause": [
            r"\bcycle\b",
            r"wait(s|ing)? for each other",
            r"rank 2.{0,80}(from|for) rank 0",
            r"rank 2.{0,80}(from|source|peer) 0",
        ],
        "cure": [
            r"\bmatch\b",
            r"\bneighbou?rs?\b",
            r"\border\b",
            r"\bpeers?\b.{0,60}(line|call|tag)",
        ],
    },
    "slow-workers": {
        "story": "The master waits in recv for workers who need six seconds for each point.",
        "expected": [],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "uneven-rows": {
        "story": (
            "Gatherv of very different counts, of which one is zero at times; the rank with most "
            "rows comes seconds later."
        ),
        "expected": [],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "polling-master": {
        "story": (
            "A master looks for messages with Iprobe while its workers have tasks of one to five "
            "seconds; at the end each gets its stop."
        ),
        "expected": [],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "leaves-its-halo": {
        "story": (
            "A ring of prepared messages that are started in each step; the last rank finds its "
            "own rows good enough and goes to the barrier, the others exchange on."
        ),
        "expected": ["unmatched-p2p 3", "unmatched-p2p 0,2", "wait-cycle 0,1,2,3"],
        "place": ["leaves_its_halo", "exchange"],
        "launcher": "mpirun",
        "world": 4,
        "needs": ["mpi4py"],
        "cause": [
            r"\bbarrier\b.{0,120}\b(recv|send|halo|exchange|waitall)",
            r"(recv|send|waitall).{0,160}\bbarrier\b",
        ],
        "cure": [
            r"\bmatch\b",
            r"\bbranch\b",
            r"has its send",
            r"same (number|iteration|step|order|calls)",
        ],
    },
    "prepared-halo": {
        "story": (
            "The same ring, in four eras with messages prepared anew; each rank pauses for five "
            "seconds once."
        ),
        "expected": [],
        "tolerated": ["not-in-collective"],
        "launcher": "mpirun",
        "world": 4,
        "needs": ["mpi4py"],
    },
}

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
AT, TASK, STOP, BLOCK = 70, 1, 2, 30_000


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def compute(seconds):
    """Some linear algebra, with naps in between."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        np.linalg.svd(np.random.rand(50, 50))
        time.sleep(0.02)


def collect(count):
    return [WORLD.recv(source=MPI.ANY_SOURCE, tag=TASK) for _ in range(count)]


def one_result_too_many():
    """A fit: the root gives parameters to all and takes a residual from each worker."""
    for number in range(100_000):
        parameters = WORLD.bcast([number, 0.5], root=0)
        if RANK:
            time.sleep(0.03)
            WORLD.send(sum(parameters), dest=0, tag=TASK)
            continue
        workers = SIZE - 1
        if number == AT:
            mark()
            workers = SIZE
        collect(workers)


def gather_by_hand(rows, counts):
    """The root receives from each rank that has a block of rows."""
    if RANK:
        if len(rows):
            WORLD.Send(rows, 0, TASK)
        return
    into = np.zeros(4 * BLOCK)
    for peer in range(1, SIZE):
        if counts[peer] // BLOCK:
            WORLD.Recv(into, peer, TASK)


def remainder_left_out():
    """A mesh that is refined; its rows go to the root in each step."""
    for number in range(100_000):
        rows = np.zeros((RANK + 1) * BLOCK)
        if number == AT and RANK == 2:
            rows = rows[: BLOCK - 7000]
            mark()
        gather_by_hand(rows, WORLD.allgather(len(rows)))
        WORLD.Barrier()
        time.sleep(0.03)


def work():
    """Takes tasks until it gets a stop; returns how many there were."""
    done, status = 0, MPI.Status()
    while True:
        point = WORLD.recv(source=0, status=status)
        if status.Get_tag() == STOP:
            return done
        time.sleep(0.02)
        WORLD.send(point * point, dest=0, tag=TASK)
        done += 1


def give_tasks(count):
    """One task for each worker, then another for whoever has answered."""
    status, given = MPI.Status(), 0
    for peer in range(1, SIZE):
        WORLD.send(given, dest=peer, tag=TASK)
        given += 1
    for _ in range(count):
        WORLD.recv(source=MPI.ANY_SOURCE, status=status)
        if given < count:
            WORLD.send(given, dest=status.Get_source(), tag=TASK)
            given += 1


def one_stop_too_few():
    """A farm, and then the statistics of all."""
    if RANK:
        done = work()
    else:
        done = 0
        give_tasks(300)
        mark()
        for peer in range(1, SIZE - 1):
            WORLD.send(None, dest=peer, tag=STOP)
    WORLD.allgather(done)


def relax(boundary, everyone, residual):
    """Exchanges the boundaries until this rank's own residual is small."""
    turns = 0
    while residual > 0.005:
        if turns == 3:
            mark()
        WORLD.Allgather(boundary, everyone)
        residual /= 10
        turns += 1


def one_turn_more():
    """Time steps with an inner iteration, and the energy of all after each."""
    boundary, everyone = np.zeros(16), np.zeros(16 * SIZE)
    energy = np.zeros(1)
    for number in range(100_000):
        time.sleep(0.03)
        relax(boundary, everyone, 8.0 if number == AT and RANK == 2 else 1.0)
        WORLD.Allreduce(np.ones(1), energy)


def hand_out(owner):
    """The owner scatters a block to each rank."""
    block = np.zeros(BLOCK)
    WORLD.Scatter(np.ones(SIZE * BLOCK) if owner == RANK else None, block, root=owner)


def two_owners():
    """Who has least to do owns the next block; rank 1 has read its clock later."""
    for number in range(100_000):
        time.sleep(0.03)
        owner = 0
        if number == AT and RANK == 1:
            mark()
            owner = RANK
        hand_out(owner)
        WORLD.Barrier()


def pass_on(out, left):
    """Sends to the right and receives from the left."""
    into = np.zeros(16)
    WORLD.Sendrecv(out, (RANK + 1) % SIZE, TASK, into, left, TASK)
    return into


def wrong_left_neighbour():
    """A ring; one rank computes its left neighbour anew, and wrongly."""
    values = np.zeros(16)
    for number in range(100_000):
        left = (RANK - 1) % SIZE
        if number == AT and RANK == 2:
            mark()
            left = (RANK - 2) % SIZE
        values = pass_on(values, left)
        time.sleep(0.03)


def slow_workers():
    """Healthy: three rounds of points, for which the workers need seconds."""
    for number in range(3):
        if RANK == 0:
            for peer in range(1, SIZE):
                WORLD.send(number, dest=peer, tag=TASK)
            collect(SIZE - 1)
        else:
            point = WORLD.recv(source=0, tag=TASK)
            compute(6.0 + RANK)
            WORLD.send(point, dest=0, tag=TASK)
    WORLD.Barrier()


def uneven_rows():
    """Healthy: rank 1 has few rows or none, the last rank has many and needs longer."""
    for number in range(6):
        counts = [10, 3 * (number % 2), 200_000]
        compute(0.3 + 3.0 * (RANK == 2))
        rows = np.full(counts[RANK], float(RANK))
        into = np.zeros(sum(counts)) if RANK == 0 else None
        WORLD.Gatherv(rows, (into, counts) if RANK == 0 else None, root=0)
        for _ in range(10):
            WORLD.allreduce(float(number))
            time.sleep(0.02)


def polling_master():
    """Healthy: tasks of different length, and a master that never blocks."""
    if RANK:
        status = MPI.Status()
        while True:
            seconds = WORLD.recv(source=0, status=status)
            if status.Get_tag() == STOP:
                return
            compute(seconds)
            WORLD.send(RANK, dest=0, tag=TASK)
    tasks = [1.0, 5.0, 2.0, 4.0, 1.5, 5.0, 3.0, 2.0]
    idle, busy = list(range(1, SIZE)), 0
    while tasks or busy:
        while idle and tasks:
            WORLD.send(tasks.pop(), dest=idle.pop(), tag=TASK)
            busy += 1
        if WORLD.Iprobe(source=MPI.ANY_SOURCE, tag=TASK):
            idle.append(WORLD.recv(source=MPI.ANY_SOURCE, tag=TASK))
            busy -= 1
        time.sleep(0.05)
    for peer in range(1, SIZE):
        WORLD.send(None, dest=peer, tag=STOP)


def prepare(tag):
    """A send to the right and a receive from the left."""
    rows, ghost = np.zeros(64), np.zeros(64)
    return [
        WORLD.Send_init(rows, (RANK + 1) % SIZE, tag),
        WORLD.Recv_init(ghost, (RANK - 1) % SIZE, tag),
    ]


def exchange(requests):
    MPI.Prequest.Startall(requests)
    MPI.Request.Waitall(requests)


def leaves_its_halo():
    """Each rank decides by its own rows when they are good enough."""
    requests = prepare(TASK)
    for number in range(100_000):
        exchange(requests)
        time.sleep(0.02)
        if RANK == SIZE - 1 and number == AT:
            mark()
            break
    WORLD.Barrier()


def prepared_halo():
    """Healthy: the ranks work for different times, and each of them pauses once."""
    for era in range(SIZE):
        requests = prepare(era)
        for number in range(80):
            exchange(requests)
            time.sleep(0.01 * (1 + RANK))
            if number == 40 and era == RANK:
                compute(5.0)
        for request in requests:
            request.Free()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
