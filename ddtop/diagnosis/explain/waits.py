"""Pages of the findings about collectives: ranks wait, and somebody or something does not come."""

from __future__ import annotations

from ddtop.diagnosis.explain.page import Explanation
from ddtop.diagnosis.kinds import Kind

PAGES = (
    Explanation(
        kind=Kind.NOT_IN_COLLECTIVE,
        severity="critical; a warning while the rank works or waits as usual",
        brief="others wait in a collective that it has not joined",
        meaning=(
            "A collective ends when every rank of its group has joined it. Some ranks wait inside;"
            " the ranks at fault are elsewhere and wait for nobody. Torch's timeout blames the"
            " ranks that waited."
        ),
        found=(
            (
                "torch's flight recorder numbers the collectives of each group. So ddtop knows"
                " which rank has not enqueued one. Chains of waits end at such a rank."
            ),
            (
                "ddtop numbers the calls of MPI itself. A rank that waits in MPI uses a core; so "
                "does one that waits for its GPU on NCCL (loss.item()): inside one call for "
                "{same_line_s}, its GPU below {gpu_wait_cap_ratio} of its power cap."
            ),
            (
                "No progress: critical after {still_limit_s}; a warning up to {still_habit_factor}"
                " times a wait that has happened twice. At work ({cpu_working_ratio} of a core, or"
                " I/O): after {working_limit_s}, {healthy_wait_factor} times the longest wait that"
                " ended well or {working_habit_factor} times one that came twice; a warning up to"
                " {working_critical_s} or {working_critical_factor} times that wait, at most"
                " {timeout_critical_ratio} of the timeout. I/O with little CPU: up to"
                " {transfer_critical_s}. Checkpoint, validation, compilation: up to"
                " {phase_overdue_factor} times its usual length, {phase_still_limit_s} without CPU."
            ),
        ),
        steps=(
            "Read where it is instead, and look at all ranks at once:\nddtop stacks JOB",
            "It waits for a file, a lock, a child process or a service: fix that.",
            "A collective or new_group is in a branch that only some ranks take: move it out.",
            (
                "Long work of one rank: do it before the group exists, or raise the timeout:\n"
                "init_process_group(..., timeout=timedelta(hours=2))"
            ),
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
        kind=Kind.LEFT_EARLY,
        severity="critical",
        brief="ranks ended while others need them: uneven inputs",
        meaning=(
            "A rank has left its loop, or ended with exit code 0, and others still wait for it in a"
            " collective. Most often the ranks have different numbers of batches, and one ran out"
            " first."
        ),
        found=(
            (
                "The process has ended normally and others have waited for it for {gone_limit_s};"
                " or it is leaving the interpreter or its process group."
            ),
            (
                "Or its DataLoader is exhausted, and the DataLoaders of the waiting ranks have"
                " delivered more batches."
            ),
            "Failures of its peers because its sockets closed belong to this finding.",
        ),
        steps=(
            "Print len(loader), or count the batches, on every rank.",
            "Make them equal: drop_last=True, or shards that divide by the world size.",
            "DDP with inputs that stay uneven: Join, as below.",
            "Without DDP: agree on the number before the epoch, all_reduce with MIN.",
            "Only the exit is early (rank 0 hosts the store): put a barrier before it.",
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
        kind=Kind.INTERPRETER_FROZEN,
        severity="critical; a warning while the call computes",
        brief="C code holds the GIL: no Python runs in the process",
        meaning=(
            "The process lives, but C code holds the interpreter's lock (GIL). No Python thread can"
            " run, and others wait for the rank. A call that computes will return; one that sleeps"
            " or waits may not."
        ),
        found=(
            (
                "The agent in the rank reports twice a second; it has been silent for"
                " {report_silent_s}, and the process is neither gone nor stopped."
            ),
            (
                "The relay reads CPU and wait channel from outside; the place is from the last "
                "report. Stacks are taken automatically only where py-spy can read the memory; on "
                "request also by a signal, which needs no GIL but may end a sleep in C."
            ),
            (
                "After {still_limit_s} if it uses no CPU. If it computes, the limits of "
                "not-in-collective hold: a warning up to {working_critical_s}."
            ),
        ),
        steps=(
            "See the C frames below its line:\nddtop stacks JOB --rank R --native",
            (
                "It waits for the GIL itself: another thread of the rank holds it, and the same"
                " stacks name that thread."
            ),
            (
                "Your own extension: release the GIL around the long part (Py_BEGIN_ALLOW_THREADS, "
                "py::gil_scoped_release)."
            ),
            "Code of others: run it in a process of its own, or on all ranks at the same time.",
        ),
        before=('lib = ctypes.PyDLL("libsolver.so")    # keeps the GIL in every call',),
        after=('lib = ctypes.CDLL("libsolver.so")     # lets other threads run',),
    ),
    Explanation(
        kind=Kind.COLLECTIVE_MISMATCH,
        severity="critical",
        brief="at one point the ranks called different collectives",
        meaning=(
            "At the same number in the order of a group's collectives the ranks called different"
            " things: another operation, another number of values, another dtype. These calls do"
            " not match; if one passes, its numbers are wrong."
        ),
        found=(
            (
                "Operation, sizes and dtypes of the open collectives and of the last that ended are"
                " compared by number (with gloo the smaller side passes and is seen one later)."
            ),
            (
                "Sizes count only where all ranks must pass the same: all_reduce, broadcast, "
                "all_gather, reduce and the like; not in gather, scatter, all_to_all."
            ),
            (
                "A rank must have waited for more than {stopped_limit_s}. The minority is at fault;"
                " without a majority, all ranks are."
            ),
        ),
        steps=(
            (
                "The evidence has both sides and each rank's line: look there for a branch, an"
                " order or a shape that depends on the rank's own data."
            ),
            "Different sizes: pad, or gather the sizes first.",
            "Metrics by name: for key in sorted(metrics), never in the order of a set.",
            (
                "Have torch check every call in a short run (slow):\nTORCH_DISTRIBUTED_DEBUG=DETAIL"
                " torchrun ..."
            ),
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
        kind=Kind.COLLECTIVE_STUCK,
        severity="critical",
        brief="all ranks are in one collective; it does not complete",
        meaning=(
            "Every rank of the group has joined the same collective; none is missing, stopped, gone"
            " or elsewhere. The fault lies below the program: a link, a network interface, the"
            " driver, a GPU. No rank is blamed."
        ),
        found=(
            (
                "All members have enqueued the same collective of the group, and it has been open"
                " for {still_limit_s}, or for {healthy_wait_factor} times the longest wait that"
                " ended well."
            ),
            (
                "No member uses CPU or does I/O: while one does, there is no finding. On NCCL a"
                " member may spin if its GPU is busy at {gpu_wait_power_ratio} of its computing"
                " power draw, or less."
            ),
            (
                "The same for init_process_group: all ranks are inside, and have made no progress "
                "for {init_stuck_limit_s} since the last one entered."
            ),
        ),
        steps=(
            (
                "Links between the hosts: errors and drops, then retransmits and full queues:\nip"
                " -s link; ss -tni"
            ),
            (
                "Does the backend use the interface that the hosts reach each other by? Name it:\n"
                "NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0"
            ),
            (
                "GPUs: an Xid in the kernel log, uncorrected memory errors:\ndmesg | grep -i xid;"
                " nvidia-smi -q -d ECC"
            ),
            "What the library waits for, in C:\nddtop stacks JOB --native",
            "The next run with NCCL_DEBUG=INFO says which ring and which interface it took.",
        ),
    ),
    Explanation(
        kind=Kind.NO_PROGRESS,
        severity="a warning, critical where it lasts; info while the job is idle",
        brief="the job made steps and makes none, and no rule says why",
        meaning=(
            "No rank has made a step, taken a batch or ended a collective for long, and no other"
            " kind of finding fits. Where the ranks are not all at one place, the few that are"
            " elsewhere are marked; the summary has the place of each."
        ),
        found=(
            (
                "A warning after {no_progress_s}, {no_progress_step_factor} usual steps, or"
                " {no_progress_habit_factor} times a pause that has ended twice; critical after"
                " {no_progress_critical_s}. A rule that knows more replaces it."
            ),
            (
                "Critical only after {no_progress_patient_s} where some ranks compute, a checkpoint"
                " is saved, code is compiled, or a server or another process has to answer. Ranks"
                " that all compute are silent up to then, and then an info."
            ),
            (
                "Ranks that count no steps and wait for requests, and masters that poll, are idle"
                " (info)."
            ),
        ),
        steps=(
            "Compare where the ranks are, side by side:\nddtop stacks JOB",
            (
                "Several new_group or send and recv calls: all ranks need the same ones in the same"
                " order."
            ),
            "A lock file: find the process that made it; if it is gone, remove the file.",
            "A question on all ranks (input, getpass): take it out of the program.",
        ),
        before=(
            "if rank != 2:",
            "    a = dist.new_group([0, 1])    # rank 2 does not make it",
            "b = dist.new_group([0, 2])",
        ),
        after=(
            "a = dist.new_group([0, 1])        # all ranks make all groups",
            "b = dist.new_group([0, 2])",
        ),
    ),
    Explanation(
        kind=Kind.COMM_ERROR,
        severity="critical",
        brief="the backend failed or timed out, no rank went first",
        meaning=(
            "Torch's process group failed under some ranks: a connection was closed or reset, or a "
            "collective timed out. No rank has crashed, been killed or been stopped, which would "
            "explain it. The rank that reports the error is not its cause."
        ),
        found=(
            (
                "An error of gloo, NCCL or the store ended ranks that had communicated before, or"
                " NCCL reports one of its connections; {comm_error_after_s} later nothing else has"
                " come that explains it."
            ),
            (
                "SIGABRT ended a rank whose collective of NCCL had timed out ({watchdog_ratio} of"
                " the timeout): that was torch's watchdog."
            ),
            (
                "The ranks named are those that the error names, that had not joined the collective"
                " which timed out, that have left their group, or have not reported for"
                " {report_silent_s}. If nothing names one, no rank is named."
            ),
        ),
        steps=(
            (
                "A timeout with a name: see what that rank did instead. If it had work to do, raise"
                " the timeout:\ninit_process_group(..., timeout=timedelta(hours=2))"
            ),
            (
                "A closed connection with a name: that rank left its group too early; put a barrier"
                " before destroy_process_group."
            ),
            "No name: look at the links between the hosts:\nip -s link; ss -tni; dmesg | tail",
            "After long pauses only: a firewall that forgets idle connections.",
        ),
    ),
    Explanation(
        kind=Kind.THREADS_SHARE_GROUP,
        severity="warning",
        brief="two threads of a rank communicate on one group at once",
        meaning=(
            "Two threads of one rank have collectives of one group open at the same time. Which one"
            " comes first is random on each rank: calls that do not belong together are matched,"
            " give wrong numbers, or never return."
        ),
        found=(
            (
                "Torch's flight recorder gives the thread of each open collective. Where it does"
                " not, ddtop uses a dump of all threads in which two are inside collectives and"
                " only one group is pending."
            ),
            (
                "Only threads that Python started count: backward passes communicate from"
                " autograd's own threads."
            ),
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
