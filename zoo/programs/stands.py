"""Places at which one rank gets stuck: a lock, a handler, a destructor, a socket, a child, a
queue.
"""

import ctypes
import fcntl
import gc
import importlib
import json
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

CASES = {
    "signal-handler": {
        "story": "A signal handler of rank 1 wants the lock that its own loop holds.",
        "expected": ["not-in-collective 1"],
        "place": "save",
        "cause": [
            r"\bsignal[ -]handler\b|\bhandler (of|for) (a |the )?(signal|SIGUSR1)\b|\bSIGUSR1\b",
            r"\block\b",
            r"\bacquir",
            r"\bdeadlock",
        ],
        "cure": [
            r"\b(who|which|what|where|find|look|see|check)\b.{0,40}\b(holds?|held|owns?)\b",
            r"\b(who|which|what|where|find|look|see|check)\b.{0,40}\b(took|taken)\b",
            r"\breleas(e|es|ed|ing)\b|\bunlock",
            r"\bRLock|re-?entrant",
            r"py-spy|\bgdb\b|\bstacks? of (all|its|the other|every)",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
            r"\b(not|never|no|avoid|only)\b.{0,50}\bhandler\b|\bset a flag\b",
        ],
    },
    "logging-lock": {
        "story": "Rank 2 logs while another thread holds the handler's lock for ever.",
        "source": "python/cpython#12704",
        "expected": ["not-in-collective 2"],
        "place": "say",
        "cause": [r"\blogging\b", r"\block\b", r"\bacquir", r"\bdeadlock"],
        "cure": [
            r"\b(who|which|what|where|find|look|see|check)\b.{0,40}\b(holds?|held|owns?)\b",
            r"\b(who|which|what|where|find|look|see|check)\b.{0,40}\b(took|taken)\b",
            r"\breleas(e|es|ed|ing)\b|\bunlock",
            r"py-spy|\bgdb\b|\bstacks? of (all|its|the other|every)",
            r"\bQueueHandler\b",
            r"\b(look|see|check|find)\b.{0,50}\b(other|another|all|its|every) threads?\b",
        ],
    },
    "destructor": {
        "story": "The destructor of an object on rank 0 waits for an answer.",
        "expected": ["not-in-collective 0"],
        "place": "__del__",
        "cause": [
            r"__del__|\b(a|the|its) destructor\b|\bfinali[sz]er\b",
            r"\bpipe\b|pipe_(read|wait)",
            r"\b(wait|block|stuck|hang)\w*.{0,40}\bread",
            r"\breads? (from|a|on)\b",
        ],
        "cure": [
            r"\b(other|write|writing) (end|side)|\bwriter\b|\bwho (writes|should write)",
            r"\blsof\b|/proc/\S+/fd|\bstrace\b",
            r"\b(look|see|check|find)\b.{0,60}\b(pipe|file|disk|mount|storage|NFS|source|fd)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
            r"\b(not|never|no|avoid|instead|out of)\b.{0,50}(__del__|\bdestructor|\bfinali[sz]er)",
            r"\b(close|flush)\b.{0,30}\bexplicit|\bexplicit(ly)?\b.{0,30}\b(close|flush)",
            r"\bcontext manager",
        ],
    },
    "collector-callback": {
        "story": "A callback of the garbage collector waits on rank 1.",
        "expected": ["not-in-collective 1"],
        "place": "@collector",
        "cause": [r"\bgarbage\b|\bgc\b", r"\block\b", r"\bacquir", r"\bdeadlock"],
        "cure": [
            r"\b(who|which|what|where|find|look|see|check)\b.{0,40}\b(holds?|held|owns?)\b",
            r"\b(who|which|what|where|find|look|see|check)\b.{0,40}\b(took|taken)\b",
            r"\breleas(e|es|ed|ing)\b|\bunlock",
            r"\bRLock|re-?entrant",
            r"py-spy|\bgdb\b|\bstacks? of (all|its|the other|every)",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
            r"\b(not|never|no|avoid|remove)\b.{0,50}\b(callbacks?|gc)\b",
        ],
    },
    "import-of-plugin": {
        "story": "Rank 2 imports a plugin late, which waits for its device.",
        "expected": ["not-in-collective 2"],
        "place": "plugin_of_device.py",
        "cause": [
            r"\bimport(s|ed|ing|lib)?\b",
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
            r"\bimport\w*\b.{0,50}\b(early|earlier|at the start|before|top)\b",
            r"\b(not|never|no|avoid|out of|instead)\b.{0,40}\bimport",
        ],
    },
    "name-service": {
        "story": "A name server does not answer rank 0.",
        "source": "wandb/wandb#1771",
        "expected": ["not-in-collective 0"],
        "place": "resolve",
        "cause": [
            r"\bsockets?\b|\brecv|\bTCP\b|\bnetwork\b|\bUDP\b|\bdatagram",
            r"\b(answers?|repl(y|ies)|respon(d|ds|se))\b",
            r"\bDNS\b|\bname (server|service)\b",
        ],
        "cure": [
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
            r"settimeout|\btime-?outs? (on|for|to) (the|its|this|each) (call|socket|request)",
            r"\bthe (server|service|peer|endpoint|remote)|\b(other|far|remote) (end|side)",
            r"\bss -|\blsof\b|\btcpdump\b|\bstrace\b",
            r"\bDNS\b|resolv\.conf|\bnslookup\b|\bdig\b|\bgetent\b",
        ],
    },
    "subprocess-pipe": {
        "story": "Rank 1 waits for a child that waits for its pipe to be read.",
        "source": "localstack/localstack#1101",
        "expected": ["not-in-collective 1", "wait-cycle 1"],
        "place": "run",
        "cause": [
            r"pipe_write|\bfull pipe\b|\bpipe\b.{0,40}\b(full|read|drain\w*|nobody)\b",
            r"\bwrit\w+\b.{0,40}\bpipe\b",
            r"\bchild(ren)?\b",
            r"\bsubprocess\b|\bwaitpid|\bwait4|do_wait",
        ],
        "cure": [
            r"\bcommunicate\b",
            r"\b(read|drain|consume|empty|take)\b.{0,50}\b(pipe|stdout|output)\b",
            r"\bDEVNULL\b|/dev/null|\bcapture_output\b|\b(to|into) a (temporary )?file\b",
            r"\b(look|see|check|strace|py-spy)\b.{0,60}\b(child|program|subprocess)\b",
        ],
    },
    "file-lock": {
        "story": "Rank 1 polls a lock file that was left behind.",
        "source": "huggingface/datasets#1672",
        "expected": ["not-in-collective 1"],
        "place": "take",
        "cause": [
            r"\bflock|\bfcntl|\bfile[- ]lock|\block file",
            r"\block\b",
            r"\bpoll(s|ing)?\b|\bagain and again\b|\bin a loop\b|\brepeatedly\b",
            r"\btime\.sleep|nanosleep|\b(asleep|sleeps)\b|\bin (a |its )?sleep\b",
        ],
        "cure": [
            r"\blsof\b|\bfuser\b|\blslocks\b|/proc/locks",
            r"\b(who|which|what|where|find|look|see|check)\b.{0,40}\b(holds?|held|owns?)\b",
            r"\b(who|which|what|where|find|look|see|check)\b.{0,40}\b(took|taken)\b",
            r"\b(delete|remove|rm|unlink)\b.{0,40}\b(lock|file|it)\b",
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
    },
    "full-queue": {
        "story": "Rank 0's queue to a process is full and nobody reads it.",
        "expected": ["not-in-collective 0"],
        "place": "put",
        "cause": [
            r"\bqueue\b",
            r"pipe_write|\bfull pipe\b|\bpipe is full\b",
            r"\bsemaphore\b|\bsem_wait",
        ],
        "cure": [
            r"\b(who|which|check|see|look|find)\b.{0,50}\b(reads?|reader|drains?)\b",
            r"\b(who|which|check|see|look|find)\b.{0,50}\b(consum\w+|takes?|gets?)\b",
            r"\bput_nowait\b|\bblock=False\b",
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
    },
    "sleep-in-c": {
        "story": "Rank 2 pauses in C without the GIL.",
        "expected": ["not-in-collective 2"],
        "place": "@pause",
        "cause": [
            r"\bpause\b|sys_pause",
            r"\b(native|C) (code|call|function|library|frames?)\b|\bctypes\b",
            r"\bwait\w* for a signal\b",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"--native\b|\bpstack\b|\bstrace\b|\bperf\b",
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\bsend\w*\b.{0,30}\bsignal\b",
        ],
    },
    "swallowed-exception": {
        "story": "A step of rank 1 raises again and again, and is left out.",
        "source": "huggingface/trl#6862",
        "expected": ["not-in-collective 1"],
        "place": "swallowed_exception",
        "cause": [
            r"\bexceptions?\b|\bKeyError\b|\brais(es|ed)\b|\bswallow(s|ed)?\b|\bexcept\b",
            r"\bagain and again\b|\bin a loop\b|\bloops\b|\brepeatedly\b|\bretr(y|ies)\b",
            r"\btime\.sleep|nanosleep|\b(asleep|sleeps)\b|\bin (a |its )?sleep\b",
        ],
        "cure": [
            r"\b(log|print|re-?raise|catch|handle|see|check)\b.{0,60}\b(exceptions?|errors?)\b",
            r"\b(log|print|re-?raise|catch|handle|see|check)\b.{0,60}\bexcept\b",
            r"\b(read|look|see|check|find)\b.{0,40}\b(traceback|logs?|stderr|output|message)\b",
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
        ],
    },
    "eternal-retry": {
        "story": "Rank 0 tries a refused connection for ever, with longer and longer pauses.",
        "source": "wandb/wandb#9871",
        "expected": ["not-in-collective 0"],
        "place": "fetch",
        "cause": [
            r"\brefus(ed|es)\b|\bECONNREFUSED\b",
            r"\bretr(y|ies|ying)\b|\bagain and again\b|\bin a loop\b|\brepeatedly\b",
            r"\bsockets?\b|\bconnect(s|ing)?\b|\bconnection (to|refused)\b|\bnetwork\b",
            r"\btime\.sleep|nanosleep|\b(asleep|sleeps)\b|\bin (a |its )?sleep\b",
        ],
        "cure": [
            r"\bthe (server|service|peer|address|endpoint|host|port)\b",
            r"\b(limit|bound|give up|at most|stop)\b.{0,40}\b(retr\w+|tries|attempts|times)\b",
            r"\bdeadline\b",
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\bss -|\bcurl\b|\bstrace\b|\bfirewall\b",
        ],
    },
}

AT = 70


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


class Work:
    def __init__(self, optimizer=torch.optim.SGD):
        self.rank = dist.get_rank()
        self.model = DistributedDataParallel(torch.nn.Linear(16, 16))
        self.optimizer = optimizer(self.model.parameters(), lr=1e-3)
        self.number = 0

    def forward_backward(self):
        self.optimizer.zero_grad()
        loss = self.model(torch.ones(4, 16)).square().mean()
        loss.backward()
        return loss

    def step(self):
        self.forward_backward()
        self.optimizer.step()
        self.number += 1
        time.sleep(0.03)

    def forever(self, rank, act):
        while True:
            if self.number == AT and self.rank == rank:
                mark()
                act()
            self.step()


# -- where it is stuck


def signal_handler():
    """A handler of SIGUSR1 saves, and waits for the lock that the loop holds."""
    work = Work()
    gate = threading.Lock()

    def save(number, frame):
        with gate:
            pass

    signal.signal(signal.SIGUSR1, save)

    def struck():
        with gate:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(1)

    work.forever(1, struck)


def logging_lock():
    """A handler of logging waits; the loop logs."""
    work = Work()
    handler = logging.StreamHandler()
    logging.getLogger().addHandler(handler)
    taker = threading.Thread(target=lambda: (handler.acquire(), time.sleep(1e6)), daemon=True)

    def say():
        taker.start()
        time.sleep(0.2)
        logging.warning("loss is %s", 1.0)

    work.forever(2, say)


def destructor():
    """An object's __del__ flushes to a service that does not answer."""
    work = Work()

    class Writer:
        def __del__(self):
            into, _out = os.pipe()
            os.read(into, 1)

    def drop():
        writer = Writer()
        del writer

    work.forever(0, drop)


def collector_callback():
    """A callback of the garbage collector waits."""
    work = Work()

    def struck():
        gate = threading.Lock()
        gate.acquire()
        gc.callbacks.append(lambda phase, info: gate.acquire())  # place: collector
        gc.collect()

    work.forever(1, struck)


def import_of_plugin():
    """A plugin that is imported late waits for its device while it is imported."""
    work = Work()
    with open("plugin_of_device.py", "w") as file:
        file.write("import threading\n\n\ndef open_device():\n    threading.Event().wait()\n\n\n")
        file.write("open_device()\n")
    sys.path.insert(0, os.getcwd())
    work.forever(2, lambda: importlib.import_module("plugin_of_device"))


def name_service():
    """A name server that does not answer (a UDP socket as the resolver's)."""
    work = Work()

    def resolve():
        asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        silent.bind(("127.0.0.1", 0))
        asking.sendto(b"who is wandb", silent.getsockname())
        asking.recvfrom(512)

    work.forever(0, resolve)


def subprocess_pipe():
    """A child writes more than the pipe takes while its parent waits for its end."""
    work = Work()

    def run():
        child = subprocess.Popen(["head", "-c", "10000000", "/dev/zero"], stdout=subprocess.PIPE)
        child.wait()

    work.forever(1, run)


def file_lock():
    """A lock file in the cache folder that a dead preprocessing left; polled as filelock does."""
    work = Work()
    path = f"cache{work.rank}.lock"
    holder = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)

    def take():
        asks = os.open(path, os.O_RDWR | os.O_CREAT)
        while True:
            try:
                fcntl.flock(asks, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                time.sleep(0.05)

    work.forever(1, take)


def full_queue():
    """A queue to a process that writes samples; nobody reads it any more."""
    work = Work()
    box = multiprocessing.Queue(4)

    def put():
        for _ in range(10):
            box.put(b"x" * 100_000)

    work.forever(0, put)


def sleep_in_c():
    """A sleep of C through ctypes, without the interpreter's lock."""
    work = Work()
    work.forever(2, lambda: ctypes.CDLL(None).pause())  # place: pause


def swallowed_exception():
    """A step that fails is logged and left out on one rank, for ever."""
    work = Work()
    while True:
        try:
            if work.number >= AT and work.rank == 1:
                if not getattr(work, "told", False):
                    work.told = True
                    mark()
                raise KeyError("label")
            work.step()
        except KeyError:
            time.sleep(0.2)


def eternal_retry():
    """A download is tried again and again, with pauses that grow."""
    work = Work()

    def fetch():
        pause = 0.1
        while True:
            try:
                socket.create_connection(("127.0.0.1", 9), timeout=1)
                return
            except OSError:
                time.sleep(pause)
                pause = min(2 * pause, 30)

    work.forever(0, fetch)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[sys.argv[1]]()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
