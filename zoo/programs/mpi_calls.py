"""Simulations with MPI: nonblocking calls, one-sided windows, communicators of some ranks, and
farms.
"""

import json
import sys
import threading
import time

import numpy as np
from mpi4py import MPI

CASES = {
    "barrier-not-joined": {
        "story": "Rank 2 never starts the nonblocking barrier.",
        "expected": ["not-in-collective 2"],
        "place": "stand",
        "cause": [
            r"\bevent\b|threading\.(py|Event|Condition)",
            "futex",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(who|which|what|should|must)\b.{0,40}\b(sets?|wakes?|notif\w+)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "sum-not-waited": {
        "story": "Rank 0 stands before its nonblocking sum.",
        "expected": ["not-in-collective 0"],
        "place": "stand",
        "cause": [
            r"\bevent\b|threading\.(py|Event|Condition)",
            "futex",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(who|which|what|should|must)\b.{0,40}\b(sets?|wakes?|notif\w+)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "window-fence": {
        "story": "Rank 1 leaves out the fence of a one-sided window.",
        "source": "ofiwg/libfabric#6706",
        "expected": ["not-in-collective 1"],
        "place": "stand",
        "cause": [
            r"\bevent\b|threading\.(py|Event|Condition)",
            "futex",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(who|which|what|should|must)\b.{0,40}\b(sets?|wakes?|notif\w+)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "half-world": {
        "story": "Rank 2 stands before the sum of the even ranks.",
        "source": "firedrakeproject/mpi-pytest#12",
        "expected": ["not-in-collective 2"],
        "place": "stand",
        "cause": [
            r"\bevent\b|threading\.(py|Event|Condition)",
            "futex",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(who|which|what|should|must)\b.{0,40}\b(sets?|wakes?|notif\w+)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "launcher": "mpirun",
        "world": 4,
        "needs": ["mpi4py"],
    },
    "duplicate-missing": {
        "story": "Rank 1 does not come to Comm.Dup.",
        "expected": ["not-in-collective 1"],
        "place": "stand",
        "cause": [
            r"\bevent\b|threading\.(py|Event|Condition)",
            "futex",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(who|which|what|should|must)\b.{0,40}\b(sets?|wakes?|notif\w+)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "root-of-broadcast": {
        "story": "The root of a broadcast stands before it.",
        "source": "mpi4py/mpi4py#53",
        "expected": ["not-in-collective 0"],
        "place": "stand",
        "cause": [
            r"\bevent\b|threading\.(py|Event|Condition)",
            "futex",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(who|which|what|should|must)\b.{0,40}\b(sets?|wakes?|notif\w+)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "synchronous-cycle": {
        "story": "Everybody sends synchronously to the right first.",
        "source": "mpi4py/mpi4py#290",
        "expected": ["wait-cycle 0,1,2"],
        "cause": [
            r"\bcircular|\ba (circle|cycle|ring)\b|\bdeadlock|\beach other\b",
            r"\bwaits? for (rank )?\d[\s\S]{0,80}\bwaits? for (rank )?\d|\d ?-> ?\d",
            r"\b(each|every|all)\b.{0,60}\bwaits?\b.{0,40}\b(next|other|another|for)\b",
            r"\bsynchronous|\brendezvous",
            r"\b(all|each|every|everybody)\b.{0,40}\bs?sends?\b",
            r"\bs?send\w*\b.{0,40}\b(before|first|nobody|none)\b.{0,40}\b(recv|receiv)",
        ],
        "cure": [
            r"\bisend|\birecv|batch_isend|non-?blocking|\bsendrecv",
            r"\b(change|swap|reverse|alternate|break)\b.{0,50}\b(order|cycle|circle)\b",
            r"\b(change|swap|reverse|alternate|break)\b.{0,50}\b(sends?|recvs?)\b",
            r"\b(recv|receives?|receiving)\b.{0,30}\bfirst\b|\bodd\b.{0,40}\beven\b",
        ],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "wrong-tag": {
        "story": "Rank 1 receives with another tag than rank 0 sends.",
        "source": "mphowardlab/relentless#221",
        "expected": ["unmatched-p2p 1", "unmatched-p2p 0,1", "wait-cycle 0,1"],
        "cause": [
            r"\btags?\b",
            r"\b(not|never|no|nothing|different)\b.{0,30}\bmatch",
            r"\b(message|send)\b.{0,60}\b(nobody|other than|does not (take|accept|receive))",
        ],
        "cure": [
            r"\b(compare|check|same|equal|match|agree|fix|use|look)\w*\b.{0,60}\btags?\b",
            r"\btags?\b.{0,40}\b(must|should|agree|match|same|equal)\b|ANY_TAG",
            r"\b(compare|check)\b.{0,50}\b(arguments|both (calls|sides|ends|ranks))\b",
        ],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "probe-for-ever": {
        "story": "Rank 2 probes for a message of rank 0 that was never sent.",
        "expected": ["unmatched-p2p 2", "not-in-collective 2"],
        "cause": [
            r"\b(MPI_)?Probe\b",
            r"\b(no|never|not|nobody)\b.{0,40}\b(sent|sends?|message)\b",
        ],
        "cure": [
            r"\b(check|see|look|find|let|add|which|whether|should|must)\b.{0,60}\b(sends?|sent)\b",
            r"\b(check|see|look|find|let|add|which|whether|should|must)\b.{0,60}\bsender\b",
            r"\b(check|compare|look)\b.{0,60}\b(source|tag|partner|peer)\b",
            r"\bIprobe",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "conditional-output": {
        "story": "Rank 0 gathers where the others go on to a barrier.",
        "expected": ["collective-mismatch 0"],
        "cause": [
            r"\b(different|another|other|not the same)\b.{0,20}\b(collectives?|calls?)\b",
            r"\b(different|another|other|not the same)\b.{0,20}\boperations?\b",
            r"\bgather\b[\s\S]{0,160}\b(allreduce|barrier)\b",
            r"\b(allreduce|barrier)\b[\s\S]{0,160}\bgather\b",
        ],
        "cure": [
            r"\bsame (collectives?|calls?|order|sequence|operations?)\b",
            r"\b(all|every|each)( the)? ranks?\b.{0,60}\b(calls?|reach|enter|take|join|run)\b",
            r"\b(call|reach|enter|run|join)\w*\b.{0,60}\b(on|by|in) (all|every|each)( the)? ranks?",
            r"\b(branch|condition)\b.{0,40}\branks?\b|\branks?\b.{0,30}\b(branch|condition)",
        ],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "raises-alone": {
        "story": "Rank 1 raises, and its interpreter waits in MPI_Finalize.",
        "source": "mpi4py/mpi4py#53",
        "expected": ["rank-crashed 1"],
        "cause": [
            r"\bValueError\b",
            r"\bexception\b|\brais(ed|es)\b|\btraceback\b",
            r"\bFinali[sz]e\b|MPI_Finali[sz]e",
        ],
        "cure": [
            r"\b(read|look|see|check|find)\b.{0,40}\b(traceback|logs?|stderr|output|message)\b",
            r"\bAbort\b|MPI_Abort",
            r"-m mpi4py|\bmpi4py\.run\b",
            r"\b(catch|handle|fix)\b.{0,40}\b(exception|error|ValueError|cause)\b",
        ],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "worker-stands": {
        "story": "Worker 2 of a farm does not come back with its point.",
        "source": "aragilar/pytest-mpi#49",
        "expected": ["not-in-collective 2"],
        "place": "stand",
        "cause": [
            r"\bevent\b|threading\.(py|Event|Condition)",
            "futex",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(who|which|what|should|must)\b.{0,40}\b(sets?|wakes?|notif\w+)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "bursts": {
        "story": "A farm with pauses between bursts, in which the master looks for files.",
        "expected": [],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "probing-master": {
        "story": "A farm whose master probes for messages between bursts.",
        "expected": [],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "waits-for-plan": {
        "story": "Workers wait in a broadcast for the next plan.",
        "expected": [],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "long-solve": {
        "story": "Rank 0 solves for nine seconds, the others wait in a barrier.",
        "source": "open-mpi/ompi#6616",
        "expected": [],
        "tolerated": ["not-in-collective 0"],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "passive-window": {
        "story": "A shared counter in a window that each rank locks in turn.",
        "source": "pmodels/mpich#7118",
        "expected": [],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "uneven-domain": {
        "story": "Parts of different size, and an exchange with both neighbours.",
        "expected": [],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
}

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
AT = 80


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def stand():
    mark()
    threading.Event().wait()


def steps(count=100_000, pause=0.03):
    """A simulation's time steps: a sum over all, then a pause for the work."""
    out = np.zeros(8)
    for step in range(count):
        WORLD.Allreduce(np.ones(8), out)
        time.sleep(pause)
        yield step


def barrier_not_joined():
    """A nonblocking barrier that one rank never starts."""
    for step in steps():
        if step == AT and RANK == 2:
            stand()
        request = WORLD.Ibarrier()
        request.Wait()


def sum_not_waited():
    """A nonblocking sum; one rank goes to a file before it starts its part."""
    out = np.zeros(8)
    for step in steps():
        if step == AT and RANK == 0:
            stand()
        request = WORLD.Iallreduce(np.ones(8), out)
        time.sleep(0.005)
        request.Wait()


def window_fence():
    """A fence of a one-sided window that one rank leaves out."""
    data = np.zeros(16)
    window = MPI.Win.Create(data, comm=WORLD)
    for step in steps():
        if step == AT and RANK == 1:
            stand()
        window.Fence()
        window.Put(np.ones(1), (RANK + 1) % SIZE, RANK)
        window.Fence()


def half_world():
    """A communicator of the even ranks; one of them stands, then the others wait for its group."""
    half = WORLD.Split(RANK % 2, RANK)
    out = np.zeros(4)
    for step in steps():
        if step == AT and RANK == 2:
            stand()
        half.Allreduce(np.ones(4), out)


def duplicate_missing():
    """One rank does not come to Comm.Dup."""
    for step in steps():
        if step == AT:
            if RANK == 1:
                stand()
            WORLD.Dup()


def root_of_broadcast():
    """The root stands before its broadcast."""
    data = np.zeros(1 << 16)
    for step in steps():
        if step == AT and RANK == 0:
            stand()
        WORLD.Bcast(data, root=0)
        WORLD.Barrier()


def synchronous_cycle():
    """Everybody sends synchronously to the right first."""
    out, into = np.ones(4), np.zeros(4)
    for step in steps():
        if step == AT:
            if RANK == 0:
                mark()
            WORLD.Ssend(out, (RANK + 1) % SIZE, 7)
            WORLD.Recv(into, (RANK - 1) % SIZE, 7)


def wrong_tag():
    """The receiver asks for another tag than the sender gives."""
    data = np.zeros(4)
    for step in steps():
        if step == AT:
            if RANK == 0:
                WORLD.Ssend(data, 1, 11)
            elif RANK == 1:
                mark()
                WORLD.Recv(data, 0, 12)


def probe_for_ever():
    """A halo exchange in which one neighbour was left out of the list: its message never comes."""
    data = np.zeros(4)
    for step in steps():
        if RANK == 2 and step == AT:
            mark()
            WORLD.Probe(source=0, tag=99)
            WORLD.Recv(data, 0, 99)


def conditional_output():
    """Only rank 0 writes the collective file: Write_all is called by one rank."""
    for step in steps():
        if step == AT and RANK == 0:
            mark()
            WORLD.gather({"rows": 3}, root=0)
        elif step > AT:
            WORLD.Barrier()


def raises_alone():
    """One rank raises and its interpreter waits in MPI_Finalize."""
    for step in steps():
        if step == AT and RANK == 1:
            mark()
            raise ValueError("negative density")


def worker_of_farm(odd=None):
    """Works until told to stop; a master gives points one by one."""
    status = MPI.Status()
    count = 0
    while True:
        point = WORLD.recv(source=0, status=status)
        if point is None:
            return
        count += 1
        if count == odd:
            stand()
        time.sleep(0.02)
        WORLD.send(point * 2, dest=0)


def farm(rounds, per_round, pause_s, think, odd=None):
    if RANK:
        return worker_of_farm(odd if RANK == 2 else None)
    for _ in range(rounds):
        for number in range(per_round):
            for peer in range(1, SIZE):
                WORLD.send(number, dest=peer)
            for _ in range(1, SIZE):
                WORLD.recv(source=MPI.ANY_SOURCE)
        think(pause_s)
    for peer in range(1, SIZE):
        WORLD.send(None, dest=peer)
    return None


def naps(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.2)


def probes(seconds):
    """Looks whether some worker has an error to report."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        WORLD.Iprobe(source=MPI.ANY_SOURCE)
        time.sleep(0.1)


def bursts():
    """Healthy: a farm with pauses between bursts, in which the master looks for new files."""
    farm(3, 20, 8.0, naps)


def probing_master():
    """Healthy: the same, with a master that probes."""
    farm(3, 20, 8.0, probes)


def waits_for_plan():
    """Healthy: workers wait in a broadcast for the next plan."""
    for number in range(3):
        if RANK == 0:
            naps(8.0)
        plan = WORLD.bcast({"step": number} if RANK == 0 else None, root=0)
        for _ in range(20):
            WORLD.allreduce(plan["step"])
            time.sleep(0.02)


def worker_stands():
    """A worker of the farm does not come back with its point."""
    farm(1000, 20, 0.0, lambda _: None, 60)


def long_solve():
    """Healthy: rank 0 solves for nine seconds with much CPU, the others wait in a barrier."""
    for step in steps(160):
        if step % 80 == 79:
            if RANK == 0:
                until = time.monotonic() + 9
                while time.monotonic() < until:
                    np.linalg.svd(np.random.rand(60, 60))
            WORLD.Barrier()


def passive_window():
    """Healthy: a shared counter in a window that each rank takes with a lock."""
    data = np.zeros(1, dtype="i8")
    window = MPI.Win.Create(data if RANK == 0 else None, comm=WORLD)
    one, got = np.ones(1, dtype="i8"), np.zeros(1, dtype="i8")
    for _ in steps(150):
        window.Lock(0)
        window.Fetch_and_op(one, got, 0, 0, MPI.SUM)
        window.Unlock(0)
    WORLD.Barrier()
    window.Free()


def uneven_domain():
    """Healthy: parts of different size, and an exchange with both neighbours."""
    out, into = np.ones(512), np.zeros(512)
    for _ in steps(150, 0.01):
        time.sleep(0.005 * (RANK + 1))
        WORLD.Sendrecv(out, (RANK + 1) % SIZE, 1, into, (RANK - 1) % SIZE, 1)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
