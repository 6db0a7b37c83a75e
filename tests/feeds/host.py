"""Made-up hosts: the processes that `outside_jobs` searches for jobs."""

from ddtop.feeds.outside.jobs import HostProcesses, Process

TRAIN = ("/opt/venv/bin/python3", "-u", "train.py")
TORCHRUN = ("/opt/venv/bin/python3", "/opt/venv/bin/torchrun", "--nproc-per-node", "2", "train.py")


def process(pid, parent=1, argv=TRAIN, *, python=True, state="S", ticks=None, status=None, **env):
    """A process whose start follows the order of the pids."""
    return Process(
        pid,
        parent,
        1000,
        pid if ticks is None else ticks,
        state,
        () if state == "Z" else argv,
        env,
        python and state != "Z",
        exit_status=status,
        started_unix_ns=pid,
    )


def rank(pid, parent, number, size, **more):
    """A rank as torchrun starts it."""
    numbers = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(size)}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return process(pid, parent, **(numbers | place | more))


def host(*processes, talking=(), watched=()):
    """A host with these processes. `talking`: the pids that have a TCP socket of their own."""
    return HostProcesses(
        {one.pid: one for one in processes},
        lambda pid: frozenset({pid}) if pid in talking else frozenset(),
        lambda pid: pid in watched,
    )
