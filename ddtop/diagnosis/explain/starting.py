"""Pages of the findings before and inside init_process_group: ranks that do not come, or do not
find each other.
"""

from __future__ import annotations

from ddtop.diagnosis.explain.page import Explanation
from ddtop.diagnosis.kinds import Kind

PAGES = (
    Explanation(
        kind=Kind.RANK_MISSING,
        severity="critical; a warning if the rank may run on a host that does not report",
        brief="not started; others wait in init_process_group",
        meaning=(
            "WORLD_SIZE is larger than the number of ranks that were started. The started ranks"
            " wait for the missing ones in init_process_group, by default for 30 minutes (10 with"
            " NCCL), and print nothing."
        ),
        found=(
            (
                "Every process with RANK and WORLD_SIZE reports as soon as it starts. No process"
                " with this rank number has reported on any host, and other ranks have been in"
                " init_process_group for {init_missing_limit_s}."
            ),
            (
                "It is a warning if a variable (SLURM_NNODES, GROUP_WORLD_SIZE) names more hosts"
                " than report here."
            ),
            (
                "Before there are any ranks, torchrun waits for its nodes. The connections to its"
                " store show how many nodes have come. It is a warning after"
                " {init_missing_limit_s}, and critical after {starting.init_missing_critical_s}."
            ),
        ),
        steps=(
            "Count the processes that were started:\nps -eo pid,args | grep SCRIPT",
            (
                "torchrun: --nnodes times --nproc-per-node is the world size. Start torchrun on"
                " every node."
            ),
            (
                "Slurm: use one task per rank, or one torchrun per node, not both:\nsqueue -j ID"
                " -o '%D nodes, %C cpus'"
            ),
            (
                "Started by hand: start a process with the missing RANK, or set WORLD_SIZE to the"
                " number of processes, on all ranks."
            ),
            "The rank may run without DDTOP=1. Then ddtop cannot see it.",
        ),
        before=("mp.spawn(train, args=(4,), nprocs=3)     # world_size=4",),
        after=("mp.spawn(train, args=(world,), nprocs=world)",),
    ),
    Explanation(
        kind=Kind.LATE_TO_INIT,
        severity="critical; a warning while the rank visibly works",
        brief="alive, but not in init_process_group, where others wait",
        meaning=(
            "The rank is alive but has not called init_process_group yet: it imports, prepares"
            " data, or sleeps. The others are inside and wait for it."
        ),
        found=(
            (
                "The rank has reported but has not called init_process_group. Or it is a process"
                " of the same job that has no rank number yet (mp.spawn)."
            ),
            (
                "It is critical if the rank makes no progress at one line and others have been"
                " inside for {starting.wait_s}. While the rank works or imports, or pauses in a"
                " sleep that ends soon, it is a warning after {starting.init_late_warning_s}, which"
                " is shown once it has stood for {brief.stood_s}, and critical after"
                " {starting.init_late_critical_s} or half of the group's timeout."
            ),
        ),
        steps=(
            (
                "The finding names its source line. See what it waits for there:\nddtop stacks JOB"
                " --rank R"
            ),
            "If the import of torch is slow, copy the environment to a local disk of each host.",
            (
                "If one rank downloads or preprocesses data, do that before the job. Or let all "
                "ranks join first, and then wait in a barrier with a long timeout."
            ),
        ),
        before=(
            "if int(os.environ['RANK']) == 0:",
            "    tokenise_everything()                 # 40 minutes",
            "dist.init_process_group('gloo')",
        ),
        after=("dist.init_process_group('gloo', timeout=timedelta(hours=2))",),
    ),
    Explanation(
        kind=Kind.MASTER_UNREACHABLE,
        severity="critical",
        brief="ranks cannot reach the store at MASTER_ADDR",
        meaning=(
            "Rank 0 (or torchrun) opens a store at MASTER_ADDR:MASTER_PORT, and all ranks connect"
            " to it. The ranks named here have no connection to it, or another program holds the"
            " port and they are connected to that program."
        ),
        found=(
            (
                "ddtop reads the sockets of each rank inside init_process_group, and sees which"
                " process of the host listens on that port. The relay also tries to connect, and"
                " notes the result: refused, timed out, no such name, or open."
            ),
            (
                "This must last for {rendezvous.wait_s}, or rank 0 must have found its port in use."
                " If the connection is refused because rank 0 has not started yet, the finding is"
                " rank-missing or late-to-init."
            ),
            (
                "If a torchrun has no ranks yet, and its stack shows that it is connecting to the"
                " store, it is a warning after {starting.init_late_warning_s}, and critical after"
                " {starting.store_dial_critical_s}."
            ),
        ),
        steps=(
            (
                "See which address the ranks use:\nddtop attach JOB, Enter on a rank: MASTER_ADDR,"
                " MASTER_PORT"
            ),
            (
                "Refused: rank 0 listens on another address or port, or has ended.\nss -tlnp |"
                " grep PORT    (on rank 0's host)"
            ),
            (
                "Timed out: the address or port is wrong, or there is a firewall between the"
                " hosts.\nnc -zv ADDR PORT"
            ),
            "No such name: use a name that all hosts can resolve.\ngetent hosts NAME",
            (
                "Another program uses the port: end it, or choose another port. torchrun"
                " --standalone finds a free one."
            ),
            (
                "Do not use localhost as the address of a job on several hosts. On each host it"
                " means that host itself."
            ),
        ),
    ),
    Explanation(
        kind=Kind.PEER_UNREACHABLE,
        severity="critical",
        brief="ranks reach the store, but not each other",
        meaning=(
            "The ranks reach the store and have each other's addresses, but some of these addresses"
            " cannot be reached. A host has several network interfaces, and the library chose one"
            " that the others cannot reach: loopback, a container bridge, a second network card."
        ),
        found=(
            (
                "A rank inside init_process_group has a connection to the store and has been"
                " trying to reach another address for {init_missing_limit_s}. The listening"
                " sockets of the other ranks show whose address it is."
            ),
        ),
        steps=(
            "Which networks do the hosts share?\nip -br addr",
            (
                "Name the shared one on all ranks (for gloo; NCCL uses NCCL_SOCKET_IFNAME):\n"
                "export GLOO_SOCKET_IFNAME=eth0"
            ),
            "The host's own name must not resolve to 127.0.1.1:\ngetent hosts $(hostname)",
            "If the address is right, a firewall may drop the packets:\nnc -zv ADDR PORT",
        ),
        no_demo="it takes two hosts, or interfaces that cannot reach each other",
    ),
    Explanation(
        kind=Kind.DUPLICATE_RANK,
        severity="critical",
        brief="two processes claim the same rank",
        meaning=(
            "Two processes have the same RANK. The group counts only one of them and waits for a"
            " rank number that nobody has, or the second rank 0 fails because the first one uses"
            " the port."
        ),
        found=(
            (
                "Both processes have reported the same rank, and neither is the parent of the "
                "other. The finding appears after {rendezvous.wait_s} in init_process_group, or as "
                "soon as one of them has failed."
            ),
            (
                "Or a child of a rank has been in the job's init_process_group, with the rank's "
                "number, for {rendezvous.wait_s}. A child that makes a group of its own is not a "
                "rank, and is not judged."
            ),
        ),
        steps=(
            (
                "The evidence lists both pids and their parents:\nps -o pid,ppid,lstart,args -p"
                " PID1,PID2"
            ),
            "srun with torchrun: start one task per node (--ntasks-per-node=1).",
            "srun alone: take RANK from SLURM_PROCID and LOCAL_RANK from SLURM_LOCALID.",
            "Started by hand: set a different RANK in each shell.",
        ),
        before=("dist.init_process_group('gloo', rank=0, world_size=2)    # in both",),
        after=("dist.init_process_group('gloo')       # RANK as the launcher sets it",),
    ),
    Explanation(
        kind=Kind.RENDEZVOUS_MISMATCH,
        severity="critical",
        brief="ranks disagree about WORLD_SIZE, store or backend",
        meaning=(
            "To find each other, all ranks need the same WORLD_SIZE, the same MASTER_ADDR and"
            " MASTER_PORT (or init_method) and the same backend. The ranks named here have other"
            " values than most ranks."
        ),
        found=(
            (
                "ddtop compares the environment and arguments of all ranks once a rank has been in"
                " init_process_group for {rendezvous.wait_s}. Different names of one host count as"
                " equal; so do cpu:gloo and gloo."
            ),
            (
                "If the ranks split into two equal halves, the half without rank 0 is at fault,"
                " because rank 0 creates the store."
            ),
        ),
        steps=(
            "The evidence shows the address that each rank uses, and which process listens there.",
            (
                "Set the variables once, in one place for all ranks. If the port is random, let"
                " one rank choose it and send it to all."
            ),
            "torchrun sets all of this by itself.",
        ),
        before=("os.environ['MASTER_PORT'] = str(free_port())    # on every rank",),
        after=("port = os.environ['MASTER_PORT']       # set once, where all are started",),
    ),
    Explanation(
        kind=Kind.STALE_STORE,
        severity="critical",
        brief="the file:// store is old or cannot be used",
        meaning=(
            "With init_method=file://PATH the ranks exchange their addresses in a file. A file"
            " from an earlier run holds the addresses of processes that have ended. Some ranks"
            " then fail with a refused connection, and others wait."
        ),
        found=(
            (
                "Each rank records the file's size, age and owner just before init_process_group."
                " The file is stale if it was not empty, it was older than the job's first"
                " process, and the ranks fail or have not joined for {rendezvous.wait_s}."
            ),
            "If the ranks cannot write to the path, the finding is the same.",
        ),
        steps=(
            "Remove the file and start again:\nrm PATH",
            "Give each run its own file, on a disk that all hosts share.",
            "Remove the file before the ranks start, not in the program itself.",
        ),
        before=("init_method='file:///data/store'",),
        after=("init_method=f'file:///data/store-{os.environ[\"SLURM_JOB_ID\"]}'",),
    ),
    Explanation(
        kind=Kind.NOT_DISTRIBUTED,
        severity="warning",
        brief="every rank trains the same model on its own",
        meaning=(
            "torchrun has started several ranks, but each of them trains as if it were the only"
            " one. There is no process group, so no gradient is averaged. Nothing fails, and the"
            " job pays for N ranks and gets the result of one."
        ),
        found=(
            (
                "Every rank of the job has made {not-distributed.alone_steps} optimizer steps over"
                " at least {not-distributed.alone_s}, and none has called init_process_group. The"
                " parameters' shapes, the optimizer's settings and the seed are the same on all of"
                " them. So is the dataset, if a DataLoader shows it."
            ),
            (
                "Ranks that only read data or predict make no optimizer steps. If models,"
                " settings, seeds or datasets differ, the ranks are meant to train alone. Jobs of"
                " other launchers than torchrun are not judged, because they may use a library"
                " that ddtop does not know."
            ),
        ),
        steps=(
            "See what the program itself says:\nprint(torch.distributed.is_initialized())",
            (
                "accelerate falls back to DistributedType.NO if it finds no GPU, for example after"
                " a failed driver update:\npython -c 'import torch;"
                " print(torch.cuda.is_available())'"
            ),
            "On CPUs you have to tell accelerate so:\naccelerate launch --cpu ...",
            (
                "If you want each rank to train alone:\nddtop mute JOB not-distributed --for 24h"
                " --because 'one model each'"
            ),
        ),
        before=("model = Net().to(device)",),
        after=(
            "dist.init_process_group()",
            "model = DistributedDataParallel(Net().to(device))",
        ),
        no_demo="it takes half a minute of training in which nothing looks wrong",
    ),
    Explanation(
        kind=Kind.VERSION_SKEW,
        severity="warning",
        brief="ranks run different torch, Python or scripts",
        meaning=(
            "The ranks do not run the same code. Two versions may call different collectives, or "
            "call them in a different order. The job then hangs, at the start or later, or the "
            "results differ."
        ),
        found=(
            (
                "Each rank reports its Python, its torch once it is imported, and a digest of its"
                " script. Scripts with different names differ on purpose, so they are not"
                " compared."
            ),
        ),
        steps=(
            "The evidence shows one line per version.",
            (
                "Use one environment for all ranks: the same container, or the same folder on a"
                " shared disk."
            ),
            "Compare the copies of the script:\nsha256sum SCRIPT    (on each host)",
        ),
        no_demo="it takes ranks with two installations of torch or Python",
    ),
)
