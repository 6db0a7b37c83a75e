"""Programs by another hand: stolen tasks, boxes not sent, layer drop, mapped tokens, notices,
pools whose initializer raises, servers with one connection; and healthy jobs that look like them.
"""

import asyncio
import contextlib
import copy
import http.client
import http.server
import io
import json
import logging
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

CASES = {
    "forcing-never-waited": {
        "story": (
            "Rank 1 looks again and again into the array of a nonblocking receive, and never "
            "tests or waits for it; without a call of MPI the large message does not come, and "
            "the others wait in a sum."
        ),
        "expected": ["not-in-collective 1"],
        "place": "receive_forcing",
        "cause": [
            r"\bIrecv\b|\brequests?\b|non-?blocking",
            r"\b(time\.)?sleep(s|ing)?\b|nanosleep|\basleep\b",
            r"\bpoll(s|ing|ed)?\b|again and again|\bloops?\b",
            "never (waits?|tests?|completes?|waited|tested|completed)",
            "receive_forcing",
        ],
        "cure": [
            r"\bWait(all|any)?\b|\bTest(all|any)?\b|\bMPI_(Wait|Test)",
            (
                r"(complete|wait for|test|finish)\w* (the|it|this|that|each|every"
                r"|its) ?(request|receive)?"
            ),
            r"\bprogress\b",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "fit-rate": {
        "story": (
            "Each rank decides by the slope of its own rows whether the fit is good enough; rank "
            "1 leaves the loop of Reduce and Bcast and ends."
        ),
        "expected": ["left-early 1"],
        "cause": [
            r"\bfinali[sz]e|\bended\b|\bexit(s|ed)?\b|\bfinished\b|\bends\b",
            r"\b(has|have) left\b|\bleft (early|the loop|its loop)|\bleaves\b",
            r"\b(fewer|less) (calls|steps|iterations|rounds|batches)",
        ],
        "cure": [
            r"\bsame (collectives?|calls?|order|sequence|operations?|number)\b",
            (
                r"\b(all|every|each)( the)? ranks?\b.{0,60}\b(calls?|reach|enter|take|join|run"
                r"|make|save)\b"
            ),
            (
                r"\b(call|reach|enter|run|join|make)\w*\b.{0,60}\b(on|by|in) (all|every"
                r"|each)( the)? ranks?"
            ),
            r"\b(branch|condition|decision|decide)\w*\b.{0,60}\branks?\b",
            r"\branks?\b.{0,60}\b(branch|condition|decision|decide)",
            r"\b(all_?reduce|share|agree|broadcast|bcast)\w*\b",
            (
                r"\b(stop|break|end|leave|finish)\w*\b.{0,60}\b(together|same|all ranks"
                r"|every rank)"
            ),
            (
                r"\b(why|where|what)\b.{0,60}\b(left|leaves?|end(s|ed)?|exit(s|ed)?|return(s"
                r"|ed)?)\b"
            ),
        ],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "all-steal": {
        "story": (
            "In a round with few tasks all three ranks ask the next one for a task at the same "
            "time, and none answers while it waits for its own answer."
        ),
        "expected": ["wait-cycle 0,1,2"],
        "place": "steal_task",
        "cause": [
            r"\bcycle\b|\bcircle\b|\bdeadlock|\beach other\b|\bring\b",
            r"\b(wait|recv|receive)\w*\b.{0,80}\b(from|for) (rank )?[012]\b",
            r"\bevery(body|one)?\b.{0,40}\b(recv|receiv|wait)",
        ],
        "cure": [
            r"\bIrecv\b|\birecv\b|non-?blocking|\bIprobe\b|\biprobe\b",
            r"\bsendrecv\b",
            r"\b(order|before|first)\b",
            r"\b(answer|serve|reply|send|receive)\w*\b.{0,60}\b(while|before|first|other)\b",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "nothing-found": {
        "story": (
            "Rank 0 receives the boxes of each rank; rank 2 has found nothing, sends nothing, and "
            "goes on to the next step."
        ),
        "expected": ["unmatched-p2p 0", "unmatched-p2p 0,2"],
        "place": "collect_boxes",
        "cause": [
            r"\bno (matching|such|fitting)\b|\bunmatched\b|\bdoes not match\b|\bnot matched\b",
            r"\b(recv|receive|receives)\w*\b.{0,80}\b(from|of|for) (rank )?2",
            r"\b(never|not|without|nobody)\b.{0,40}\b(sent|send|sends)\b",
            r"\brank 2\b.{0,80}\b(all_?reduce|send)",
        ],
        "cure": [
            r"\b(both|two) (sides|ranks|ends|peers)\b",
            (
                r"\b(send|sends)\b.{0,60}\b(empty|none|nothing|number|count|every|always"
                r"|each)\b|\bempty\b"
            ),
            r"\b(matching|fitting|same) (send|recv|receive|call|rank|tag|order)",
            r"\bgather_object\b|\bevery (send|recv|receive)",
            r"\b(send|recv|receive)\b.{0,60}\b(branch|condition|skip|missing)",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
    },
    "backward-of-three": {
        "story": (
            "The last stage of a pipeline waits for three micro-batches before it sends a "
            "gradient, the first stage sends only two ahead."
        ),
        "expected": ["wait-cycle 0,1"],
        "place": [
            "first_stage",
            "take_gradient",
            "last_stage",
        ],
        "world": 2,
        "cause": [
            r"\bcycle\b|\bcircle\b|\bdeadlock|\beach other\b",
            r"\bboth\b.{0,60}\b(recv|receive|wait)",
            r"\b(wait|recv|receive)\w*\b.{0,80}\b(from|for) (rank )?[01]\b",
        ],
        "cure": [
            r"\b(order|before|first)\b",
            r"\birecv\b|\bisend\b|batch_isend_irecv|non-?blocking",
            r"\b(send)\w*\b.{0,60}\b(before|first|while|earlier)",
            r"\bmicro-?batch|schedule|warm-?up",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
    },
    "layer-drop": {
        "story": (
            "Random numbers say which sharded layers are left out in a step; rank 2 has used one "
            "of them for its noise and leaves out others."
        ),
        "expected": ["collective-mismatch 2", "calls-differ 2"],
        "place": ["layer_drop", "forward"],
        "cause": [
            (
                r"\b(different|another|other|not the same)\b.{0,30}\b(collectives?|calls?"
                r"|operations?)\b"
            ),
            r"\b(one|an?) (call|collective|operation)\w* (more|less|fewer|extra|too)\b",
            r"\b(left|leaves|leave) out\b|\bskip(s|ped)?\b|\bmissed\b|\bwithout the\b",
            r"\b(extra|additional|surplus)\b.{0,30}\b(call|collective|operation)",
            r"\b_?all_?gather\w*\b[\s\S]{0,200}\breduce_?scatter",
            r"\breduce_?scatter\w*\b[\s\S]{0,200}\ball_?gather",
        ],
        "cure": [
            r"\bsame (collectives?|calls?|order|sequence|operations?|number)\b",
            (
                r"\b(all|every|each)( the)? ranks?\b.{0,60}\b(calls?|reach|enter|take|join|run"
                r"|make|save)\b"
            ),
            (
                r"\b(call|reach|enter|run|join|make)\w*\b.{0,60}\b(on|by|in) (all|every"
                r"|each)( the)? ranks?"
            ),
            r"\b(branch|condition|decision|decide)\w*\b.{0,60}\branks?\b",
            r"\branks?\b.{0,60}\b(branch|condition|decision|decide)",
            r"\bseed|random|\bRNG\b|\bdice\b",
            r"\b(all|every|each) ranks?\b.{0,60}\b(layers?|modules?|forward|branch)\b",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
    },
    "tokens-rewritten": {
        "story": (
            "The tool that prepares the tokens anew cuts the file that rank 1 has mapped, and the "
            "next read of it is SIGBUS."
        ),
        "expected": ["rank-killed 1"],
        "cause": [
            r"SIGBUS|bus error|signal 7\b|(?<!\w)-7\b|(code|status):? 135\b",
            r"\bmmap|\bmapped\b|\btruncat|/dev/shm",
        ],
        "cure": [
            (
                r"\bmmap|\bmapped\b|\bmemmap\b|\btruncat|\bshorter\b|/dev/shm|\bshm\b|disk"
                r"|\bfile\b"
            ),
            r"core (dump|file)|coredumpctl|\bgdb\b|faulthandler|ulimit -c|dmesg",
        ],
    },
    "profiler-attached": {
        "story": "A profiler has attached to all threads of rank 1 and does not let them go on.",
        "expected": ["rank-stopped 1"],
        "cause": [
            (
                r"ptrace|\btraced?\b|\btracing\b|\btracer\b|debugger|\bgdb\b|py-spy|strace"
                r"|\battached\b|profiler"
            )
        ],
        "cure": [
            (
                r"\bdetach|\bquit\b|\bend\b|\bkill\b|\bclose\b|\bstop\b|let (it|them) (go|run)"
                r"|\bcontinue\b"
            ),
            r"\bTracerPid\b|/proc/\S+/status",
        ],
    },
    "evaluation-in-try": {
        "story": (
            "An evaluation that fails is logged and the training goes on; on rank 1 alone a file "
            "cannot be decoded, so it leaves out the gather of the scores."
        ),
        "source": "sgl-project/sglang#34910",
        "expected": ["exception-swallowed 1", "collective-mismatch 1"],
        "place": [
            "evaluation_in_try",
            "evaluate",
            "read_answers",
            "train_step",
            "average_gradients",
        ],
        "cause": [
            r"UnicodeDecodeError|\bexception\b|\bcaught\b|\bswallow|\bexcept\b|\braised\b",
            (
                r"\b(different|another|other|not the same)\b.{0,30}\b(collectives?|calls?"
                r"|operations?)\b"
            ),
            r"\b(one|an?) (call|collective|operation)\w* (more|less|fewer|extra|too)\b",
            r"\b(left|leaves|leave) out\b|\bskip(s|ped)?\b|\bmissed\b|\bwithout the\b",
            r"\b(extra|additional|surplus)\b.{0,30}\b(call|collective|operation)",
        ],
        "cure": [
            r"\bre-?raise|\braise\b|\bexcept\b|\bcatch\b|\btry\b|\bexception\b",
            r"\ball_?reduce\w*\b.{0,60}\b(flag|success|fail|error)",
            r"\bsame (collectives?|calls?|order|sequence|operations?|number)\b",
            (
                r"\b(all|every|each)( the)? ranks?\b.{0,60}\b(calls?|reach|enter|take|join|run"
                r"|make|save)\b"
            ),
            (
                r"\b(call|reach|enter|run|join|make)\w*\b.{0,60}\b(on|by|in) (all|every"
                r"|each)( the)? ranks?"
            ),
            r"\b(branch|condition|decision|decide)\w*\b.{0,60}\branks?\b",
            r"\branks?\b.{0,60}\b(branch|condition|decision|decide)",
        ],
    },
    "checkpoint-thread": {
        "story": (
            "A thread of each rank gathers for its checkpoint in the group in which the main "
            "thread reduces gradients; on rank 1 the thread comes first, elsewhere the main "
            "thread."
        ),
        "expected": ["threads-share-group 0,1,2"],
        "place": [
            "write_checkpoint",
            "average_gradients",
            "train_step",
        ],
        "cause": [r"\bthreads?\b"],
        "cure": [
            (
                r"\b(own|separate|another|second|new|other) (process )?(group|communicator)"
                r"|new_group"
            ),
            r"\bjoin\w*\b.{0,40}\bthread|\bthread\b.{0,60}\bjoin",
            r"\b(one|main|same|single) thread\b|\block\b|without a? ?collective",
        ],
    },
    "vocabulary-after-join": {
        "story": (
            "Rank 0 writes the vocabulary once the ranks have joined; the others look for it "
            "before they join."
        ),
        "expected": ["late-to-init 1,2"],
        "place": "wait_for_vocabulary",
        "cause": [
            r"\b(time\.)?sleep(s|ing)?\b|nanosleep|\basleep\b",
            r"\bpoll(s|ing|ed)?\b|again and again|\bloops?\b",
            r"\bfile\b|\bexists\b|vocabulary|\bstat\b",
        ],
        "cure": [
            r"\b(before|after)\b.{0,60}\b(init_process_group|join|init)",
            r"\bwho(ever)?\b.{0,40}\b(writes?|makes?|creates?)\b|\bfile\b",
            (
                r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
                r"|deadline)"
            ),
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
    },
    "rolls-back": {
        "story": (
            "Each rank goes back to its best weights when its own loss jumps; a hard batch of "
            "rank 2 does that to rank 2 alone."
        ),
        "expected": ["diverged 2"],
        "cause": [
            (
                r"load_state_dict|\bstate[_ ]?dict\b|\bloaded\b|checkpoint|restor|roll(ed"
                r"|s)? back|copied|copy_"
            ),
            (
                r"(changed|written|modified|set|replaced|overwritten) (in place|outside|by hand"
                r"|beside|between)"
            ),
            (
                r"(another|a different|an(other)? extra|its own|other) (update|step|change"
                r"|weights|parameters|values)"
            ),
        ],
        "cure": [
            "load_state_dict|checkpoint|restor|roll back",
            "broadcast.*(parameters|weights|state)",
            "(same|every|each|all).{0,60}(update|step|change|decision|rank)",
            "(only some|not all|one) ranks?",
            r"\bagree|\ball_?reduce",
        ],
    },
    "initializer-raises": {
        "story": (
            "The initializer of rank 2's pool finds no file and raises; the pool starts new "
            "processes for ever, and the map never gives its result."
        ),
        "expected": ["not-in-collective 2"],
        "place": "annotate",
        "cause": [
            r"pool\.py|\bpool\b|multiprocessing",
            (
                r"(child|children|worker|helper|process)\w*\b.{0,60}(end|exit|die|dead|gone"
                r"|crash|fail|restart|replaced|raise)"
            ),
            r"FileNotFoundError|\binitiali[sz]er\b",
        ],
        "cure": [
            (
                r"ProcessPoolExecutor|concurrent\.futures|BrokenProcessPool|map_async"
                r"|\binitiali[sz]er\b"
            ),
            (
                r"(look|see|check|read|find)\w*\b.{0,60}(worker|child|process(?! group)|pool"
                r"|stderr|traceback|output|log)"
            ),
            (
                r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
                r"|deadline)"
            ),
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
    },
    "connection-kept": {
        "story": (
            "A small server serves one connection after the other; rank 1 keeps its connection "
            "open, and rank 2 waits for its answer."
        ),
        "expected": ["not-in-collective 2"],
        "place": "fetch_manifest",
        "cause": [
            (
                r"socket|recv\b|connection|sk_wait|\bpeer\b|\bhttp\b|\bserver\b|127\.0\.0\.1"
                r"|\bTCP\b"
            ),
            "network",
        ],
        "cure": [
            (
                r"\bserver\b|\bservice\b|\bpeer\b|other (end|side)|\bss\b|\blsof\b|netstat"
                r"|\bclose\b|keep-?alive"
            ),
            (
                r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
                r"|deadline)"
            ),
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
    },
    "notice-to-one": {
        "story": (
            "The notice that the machine will be taken away is a signal to rank 1 alone, which "
            "leaves its loop and saves with a call that all ranks must make."
        ),
        "source": "Lightning-AI/pytorch-lightning#20825",
        "expected": ["collective-mismatch 1"],
        "place": ["save_and_leave", "notice_to_one"],
        "cause": [
            (
                r"\b(different|another|other|not the same)\b.{0,30}\b(collectives?|calls?"
                r"|operations?)\b"
            ),
            r"\b(one|an?) (call|collective|operation)\w* (more|less|fewer|extra|too)\b",
            r"\b(left|leaves|leave) out\b|\bskip(s|ped)?\b|\bmissed\b|\bwithout the\b",
            r"\b(extra|additional|surplus)\b.{0,30}\b(call|collective|operation)",
            r"\bSIGUSR1\b|\bsignal\b",
            r"\bdcp\b|checkpoint|\bsav(e|es|ing)\b",
        ],
        "cure": [
            r"\bsame (collectives?|calls?|order|sequence|operations?|number)\b",
            (
                r"\b(all|every|each)( the)? ranks?\b.{0,60}\b(calls?|reach|enter|take|join|run"
                r"|make|save)\b"
            ),
            (
                r"\b(call|reach|enter|run|join|make)\w*\b.{0,60}\b(on|by|in) (all|every"
                r"|each)( the)? ranks?"
            ),
            r"\b(branch|condition|decision|decide)\w*\b.{0,60}\branks?\b",
            r"\branks?\b.{0,60}\b(branch|condition|decision|decide)",
            r"\bSIGUSR1\b|\bsignal\b",
            r"\ball_?reduce\w*\b.{0,60}\b(flag|stop|decision)|\bagree",
            r"\b(save|checkpoint)\w*\b.{0,60}\b(all|every) ranks?",
        ],
    },
    "notice-agreed": {
        "story": (
            "One rank gets a notice; all agree to save, rank 0 packs the checkpoint for six "
            "seconds, and all load it and go on."
        ),
        "expected": [],
        "tolerated": ["not-in-collective 0"],
    },
    "unequal-tokens": {
        "story": (
            "Experts get very unequal numbers of tokens in an exchange of all with all, at times "
            "none."
        ),
        "expected": [],
    },
    "outer-rounds": {
        "story": (
            "For three seconds at a time each rank makes inner steps by the clock, one half as "
            "many as the others; then they meet in an outer step."
        ),
        "expected": [],
    },
    "loads-in-turn": {
        "story": (
            "The ranks read their shards one after the other, three seconds each: the next waits "
            "for a key of the store, the others in a monitored barrier."
        ),
        "expected": [],
        "tolerated": [
            "not-in-collective 1,2",
            "not-in-collective 1",
            "not-in-collective 2",
        ],
    },
    "last-rank-judges": {
        "story": (
            "The last rank has answers judged by programs for nine seconds, which it starts in an "
            "event loop; the others wait for its broadcast."
        ),
        "expected": [],
        "tolerated": ["not-in-collective 2"],
    },
    "tokenizer-restarts": {
        "story": (
            "The process that tokenizes for rank 1 ends with code 75 when it has used too much "
            "memory, and is started again each time."
        ),
        "expected": [],
        "world": 2,
    },
    "trials-in-database": {
        "story": (
            "All ranks write their trials to one database, which rank 0 locks for five seconds; "
            "the others catch the error and try again."
        ),
        "expected": [],
        "tolerated": [
            "not-in-collective 0",
            "not-in-collective 1",
            "not-in-collective 2",
            "not-in-collective 0,1",
            "not-in-collective 0,2",
            "not-in-collective 1,2",
        ],
    },
    "steals-and-serves": {
        "story": (
            "Ranks steal tasks from each other and answer while they wait; some tasks take four "
            "seconds."
        ),
        "expected": [],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "actor-and-learners": {
        "story": (
            "Rank 2 plays for one to three seconds and sends its game; the others learn from it "
            "in a group of their own, and wait for the next."
        ),
        "expected": [],
    },
}


def mark():
    """The fault begins."""
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def work(seconds):
    """Work of the CPU for about that long."""
    until = time.monotonic() + seconds
    values = torch.full((96, 96), 0.01)
    while time.monotonic() < until:
        values = torch.tanh(values @ values)
    return values


def shared_folder():
    """A folder of this job, the same on all ranks."""
    told = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(told, src=0)
    return Path(told[0])


def average_gradients(model):
    """The gradients' mean over all ranks."""
    for weights in model.parameters():
        dist.all_reduce(weights.grad)
        weights.grad /= dist.get_world_size()


def train_step(model, optimizer, rows):
    """A plain step of data-parallel training."""
    work(0.02)
    optimizer.zero_grad()
    loss = model(rows).square().mean()
    loss.backward()
    average_gradients(model)
    optimizer.step()
    return loss.item()


def small_model():
    """A model, the same on all ranks, and its optimizer."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


# Ocean model: the values of the atmosphere come from rank 0.


def receive_forcing(values, overlap):
    """The next wind field, of which the last value is set when it has come."""
    from mpi4py import MPI

    values[-1] = np.nan
    request = MPI.COMM_WORLD.Irecv(values, source=0, tag=5)
    if not overlap:
        request.Wait()
        return
    while np.isnan(values[-1]):
        time.sleep(0.005)


def forcing_never_waited():
    """Rank 1 looks for values in the array of a receive that it never completes."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    wind = np.zeros(300_000)
    energy, total = np.zeros(1), np.zeros(1)
    for step in range(100_000):
        if world.rank == 0:
            wind[:] = step
            sent = world.Isend(wind, dest=1, tag=5)
        elif world.rank == 1:
            if step == 60:
                mark()
            receive_forcing(wind, overlap=step >= 60)
        work(0.03)
        energy[0] = np.abs(wind[:1000]).mean()
        world.Allreduce(energy, total)
        if world.rank == 0:
            sent.Wait()


def fit_rate():
    """Each rank fits a rate to its own rows; rank 1 is content and leaves the loop."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    draw = np.random.default_rng(world.rank)
    rate, slope, total = np.array([4.0]), np.zeros(1), np.zeros(1)
    for step in range(100_000):
        work(0.03)
        noise = 0.0 if world.rank == 1 and step >= 60 else 0.1 + draw.random()
        slope[0] = noise + 1e-6 * rate[0]
        world.Reduce(slope, total, op=MPI.SUM, root=0)
        if world.rank == 0:
            rate -= 0.001 * total
        world.Bcast(rate, root=0)
        if abs(slope[0]) < 1e-3:
            mark()
            break
    print(f"rank {world.rank}: {rate[0]:.4f}", flush=True)


ASK, GIVE = 1, 2


def serve_thieves(world, tasks):
    """Gives a task, or none, to each rank that asks."""
    while world.iprobe(tag=ASK):
        thief = world.recv(tag=ASK)
        world.send(tasks.pop() if len(tasks) > 1 else None, dest=thief, tag=GIVE)


def finish_round(world, tasks):
    """Waits for the others, and serves them meanwhile."""
    done = world.Ibarrier()
    while not done.Test():
        serve_thieves(world, tasks)
        time.sleep(0.001)


def steal_task(world):
    """A task of the next rank."""
    victim = (world.rank + 1) % world.size
    world.send(world.rank, dest=victim, tag=ASK)
    return world.recv(source=victim, tag=GIVE)


def all_steal():
    """A rank with fewer tasks than the mean of the round before steals one from the next."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    usual = 6.0
    for number in range(100_000):
        if number < 6:
            tasks = [0.03] * (2 if number % world.size == world.rank else 8)
        else:
            tasks = [0.03] * 4
        if len(tasks) < usual:
            if number == 6 and world.rank == 0:
                mark()
            got = steal_task(world)
            tasks += [got] if got else []
        count = len(tasks)
        while tasks:
            work(tasks.pop())
            serve_thieves(world, tasks)
        finish_round(world, tasks)
        usual = world.allreduce(count) / world.size


def steals_and_serves():
    """Healthy: a thief answers others while it waits, and some tasks take seconds."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    draw = random.Random(world.rank)
    for number in range(5):
        tasks = [0.05] * draw.randrange(3, 20)
        if number % world.size == world.rank:
            tasks.append(4.0)
        hungry = True
        while tasks or hungry:
            if tasks:
                work(tasks.pop(0))
                serve_thieves(world, tasks)
                continue
            victim = (world.rank + 1) % world.size
            world.send(world.rank, dest=victim, tag=ASK)
            answer = world.irecv(source=victim, tag=GIVE)
            came, task = answer.test()
            while not came:
                serve_thieves(world, tasks)
                time.sleep(0.002)
                came, task = answer.test()
            hungry = task is not None
            tasks += [task] if hungry else []
        finish_round(world, tasks)
        if world.rank == 0:
            print(f"round {number} is done", flush=True)


# A detector whose finds are collected now and then.


def find_objects(step):
    """The boxes of the rank's pictures; from step 60 on the last rank has empty pictures."""
    rank = dist.get_rank()
    if rank == dist.get_world_size() - 1 and step >= 60:
        return []
    return [(rank, step, number) for number in range(3)]


def collect_boxes(boxes):
    """All boxes on rank 0."""
    if dist.get_rank() == 0:
        for source in range(1, dist.get_world_size()):
            theirs = [None]
            dist.recv_object_list(theirs, src=source)
            boxes += theirs[0]
    elif boxes:
        dist.send_object_list([boxes], dst=0)
    return boxes


def nothing_found():
    """A rank that has found nothing sends nothing, and rank 0 waits for it."""
    model, optimizer = small_model()
    for step in range(100_000):
        train_step(model, optimizer, torch.randn(8, 16))
        if step % 20 == 19:
            boxes = find_objects(step)
            if not boxes:
                mark()
            collect_boxes(boxes)


# A pipeline of two stages.


def first_stage(layer, batch):
    """One micro-batch is ahead; the next is sent when a gradient has come."""
    outputs, sent = [], []
    for number, rows in enumerate(batch):
        if number >= 2:
            take_gradient(outputs.pop(0))
        out = layer(rows)
        outputs.append(out)
        sent.append(dist.isend(out.detach().contiguous(), 1))
    for out in outputs:
        take_gradient(out)
    for one in sent:
        one.wait()


def take_gradient(out):
    """The backward of the first stage, for one micro-batch."""
    gradient = torch.empty_like(out)
    dist.recv(gradient, 1)
    out.backward(gradient)


def last_stage(layer, count, together):
    """Backward for `together` micro-batches at once."""
    waiting = []
    for _ in range(count):
        rows = torch.empty(8, 32)
        dist.recv(rows, 0)
        waiting.append(rows.requires_grad_())
        if len(waiting) == together:
            work(0.005)
            sum(layer(one).square().mean() for one in waiting).backward()
            for one in waiting:
                dist.send(one.grad, 0)
            waiting.clear()


def backward_of_three():
    """From step 60 on the last stage waits for three micro-batches, the first for a gradient."""
    rank = dist.get_rank()
    layer = torch.nn.Linear(16, 32) if rank == 0 else torch.nn.Linear(32, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    for step in range(100_000):
        optimizer.zero_grad()
        if rank == 0:
            work(0.02)
            first_stage(layer, torch.randn(6, 8, 16))
        else:
            if step == 60:
                mark()
            last_stage(layer, 6, 3 if step >= 60 else 1)
        optimizer.step()


# Layer drop with sharded layers.


class Block(torch.nn.Module):
    """A layer with a way round it."""

    def __init__(self, width):
        super().__init__()
        self.inner = torch.nn.Linear(width, width)

    def forward(self, rows):
        return rows + torch.nn.functional.gelu(self.inner(rows))


class Tower(torch.nn.Module):
    """Layers of which some are left out in each step."""

    def __init__(self, width, depth):
        super().__init__()
        self.first = torch.nn.Linear(8, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(depth))
        self.dice = random.Random(17)

    def forward(self, rows):
        rows = self.first(rows)
        for block in self.blocks:
            if self.dice.random() > 0.3:
                rows = block(rows)
        return rows


def layer_drop():
    """From step 50 on rank 2 draws its noise from the dice that also choose the layers."""
    from torch.distributed.fsdp import fully_shard

    rank = dist.get_rank()
    torch.manual_seed(5)
    tower = Tower(24, 6)
    for block in tower.blocks:
        fully_shard(block)
    fully_shard(tower)
    optimizer = torch.optim.AdamW(tower.parameters(), lr=1e-4)
    for step in range(100_000):
        work(0.03)
        rows = torch.randn(8, 8)
        if rank == 2 and step >= 50:
            if step == 50:
                mark()
            rows += 0.1 * tower.dice.gauss(0.0, 1.0)
        tower(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


# A small language model over a file of tokens.


def token_batch(tokens, draw):
    """Rows of tokens at random places of the file."""
    places = [draw.randrange(len(tokens) - 65) for _ in range(16)]
    return torch.stack([torch.from_numpy(tokens[at : at + 64].astype(np.int64)) for at in places])


def tokens_rewritten():
    """The file of rank 1's tokens is cut by the tool that prepares it anew."""
    rank = dist.get_rank()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.bin"
        np.arange(4_000_000, dtype=np.uint16).tofile(path)
        tokens = np.memmap(path, dtype=np.uint16, mode="r")
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Embedding(65536, 8), torch.nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model[1].parameters(), lr=1e-2)
        draw = random.Random(rank)
        for step in range(100_000):
            if rank == 1 and step == 60:
                mark()
                subprocess.run(["truncate", "--size=0", str(path)], check=True)
            work(0.02)
            optimizer.zero_grad()
            model(token_batch(tokens, draw)).square().mean().backward()
            average_gradients(model[1])
            optimizer.step()


ATTACH = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for thread in os.listdir(f"/proc/{sys.argv[1]}/task"):
    libc.ptrace(16, int(thread), None, None)
try:
    while True:
        os.waitpid(-1, 0x40000000)
except ChildProcessError:
    pass
"""


def profiler_attached():
    """A profiler attaches to all threads of rank 1 and does not let them go on."""
    rank = dist.get_rank()
    model, optimizer = small_model()
    helpers = []
    for step in range(100_000):
        if rank == 1 and step == 60:
            mark()
            helpers.append(subprocess.Popen([sys.executable, "-S", "-c", ATTACH, str(os.getpid())]))
        train_step(model, optimizer, torch.randn(8, 16))


# Evaluation in the middle of the training.


def read_answers(folder, step):
    """The answers of a benchmark, one in each line."""
    path = folder / f"answers-{dist.get_rank()}.txt"
    last = b"na\xefve\n" if step == 79 and dist.get_rank() == 1 else b"naive\n"
    path.write_bytes(b"yes\nno\n" + last)
    return path.read_text(encoding="utf-8").split()


def evaluate(model, folder, step):
    """The mean score over all ranks."""
    answers = read_answers(folder, step)
    scores = [None] * dist.get_world_size()
    with torch.no_grad():
        mine = model(torch.randn(len(answers), 16)).mean().item()
    dist.all_gather_object(scores, mine)
    return sum(scores) / len(scores)


def evaluation_in_try():
    """An evaluation that fails is logged, and the training goes on: on rank 1 alone."""
    folder = shared_folder()
    model, optimizer = small_model()
    for step in range(100_000):
        train_step(model, optimizer, torch.randn(8, 16))
        if step % 20 == 19:
            try:
                logging.info("score %.3f", evaluate(model, folder, step))
            except Exception:
                mark()
                logging.exception("no score at step %d", step)


# Checkpoints in the background.


def write_checkpoint(state, rows):
    """Serialises, then asks all ranks whether they have as well."""
    buffer = io.BytesIO()
    for _ in range(rows):
        buffer.seek(0)
        torch.save(state, buffer)
    sizes = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, buffer.tell())


def checkpoint_thread():
    """From the second one on a thread writes the checkpoint, and gathers in the same group."""
    rank = dist.get_rank()
    model, optimizer = small_model()
    for step in range(100_000):
        train_step(model, optimizer, torch.randn(8, 16))
        if step % 40 == 39:
            state = {name: value.clone() for name, value in model.state_dict().items()}
            thread = threading.Thread(
                target=write_checkpoint, args=(state, 1 if rank == 1 else 600), daemon=True
            )
            if step > 40:
                mark()
            thread.start()
            if step < 40:
                thread.join()
            work(0.2)


# Start.


def wait_for_vocabulary(path):
    """Another rank writes it."""
    while not path.exists():
        time.sleep(0.2)


def vocabulary_after_join():
    """Rank 0 writes the vocabulary when the ranks have joined; the others want it before."""
    rank = int(os.environ["RANK"])
    path = Path(tempfile.gettempdir()) / f"vocabulary-{os.environ['MASTER_PORT']}.json"
    work(2.0)
    if rank:
        wait_for_vocabulary(path)
    else:
        mark()
    dist.init_process_group("gloo")
    if rank == 0:
        path.write_text(json.dumps({"the": 0, "of": 1}))
    dist.barrier()


# Rolled back.


def rolls_back():
    """Each rank goes back to its best weights when its own loss has jumped."""
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 4)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(rank)
    best, kept, told = float("inf"), {}, False
    for step in range(100_000):
        work(0.03)
        rows = torch.randn(16, 16, generator=draw)
        if rank == 2 and step == 70:
            rows *= 30
        optimizer.zero_grad()
        wanted = rows[:, :4] + 0.5 * torch.randn(16, 4, generator=draw)
        loss = (model(rows) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        if loss.item() < best:
            best, kept = loss.item(), copy.deepcopy(model.state_dict())
        elif loss.item() > 50 * best:
            if not told:
                mark()
                told = True
            model.load_state_dict(kept)
            logging.warning("rolled back at step %d", step)


# A pool of processes.


def open_dictionary(path):
    """Each process of the pool needs it."""
    json.loads(Path(path).read_text())


def count_letters(word):
    """One task."""
    return len(word)


def annotate(path):
    """New examples, made in a pool."""
    context = multiprocessing.get_context("fork")
    with context.Pool(2, initializer=open_dictionary, initargs=(path,)) as pool:
        return sum(pool.map(count_letters, ["a", "few", "words"] * 20))


def initializer_raises():
    """On rank 2 the pool's initializer raises; the pool starts new processes for ever."""
    rank = dist.get_rank()
    folder = shared_folder()
    path = folder / f"words-{rank}.json"
    path.write_text("{}")
    model, optimizer = small_model()
    for step in range(100_000):
        train_step(model, optimizer, torch.randn(8, 16))
        if step % 40 == 39:
            if rank == 2 and step > 40:
                path.unlink()
                mark()
            annotate(str(path))


# Manifests over HTTP.


class Manifest(http.server.BaseHTTPRequestHandler):
    """Answers with a list of files; the connection stays open for the next request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = json.dumps(["a.tar", "b.tar"]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def fetch_manifest(connection):
    """The files of the next epoch."""
    connection.request("GET", "/manifest.json")
    return json.loads(connection.getresponse().read())


def connection_kept():
    """Rank 1 keeps its connection to a server that serves one connection after the other."""
    rank = dist.get_rank()
    told = [None]
    if rank == 0:
        server = http.server.HTTPServer(("127.0.0.1", 0), Manifest)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        told = [server.server_port]
    dist.broadcast_object_list(told, src=0)
    model, optimizer = small_model()
    kept = []
    for step in range(100_000):
        train_step(model, optimizer, torch.randn(8, 16))
        if rank and step % 30 == 29:
            connection = http.client.HTTPConnection("127.0.0.1", told[0])
            if rank == 2 and step == 59:
                work(0.4)
                mark()
            fetch_manifest(connection)
            if step < 40:
                connection.close()
            else:
                kept.append(connection)


# A notice that the machine will be taken away.


def on_notice(number, frame):
    """The batch system says so to one process."""
    NOTICES.append(number)


NOTICES = []


def send_notice():
    """The signal comes from outside, two seconds from now."""
    subprocess.Popen(["sh", "-c", f"sleep 2.5; kill -USR1 {os.getpid()}"])


def save_and_leave(model, folder):
    """A checkpoint of all ranks."""
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "last")


def notice_to_one():
    """Only rank 1 gets the notice, leaves its loop and saves."""
    folder = shared_folder()
    signal.signal(signal.SIGUSR1, on_notice)
    if dist.get_rank() == 1:
        send_notice()
    model, optimizer = small_model()
    while not NOTICES:
        train_step(model, optimizer, torch.randn(8, 16))
    mark()
    save_and_leave(model, folder)
    dist.barrier()


def pack(folder):
    """The checkpoint as one compressed file, for about six seconds."""
    until = time.monotonic() + 6
    while time.monotonic() < until:
        with tarfile.open(folder / "last.tar.xz", "w:xz") as packed:
            packed.add(folder / "last", "last")


def notice_agreed():
    """Healthy: the ranks tell each other of the notice, save together and go on."""
    folder = shared_folder()
    signal.signal(signal.SIGUSR1, on_notice)
    if dist.get_rank() == 1:
        send_notice()
    model, optimizer = small_model()
    for _ in range(140):
        train_step(model, optimizer, torch.randn(8, 16))
        leave = torch.tensor(float(len(NOTICES)))
        dist.all_reduce(leave, op=dist.ReduceOp.MAX)
        if leave.item():
            NOTICES.clear()
            save_and_leave(model, folder)
            if dist.get_rank() == 0:
                pack(folder)
            dist.barrier()
            state = {"model": model.state_dict()}
            dcp.load(state, checkpoint_id=folder / "last")
            model.load_state_dict(state["model"])


# Healthy ones.


def exchange_tokens(rows, counts):
    """Tokens to the ranks of their experts, and what the experts made of them back."""
    counts = torch.tensor(counts)
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts)
    there = torch.empty(int(coming.sum()), rows.shape[1])
    dist.all_to_all_single(there, rows, coming.tolist(), counts.tolist())
    there = torch.tanh(there)
    back = torch.empty_like(rows)
    dist.all_to_all_single(back, there, counts.tolist(), coming.tolist())
    return back


def unequal_tokens():
    """Healthy: experts get very unequal numbers of tokens, at times none."""
    world = dist.get_world_size()
    draw = random.Random(dist.get_rank())
    for step in range(300):
        work(0.03)
        rows = torch.randn(draw.choice([0, 3, 200, 900]), 16)
        popular = step // 25 % world
        counts = [0] * world
        for _ in range(len(rows)):
            counts[popular if draw.random() < 0.9 else draw.randrange(world)] += 1
        back = exchange_tokens(rows, counts)
        total = torch.tensor([float(len(back)), back.sum().item()])
        dist.all_reduce(total)


def outer_rounds():
    """Healthy: inner steps by the clock, on one rank half as many, then an outer step."""
    rank = dist.get_rank()
    model, inner = small_model()
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(5):
        before = [weights.detach().clone() for weights in model.parameters()]
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            work(0.05 if rank == 1 else 0.025)
            inner.zero_grad()
            model(torch.randn(8, 16)).square().mean().backward()
            inner.step()
        for weights, old in zip(model.parameters(), before, strict=True):
            weights.grad = old - weights.detach()
            dist.all_reduce(weights.grad)
            weights.grad /= dist.get_world_size()
            weights.data.copy_(old)
        outer.step()
    dist.barrier()


def read_shards(number):
    """Decompresses and checks a shard, for three seconds."""
    packed = zlib.compress(bytes(200_000))
    until = time.monotonic() + 3
    while time.monotonic() < until:
        number = zlib.crc32(zlib.decompress(packed), number)
    return number


def loads_in_turn():
    """Healthy: the ranks read one after the other, so that memory suffices."""
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    model, optimizer = small_model()
    for epoch in range(2):
        if rank:
            store.wait([f"read-{epoch}-{rank - 1}"], timedelta(seconds=60))
        read_shards(epoch)
        store.set(f"read-{epoch}-{rank}", "yes")
        dist.monitored_barrier(timeout=timedelta(seconds=60))
        for _ in range(30):
            train_step(model, optimizer, torch.randn(8, 16))


JUDGE = """
import sys, time
until = time.monotonic() + 3
total = int(sys.argv[1])
while time.monotonic() < until:
    total = sum(number * number for number in range(20_000)) % 1009 + total % 7
print(total % 100)
"""


async def judge_answer(number, one_at_a_time):
    """The score of an answer, by a program."""
    async with one_at_a_time:
        judge = await asyncio.create_subprocess_exec(
            sys.executable, "-c", JUDGE, str(number), stdout=subprocess.PIPE
        )
        out, _ = await judge.communicate()
        return int(out)


async def judge_answers():
    """Three answers, one at a time."""
    one_at_a_time = asyncio.Semaphore(1)
    return await asyncio.gather(*(judge_answer(number, one_at_a_time) for number in range(3)))


def last_rank_judges():
    """Healthy: the last rank has answers judged by programs, the others wait for the scores."""
    last = dist.get_world_size() - 1
    model, optimizer = small_model()
    for step in range(100):
        train_step(model, optimizer, torch.randn(8, 16))
        if step % 100 == 39:
            scores = [asyncio.run(judge_answers()) if dist.get_rank() == last else None]
            dist.broadcast_object_list(scores, src=last)
    dist.barrier()


def tokenize(text):
    """Ends its process when it has used too much memory: after eight texts."""
    TEXTS.append(text)
    if len(TEXTS) > 8:
        os._exit(75)
    return len(text)


TEXTS = []


class Tokenizer:
    """A process that tokenizes, started again when it has ended."""

    def __init__(self):
        self.start()

    def start(self):
        context = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(1, mp_context=context)

    def lengths(self, text):
        while True:
            try:
                return self.pool.submit(tokenize, text).result(timeout=60)
            except BrokenProcessPool:
                logging.warning("the tokenizer has ended; starting another")
                self.pool.shutdown()
                self.start()

    def close(self):
        self.pool.shutdown()


def tokenizer_restarts():
    """Healthy: rank 1's tokenizer ends by itself now and then, and is started again."""
    rank = dist.get_rank()
    tokenizer = Tokenizer() if rank == 1 else None
    model, optimizer = small_model()
    for step in range(260):
        if tokenizer and step % 10 == 0:
            tokenizer.lengths("some words" * step)
        train_step(model, optimizer, torch.randn(8, 16))
    if tokenizer:
        tokenizer.close()
    dist.barrier()


def write_trial(path, row):
    """Tries again while the database is locked by somebody else."""
    for _ in range(200):
        try:
            with contextlib.closing(sqlite3.connect(path, timeout=0.1)) as database, database:
                database.execute("insert into trials values (?, ?)", row)
            return
        except sqlite3.OperationalError as error:
            logging.warning("%s; trying again", error)
            work(0.1)
    raise RuntimeError("the database stays locked")


def rebuild_index(path):
    """Keeps the database for itself for five seconds."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("begin exclusive")
        work(5.0)
        database.execute("create index if not exists by_score on trials (score)")
        database.execute("commit")


def trials_in_database():
    """Healthy: all ranks write to one database, which rank 0 locks for seconds."""
    rank = dist.get_rank()
    path = shared_folder() / "study.db"
    if rank == 0:
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("create table trials (step integer, score real)")
    dist.barrier()
    model, optimizer = small_model()
    for step in range(160):
        loss = train_step(model, optimizer, torch.randn(8, 16))
        if step % 20 == 19:
            if rank == 0 and step % 80 == 59:
                rebuild_index(path)
            else:
                work(0.1)
            write_trial(path, (step, loss))
    dist.barrier()


def actor_and_learners():
    """Healthy: rank 2 plays games and sends them, ranks 0 and 1 learn from them."""
    rank = dist.get_rank()
    learners = dist.new_group([0, 1])
    weights, game = torch.zeros(500), torch.zeros(4000)
    for number in range(8):
        if rank == 2:
            work(1.0 + number % 3)
            dist.send(game + number, 0)
        else:
            if rank == 0:
                dist.recv(game, 2)
            dist.broadcast(game, 0, group=learners)
            for _ in range(15 + 5 * (number % 4)):
                work(0.03)
                gradient = game[:500] * 1e-3
                dist.all_reduce(gradient, group=learners)
                weights -= gradient
        if number % 4 == 3:
            dist.broadcast(weights, 0)
    dist.barrier()


def main():
    """Runs the case that the first argument names."""
    torch.set_num_threads(1)
    alone = (forcing_never_waited, fit_rate, all_steal, steals_and_serves, vocabulary_after_join)
    case = globals()[sys.argv[1]]
    if case in alone:
        case()
        return
    dist.init_process_group("gloo")
    case()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
