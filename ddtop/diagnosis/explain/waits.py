"""Pages of the findings about collectives: ranks wait for a rank, or for each other."""

from __future__ import annotations

from ddtop.diagnosis.explain.page import Explanation
from ddtop.diagnosis.kinds import Kind

# -- Pages of the findings about collectives: ranks wait, and somebody or something does not come


WAITS = (
    Explanation(
        kind=Kind.NOT_IN_COLLECTIVE,
        severity="critical; a warning while the rank works or waits as usual",
        brief="a rank has not joined a collective; others wait in it",
        meaning=(
            "A collective ends when every rank of its group has joined. Some ranks wait inside;"
            " those at fault have not joined. Torch's timeout names the victims."
        ),
        found=(
            (
                "torch's flight recorder numbers each group's collectives, so ddtop knows which"
                " rank has not enqueued one. Chains of waits end at such a rank."
            ),
            (
                "ddtop numbers MPI calls itself. A rank that waits in MPI, or for its GPU with"
                " NCCL (loss.item()), spins. With NCCL it must be in one call for {same_line_s},"
                " with its GPU below {gpu_wait_cap_ratio} of the power cap."
            ),
            (
                "No progress: critical after {not-in-collective.wait_s}, but nothing for up to"
                " {blame.still_stay_factor} times an earlier stay at its line; a warning for up to"
                " {not-in-collective.still_habit_factor} times a wait that happened twice, and for"
                " {working_critical_s} in a sleep that ends by then, or in short ones"
                " ({short-sleeps.per_s}). At"
                " work ({cpu_working_ratio} of a core, or I/O): a warning after"
                " {blame.working_limit_s}, {healthy_wait_factor} times the longest healthy wait or"
                " {blame.working_habit_factor} times one that happened twice; critical after"
                " {working_critical_s} or {not-in-collective.working_critical_factor} times that"
                " wait, at most {timeout_critical_ratio} of the timeout. I/O with little"
                " CPU or at {transfers.busy_io_bytes_per_s}: critical after"
                " {not-in-collective.transfer_critical_s}. Checkpoint, validation, compilation:"
                " after {phase.overdue_factor} times the longest one; without CPU after"
                " {phase.still_limit_s} or {phase.usual_factor} times it."
            ),
        ),
        steps=(
            "See what it does instead, and compare all ranks:\nddtop stacks JOB",
            "If it waits for a file, a lock, a child process or a service, fix that.",
            ("If only some ranks reach a collective or new_group, fix that branch."),
            (
                "Do long work of one rank before the group exists, or raise the timeout:\n"
                "init_process_group(..., timeout=timedelta(hours=2))"
            ),
        ),
        before=(
            "if rank == 0:",
            "    dist.all_reduce(loss)             # the others never call this",
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
        brief="a rank has ended while others still wait for it",
        meaning=(
            "A rank has left its loop or ended with exit code 0, and others still wait for it in a"
            " collective. Usually the ranks have different numbers of batches, and one rank ran"
            " out first."
        ),
        found=(
            (
                "The process has ended normally and others have waited for it for {gone_limit_s}."
                " Or it is exiting the interpreter or leaving its process group."
            ),
            (
                "Or its DataLoader is exhausted, and the DataLoaders of the waiting ranks have"
                " delivered more batches."
            ),
            "If its peers then fail because its sockets are closed, that is part of this finding.",
            (
                "ddtop speaks of uneven inputs only if a waiting rank has more iterations or"
                " batches, or is in backward. Otherwise only some ranks make that call."
            ),
        ),
        steps=(
            "Print len(loader), or count the batches, on every rank.",
            (
                "Make the numbers equal: use drop_last=True, or a number of shards that the world"
                " size divides."
            ),
            "DDP with inputs that must stay uneven: use Join, as below.",
            (
                "Without DDP: agree on the number of batches before the epoch, with an all_reduce"
                " (MIN)."
            ),
            (
                "If only rank 0 makes a call, such as a gather of a sharded model, make it on all"
                " ranks."
            ),
            (
                "If the rank only exits too early (rank 0 hosts the store), put a barrier before"
                " the exit."
            ),
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
            "The process is alive, but C code holds the interpreter's lock (GIL). No Python thread"
            " can run, and others wait for the rank. A call that computes will return. A call that"
            " sleeps or waits may not."
        ),
        found=(
            (
                "The agent in the rank reports every second. It has not reported for"
                " {report_silent_s}, but the process has neither ended nor stopped."
            ),
            (
                "The relay reads CPU time and wait channel from outside. The source line comes"
                " from the last report. ddtop takes stacks by itself only if py-spy can read the"
                " memory. On request it can also use a signal, which needs no GIL but may end a"
                " sleep in C."
            ),
            (
                "It is reported after {still_limit_s} if the process uses no CPU. If it computes,"
                " the limits of not-in-collective apply: it is a warning for up to"
                " {working_critical_s}."
            ),
        ),
        steps=(
            "See its Python frames, using a signal:\nddtop stacks JOB --rank R --signal",
            "See its C frames:\nddtop stacks JOB --rank R --native",
            (
                "If the thread waits for the GIL itself, another thread of the rank holds it. The"
                " same stacks show that thread."
            ),
            (
                "Your own extension: release the GIL around the long part (Py_BEGIN_ALLOW_THREADS, "
                "py::gil_scoped_release)."
            ),
            "Someone else's code: run it in a separate process, or on all ranks at the same time.",
        ),
        before=('lib = ctypes.PyDLL("libsolver.so")    # keeps the GIL in every call',),
        after=('lib = ctypes.CDLL("libsolver.so")     # lets other threads run',),
    ),
    Explanation(
        kind=Kind.WAITS_FOR_JOB,
        severity="as not-in-collective; a warning where all ranks wait for another job",
        brief="a rank waits for another job, which stands still",
        meaning=(
            "A trainer and its engines, or a policy and its environments, are often jobs of their"
            " own. A rank of this job waits for a rank of another one: for an answer on a"
            " connection, or in a group that both share. That job stands still. The cause is there."
        ),
        found=(
            (
                "On one host ddtop knows both ends of a connection: the rank's thread waits on it,"
                " or shares a group with a store of its own, and the process at its other end is a"
                " rank of another job with DDTOP=1."
            ),
            (
                "For {waits-for-job.wait_s} no rank of that job has made progress, none of their"
                " threads has run, and their processes use no CPU. All of its ranks are on this"
                " host."
            ),
            (
                "If that job moves, the finding about the waiting rank stays, as a warning for a"
                " minute; if it cannot be seen, as it is. If it waits in a collective, and a rank"
                " of this job has made fewer calls than another one in a group that both jobs"
                " share, that rank is named. Where all ranks wait for the other job, it must"
                " stand still for {no_progress_s} ({waits-for-job.asleep_s} in a sleep) and for"
                " {healthy_wait_factor} times the longest healthy wait, and wait for no request."
            ),
        ),
        steps=(
            "See what is wrong in the other job:\nddtop diagnose OTHER",
            "Give waits for another job a timeout, and let them say whom they wait for.",
        ),
        no_demo="it takes two jobs",
    ),
    Explanation(
        kind=Kind.COLLECTIVE_MISMATCH,
        severity="critical",
        brief="ranks called different collectives at the same point",
        meaning=(
            "For the same sequence number of a group, the ranks called different collectives: the"
            " operation, the number of values or the dtype differs. The job hangs, or it computes"
            " wrong numbers."
        ),
        found=(
            (
                "ddtop compares operation, sizes and dtypes of open and recently completed"
                " collectives by sequence number. (With gloo the smaller call completes, so the"
                " difference shows one call later.)"
            ),
            (
                "Sizes are compared only where all ranks must pass the same size: in all_reduce,"
                " broadcast, all_gather, reduce and the like, but not in gather, scatter or"
                " all_to_all."
            ),
            (
                "A rank must have waited for more than {stopped_limit_s}. The minority is at"
                " fault, and so is one rank in a call of another group while several wait for it."
                " If there is no majority, all ranks are at fault."
            ),
            (
                "Each new_group must have the same members on all ranks. Their last 16 are"
                " compared, once a rank waits for {still_limit_s} in one or in its first"
                " collective."
            ),
        ),
        steps=(
            (
                "The evidence shows both calls and the source line of each rank. Look there for a"
                " branch, a call order or a shape that depends on the rank's own data."
            ),
            "If sizes differ, pad the tensors, or gather the sizes first.",
            (
                "Reduce metrics in a fixed order: for key in sorted(metrics), never in the order of"
                " a set."
            ),
            (
                "Have torch check every call in a short run (slow):\nTORCH_DISTRIBUTED_DEBUG=DETAIL"
                " torchrun ..."
            ),
        ),
        before=(
            "if loss.isnan():          # true on one rank: it skips backward's",
            "    continue              # all_reduce, and its next call meets that",
            "loss.backward()",
        ),
        after=(
            "bad = loss.isnan().float()",
            "dist.all_reduce(bad)      # now all ranks decide the same",
            "if bad > 0:",
            "    continue",
            "loss.backward()",
        ),
    ),
    Explanation(
        kind=Kind.CALLS_DIFFER,
        severity="warning, critical once ranks wait",
        brief="a rank made one call more or less than the others",
        meaning=(
            "The ranks of a group must make the same calls in the same order. Here one of them made"
            " calls too many or too few. Calls with the same operation and size still complete, so"
            " the job goes on, with wrong numbers, until one side has no call left. The ranks that"
            " are waited for then are innocent."
        ),
        found=(
            (
                "Each rank notes its turns: calls that follow another call for the first time."
                " Ranks in step make their turns at the same sequence numbers. The first turn that"
                " some members made and others did not is the first difference. A loop that has"
                " made a call equally often each time turns where it makes it more or less often."
            ),
            (
                "A call from another line is no difference if it may replace the call of the"
                " others: only a turn that has changed the number of calls counts. The steps of the"
                " optimizer are compared in the same way, by their lines and the calls between."
            ),
            (
                "It is told after {calls-differ.settled_s}. The smaller side is at fault; if both"
                " sides have equally many ranks, nobody is. The page of the group shows both lines."
            ),
        ),
        steps=(
            (
                "Look at both lines, and for the condition before them: it depends on the rank, its"
                " data or its clock."
            ),
            "Let one rank decide, and broadcast the decision.",
            "A step that is tried again must be tried again on all ranks.",
        ),
        before=(
            "if rank == 0 and step % 60 == 0:",
            "    log_mean(loss)          # has an all_reduce inside",
        ),
        after=(
            "if step % 60 == 0:",
            "    mean = log_mean(loss)   # all ranks call it",
            "    if rank == 0: print(mean)",
        ),
    ),
    Explanation(
        kind=Kind.COLLECTIVE_STUCK,
        severity="critical",
        brief="all ranks are in one collective; it does not complete",
        meaning=(
            "Every rank of the group has joined the same collective. No rank is missing, stopped,"
            " gone or elsewhere. The fault lies below the program: in a link, a network interface,"
            " the driver or a GPU. No rank is blamed."
        ),
        found=(
            (
                "All members have enqueued the same collective of the group, and it has been open"
                " for {collective-stuck.wait_s}, or for {healthy_wait_factor} times the longest"
                " healthy wait."
            ),
            (
                "No member uses CPU or does I/O. With NCCL a member may spin if its GPU is busy"
                " but draws at most {gpu_wait_power_ratio} of the power that it draws when it"
                " computes."
            ),
            (
                "The finding also covers init_process_group: all ranks are inside, and none has"
                " made progress for {peer-unreachable.init_stuck_limit_s} since the last one"
                " entered."
            ),
        ),
        steps=(
            (
                "Check the links between hosts for errors, drops, retransmits and full queues:\nip"
                " -s link; ss -tni"
            ),
            (
                "Make sure that the backend uses the right network interface:\n"
                "NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0"
            ),
            (
                "Check the GPUs for an Xid in the kernel log and uncorrected memory errors:\ndmesg"
                " | grep -i xid; nvidia-smi -q -d ECC"
            ),
            "See where the library waits, in C:\nddtop stacks JOB --native",
            (
                "Set NCCL_DEBUG=INFO for the next run. NCCL then prints which rings and interfaces"
                " it uses."
            ),
        ),
        no_demo="it takes a network or a GPU that loses what all ranks have sent",
    ),
    Explanation(
        kind=Kind.NO_PROGRESS,
        severity="a warning, critical if it lasts; info while the job is idle",
        brief="the job makes no more steps, and no rule knows why",
        meaning=(
            "For a long time no rank has made a step, taken a batch or completed a collective, and"
            " no other kind of finding fits. If a few ranks are at a different place than the"
            " rest, they are marked. The summary says where each rank is."
        ),
        found=(
            (
                "It is a warning after {no_progress_s}, {standstill.no_progress_step_factor} usual"
                " steps, or {standstill.no_progress_habit_factor} times a pause that has happened"
                " twice. It is critical after {standstill.no_progress_critical_s}. A more precise"
                " finding replaces it."
            ),
            (
                "It is critical only after {no_progress_patient_s} if some ranks compute, save a"
                " checkpoint, compile code, or wait for a server or another process. If all ranks"
                " compute, there is no finding before that time, and only an info after it."
            ),
            (
                "A job is idle (info) if its ranks count no steps and wait for requests, or wait"
                " for orders from a rank that waits for requests. If that rank asks for work"
                " itself, the others must have waited {standstill.idle_habit_s} twice, or have"
                " hardly begun; or the wait is shorter than {standstill.idle_stay_factor} times an"
                " earlier stay at that line."
            ),
        ),
        steps=(
            "Compare where the ranks are, side by side:\nddtop stacks JOB",
            (
                "If there are several send and recv calls, all ranks must make them in an order"
                " that fits."
            ),
            (
                "If ranks wait for a lock file, find the process that made it. If that process has"
                " ended, remove the file."
            ),
            "If the program asks the user something (input, getpass), remove that.",
        ),
        before=(
            'if input("overwrite? ") == "y":   # every rank asks, and nobody answers',
            "    save(model)",
        ),
        after=(
            "if args.overwrite:                # decided before the start",
            "    save(model)",
        ),
    ),
    Explanation(
        kind=Kind.COMM_ERROR,
        severity="critical",
        brief="the backend failed or timed out; no rank failed first",
        meaning=(
            "Torch's process group failed on some ranks: a connection was closed or reset, or a "
            "collective timed out. No rank has crashed, been killed or been stopped, so no rank "
            "explains it. The rank that reports the error is not its cause."
        ),
        found=(
            (
                "An error of gloo, NCCL or the store ended ranks that had communicated before, or"
                " NCCL reports an error of a connection. After {comm-error.after_s} nothing else"
                " explains it."
            ),
            (
                "If SIGABRT ends a rank whose NCCL collective has timed out"
                " ({ending.watchdog_ratio} of the timeout), the signal comes from torch's watchdog."
            ),
            (
                "The finding names the ranks that the error mentions, that did not join the"
                " collective before it timed out, that have left their group, or that have not"
                " reported for {report_silent_s}. If there are none, it names no rank."
            ),
        ),
        steps=(
            (
                "If a timeout names a rank, see what that rank did instead. If it had work to do,"
                " raise the timeout:\ninit_process_group(..., timeout=timedelta(hours=2))"
            ),
            (
                "If a closed connection names a rank, that rank left its group too early. Put a"
                " barrier before destroy_process_group."
            ),
            (
                "If no rank is named, check the links between the hosts:\nip -s link; ss -tni;"
                " dmesg | tail"
            ),
            "If it happens only after long pauses, a firewall may drop idle connections.",
        ),
        no_demo="it takes a network that fails while every process stays alive",
    ),
    Explanation(
        kind=Kind.THREADS_SHARE_GROUP,
        severity="warning; critical once the ranks wait because of it",
        brief="two threads of a rank communicate on one group at once",
        meaning=(
            "Two threads of one rank have collectives of one group open at the same time. Their"
            " order is random on each rank, so calls that do not belong together can meet. They"
            " give wrong numbers or never return."
        ),
        found=(
            (
                "Torch's flight recorder names the thread of each open collective. If it does not,"
                " ddtop uses a dump of all threads: it must show two of them inside collectives"
                " while only one group is pending."
            ),
            (
                "Only threads that Python started count, because backward passes communicate from"
                " autograd's own threads."
            ),
        ),
        steps=(
            (
                "Give each thread its own group. Create the groups on all ranks in the same order,"
                " as below."
            ),
            "Or let one thread do all the communication, and pass work to it through a queue.",
            "The second thread is often the one for logging or asynchronous checkpoints.",
        ),
        before=("Thread(target=lambda: dist.all_reduce(metrics)).start()", "dist.all_reduce(loss)"),
        after=(
            "side = dist.new_group()                # once, on all ranks",
            "Thread(target=lambda: dist.all_reduce(metrics, group=side)).start()",
            "dist.all_reduce(loss)",
        ),
    ),
)


# -- Pages of the findings about ranks that wait for each other, and for nobody else


DEADLOCKS = (
    Explanation(
        kind=Kind.WAIT_CYCLE,
        severity="critical",
        brief="ranks wait for each other in a cycle",
        meaning=(
            "Each rank of the cycle waits for the next one, and the last one waits for the first."
            " None of them can continue, whatever other ranks do. No single rank is at fault. The"
            " order of the calls is wrong. The same order may have worked before, with other"
            " timing or smaller messages."
        ),
        found=(
            (
                "Waits in collectives (by number and group) and in send and recv (by peer and tag)"
                " form one graph. A set of ranks that wait for each other and for nobody outside is"
                " a cycle."
            ),
            "The last wait that closed the cycle has lasted for {deadlock.wait_s}.",
            (
                "MPI: a Waitall counts every request that the other side has not begun. A receive"
                " from any source counts once all possible senders are waiting too."
            ),
            (
                "The members of groups that a program makes by hand are not known. Ranks that make"
                " different ones at one store are a cycle if together they fill one of them."
            ),
            "If calls in the cycle can never match, the finding is unmatched-p2p instead.",
        ),
        steps=(
            (
                "The evidence shows one line per rank: its call, the rank that it waits for, and"
                " the source line."
            ),
            (
                "If all neighbours send first, let every second one receive first, or start all"
                " calls together, as below (Sendrecv in MPI). Small messages hide this error,"
                " because a send of a small message returns before anyone receives it."
            ),
            (
                "If there are two groups, make and use them in the same order on all ranks, even if"
                " one of them is used in backward or by a thread. Local groups"
                " (use_local_synchronization) need the same order on the ranks that share them."
            ),
        ),
        before=(
            "dist.send(mine, right)        # all ranks send, nobody receives",
            "dist.recv(theirs, left)",
        ),
        after=(
            "sends = dist.P2POp(dist.isend, mine, right)",
            "receives = dist.P2POp(dist.irecv, theirs, left)",
            "for work in dist.batch_isend_irecv([sends, receives]):",
            "    work.wait()",
        ),
    ),
    Explanation(
        kind=Kind.UNMATCHED_P2P,
        severity="critical",
        brief="a send or recv for which the peer has no matching call",
        meaning=(
            "A rank is in send or recv, and its peer does something that cannot match: the peer is"
            " in a collective that needs this rank, or both are in send and recv with each other"
            " and the tags differ. Neither can continue."
        ),
        found=(
            (
                "ddtop wraps send and recv, and records peer and tag before each call. It compares"
                " them with the peer's own open call and its collectives."
            ),
            (
                "The ranks wait for each other and for nobody outside, for {deadlock.wait_s}. If"
                " the peer only does something else, the finding is not-in-collective, because the"
                " peer may still join. If several ranks wait for one peer in this way, that peer is"
                " named: it has left out its side."
            ),
            (
                "MPI: for each tag, the evidence counts the sends and receives that the two ranks"
                " have begun with each other."
            ),
        ),
        steps=(
            "The finding names both calls with peer, tag and source line. Make them match.",
            (
                "If one rank is in a collective, look for the branch that only one of the two"
                " takes, or for an extra message on one side."
            ),
            (
                "In a pipeline, both stages must use the same number of micro-batches, even in the"
                " last, shorter batch."
            ),
            "Define tags once, as constants, instead of computing them on both sides.",
        ),
        before=(
            "if rank == 0:",
            "    dist.send(x, dst=1, tag=step)",
            "else:",
            "    dist.recv(x, src=0, tag=step + 1)    # a different message",
        ),
        after=(
            "if rank == 0:",
            "    dist.send(x, dst=1, tag=step)",
            "else:",
            "    dist.recv(x, src=0, tag=step)",
        ),
    ),
)
