"""Pages of the findings about collectives: ranks wait, and somebody or something does not come."""

from __future__ import annotations

from ddtop.diagnosis.explain.page import Explanation

PAGES = (
    Explanation(
        kind="not-in-collective",
        severity="critical; a warning while the rank works, or stands no longer than before",
        brief="others wait in a collective that these have not joined",
        meaning="A collective ends when every rank of its group has joined it. Some are inside and wait; the ranks at fault are "
        "elsewhere and wait for nobody. At the end torch's timeout blames those that waited.",
        found=(
            "torch's flight recorder numbers the collectives of each group. Side by side the numbers of all ranks show who "
            "has not put in which. Chains of waits, through send and recv too, end at a rank that waits for nobody.",
            "MPI's calls are numbered by ddtop. Who waits in one uses a core for that; on NCCL so does who waits for its GPU "
            "(loss.item()): inside one call for {same_line_s}, its card below {gpu_wait_cap_ratio} of its power cap.",
            "Borne for {still_limit_s} if that rank stands still; up to {still_habit_factor} times what such waits have taken twice before it "
            "is a warning. If it works ({cpu_working_ratio} of a core, or I/O): "
            "{working_limit_s} or {healthy_wait_factor} times the longest wait that ended well, and then a warning up to "
            "{working_critical_s}, or {working_critical_factor} times that wait, at most {timeout_critical_ratio} of the timeout.",
        ),
        steps=(
            "Read where it is instead, and look at all ranks at once:\nddtop stacks JOB",
            "A file, lock, child or service that it waits for: mend that.",
            "A collective, or a new_group, in a branch that only some ranks take: move it out.",
            "Long work of one rank: do it before the group exists, or raise the timeout:\n"
            "init_process_group(..., timeout=timedelta(hours=2))",
        ),
        before=(
            "if rank == 0:",
            "    dist.all_reduce(loss)             # the others never come",
            "    state = fsdp_model.state_dict()   # gathers from all ranks",
            "    torch.save(state, path)",
        ),
        after=(
            "dist.all_reduce(loss)",
            "state = fsdp_model.state_dict()       # all ranks take part",
            "if rank == 0:",
            "    torch.save(state, path)           # one writes",
        ),
    ),
    Explanation(
        kind="left-early",
        severity="critical",
        brief="ranks are done while others need them: uneven inputs",
        meaning="A rank has left its loop, or ended with exit code 0, and others still wait for it in a collective. Most often the "
        "ranks have different numbers of batches, and one ran dry first.",
        found=(
            "The process has ended in good order and others have waited for it for {gone_limit_s}; or it is on its way out of the "
            "interpreter or out of its process group.",
            "Or its DataLoader is exhausted, and those of the waiting ranks have given out more batches.",
            "Peers that fail because its sockets closed are folded under it.",
        ),
        steps=(
            "Print len(loader), or count the batches, on every rank.",
            "Make them equal: drop_last=True, or shards that divide by the world size.",
            "DDP with inputs that stay uneven: Join, as below.",
            "Without DDP: agree on the number before the epoch, all_reduce with MIN.",
            "Only the exit is early (rank 0 hosts the store): a barrier before it.",
        ),
        before=(
            "for batch in loader:          # 103 batches here, 104 there",
            "    model(batch).sum().backward()",
        ),
        after=(
            "from torch.distributed.algorithms.join import Join",
            "with Join([model]):           # model is a DDP module",
            "    for batch in loader:",
            "        model(batch).sum().backward()",
        ),
    ),
    Explanation(
        kind="interpreter-frozen",
        severity="critical; a warning while the call computes",
        brief="a call into C holds the GIL: no Python runs in it",
        meaning="The process lives, but a call into C keeps the interpreter's lock (GIL): neither the training nor any other "
        "thread gets a turn, and others wait for the rank. A call that computes will return; one that sleeps or waits may not.",
        found=(
            "The agent in the rank reports twice a second; it has been silent for {report_silent_s}, and the process is neither "
            "gone nor stopped.",
            "CPU and wait channel come from outside, stacks by a signal, which needs no GIL.",
            "Borne for {still_limit_s} where its CPU stands still; where it computes, the limits of not-in-collective: "
            "a warning up to {working_critical_s}.",
        ),
        steps=(
            "See the C frames below its line:\nddtop stacks JOB --rank R --native",
            "Waiting for the GIL itself: another thread of the rank holds it, the same stacks name it.",
            "An extension of yours: give the GIL up around the long part (Py_BEGIN_ALLOW_THREADS, "
            "py::gil_scoped_release).",
            "Foreign code: run it in a process of its own, or on all ranks at once.",
        ),
        before=('lib = ctypes.PyDLL("libsolver.so")    # keeps the GIL in every call',),
        after=('lib = ctypes.CDLL("libsolver.so")     # lets other threads run',),
    ),
    Explanation(
        kind="collective-mismatch",
        severity="critical",
        brief="at one point the ranks called different collectives",
        meaning="At the same number in the order of a group's collectives the ranks called different things: another operation, "
        "another number of values, another dtype. They cannot meet; what does pass carries wrong numbers.",
        found=(
            "Operation, sizes and dtypes of the open collectives and of the last that ended are compared by number (with gloo "
            "the smaller side passes and is seen one later).",
            "Sizes count only where all ranks must bring the same: all_reduce, broadcast, all_gather, reduce and the like; not in "
            "gather, scatter, all_to_all.",
            "A wait of more than {stopped_limit_s} has to stand. The minority is at fault; without a majority, all.",
        ),
        steps=(
            "The evidence has both sides and each rank's line: look there for a branch, an order or a shape that depends on "
            "the rank's own data.",
            "Other sizes: pad, or gather the sizes first.",
            "Metrics by name: for key in sorted(metrics), never in the order of a set.",
            "Have torch check every call in a short run (slow):\nTORCH_DISTRIBUTED_DEBUG=DETAIL torchrun ...",
        ),
        before=(
            "if loss.isnan():          # on one rank only: it skips backward's",
            "    continue              # all_reduce, and its next call meets that",
            "loss.backward()",
        ),
        after=(
            "bad = loss.isnan().float()",
            "dist.all_reduce(bad)      # now all ranks decide alike",
            "if bad > 0:",
            "    continue",
            "loss.backward()",
        ),
    ),
    Explanation(
        kind="collective-stuck",
        severity="critical",
        brief="all ranks are in one collective and nothing comes back",
        meaning="Every rank of the group has joined the same collective; none is missing, stopped, gone or elsewhere. The fault "
        "lies below the program: a link, a network interface, the driver, a GPU. No rank is blamed.",
        found=(
            "All members have put in the same number of the group, and it has stayed open for {still_limit_s}, or for "
            "{healthy_wait_factor} times the longest wait that ended well.",
            "No member uses CPU or moves bytes: one that still does keeps this silent. On NCCL one may spin whose card is busy at "
            "{gpu_wait_power_ratio} of the power that it computes with, or less.",
            "The same of init_process_group: all ranks are inside, and have stood still for {init_stuck_limit_s} since the last came.",
        ),
        steps=(
            "Links between the hosts: errors and drops, then retransmits and full queues:\nip -s link; ss -tni",
            "Does the backend use the interface that the hosts reach each other by? Name it:\n"
            "NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0",
            "GPUs: an Xid in the kernel log, uncorrected memory errors:\ndmesg | grep -i xid; nvidia-smi -q -d ECC",
            "What the library waits for, in C:\nddtop stacks JOB --native",
            "The next run with NCCL_DEBUG=INFO says which ring and which interface it took.",
        ),
    ),
    Explanation(
        kind="comm-error",
        severity="critical",
        brief="the backend failed or timed out, no rank went first",
        meaning="Torch's process group failed under some ranks: a connection was closed or reset, a collective timed out. No rank "
        "has crashed, been killed or stopped, which would explain it. Who reports the error is not its cause.",
        found=(
            "An error of gloo, NCCL or the store ended ranks that had communicated before, or NCCL reports one of its "
            "connections; {comm_error_after_s} later nothing else has come that explains it.",
            "SIGABRT ended a rank whose collective of NCCL had timed out ({watchdog_ratio} of the timeout): that was torch's watchdog.",
            "The ranks named are those that the error names, that had not joined the collective which timed out, that have left "
            "their group, or are not heard for {report_silent_s}. Where nothing tells, none.",
        ),
        steps=(
            "A timeout with a name: see what that rank did instead. Had it work to do, raise the timeout:\n"
            "init_process_group(..., timeout=timedelta(hours=2))",
            "A closed connection with a name: that rank left its group too early; put a barrier before destroy_process_group.",
            "No name: look at the links between the hosts:\nip -s link; ss -tni; dmesg | tail",
            "After long pauses only: a firewall that forgets idle connections.",
        ),
    ),
    Explanation(
        kind="threads-share-group",
        severity="warning",
        brief="two threads of a rank communicate on one group at once",
        meaning="Two threads of one rank have collectives of one group open at the same time. Which comes first is chance, on each "
        "rank anew: calls that do not belong together meet, give wrong numbers, or never return.",
        found=(
            "Torch's flight recorder tells the thread of each open collective; where it does not, a dump of all threads in which "
            "two are inside collectives and only one group is pending.",
            "Only threads that Python started count: backward passes communicate from autograd's own.",
        ),
        steps=(
            "Give each thread a group of its own, made on all ranks in the same order, as below.",
            "Or let one thread do all communication, and hand it work through a queue.",
            "Logging and asynchronous checkpoints are the usual second thread.",
        ),
        before=("Thread(target=lambda: dist.all_reduce(metrics)).start()", "dist.all_reduce(loss)"),
        after=(
            "side = dist.new_group()                # once, on all ranks",
            "Thread(target=lambda: dist.all_reduce(metrics, group=side)).start()",
            "dist.all_reduce(loss)",
        ),
    ),
)
