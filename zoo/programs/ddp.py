"""Data-parallel training with a DataLoader; what one rank does differently is the argument."""

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

CASES = {
    "skips-bad": {
        "story": (
            "Rank 1 leaves out a batch that has a NaN; at the end of the epoch the results "
            "are gathered."
        ),
        "source": "Lightning-AI/pytorch-lightning#5243",
        "expected": ["collective-mismatch 1", "not-in-collective 1"],
        "cause": [
            r"(skip|left out|leaves? out|miss|omit|fewer|behind|did not|never|without)\w*"
            r".{0,60}(batch|step|backward|iteration|reduce|collective|call)",
            r"(one|1|\d+) (batch|step|iteration|call|collective)e?s? (fewer|less|behind|ahead"
            r"|more)",
            "all_?gather.{0,100}all_?reduce|all_?reduce.{0,100}all_?gather",
            "(different|other|not the same|another) (collective|operation|call)s?",
            "(order|sequence) of .{0,30}(collective|call|operation)s?",
        ],
        "cure": [
            r"agree|join context|algorithms\.join|join\(|nan_to_num|dummy|zero (loss|gradient)",
            "same (collectives?|calls?|order|sequence|operations?|branch|path|number)",
            r"(let|make|have|must|should|ensure|needs?|sure|check)\b.{0,60}\b(all|every|each"
            r"|both)\b",
            r"\b(all|every|each|both)\b.{0,60}\b(must|should|has to|have to|needs? to)\b",
            "TORCH_DISTRIBUTED_DEBUG|flight recorder",
            r"(branch|condition|early return|if statement)\w*\b.{0,60}\b(rank|collective|call"
            r"|skip|differ)",
        ],
    },
    "out-of-step": {
        "story": (
            "Rank 2 believes that it still accumulates gradients, and skips one synchronisation."
        ),
        "source": "huggingface/accelerate#4276",
        "expected": ["collective-mismatch 2", "not-in-collective 2"],
        "place": "out_of_step",
        "cause": [
            "no_sync|accumulat",
            r"(skip|left out|leaves? out|miss|omit|fewer|behind|did not|never|without)\w*"
            r".{0,60}(gradient|backward|reduce|collective|call|sync)",
            "broadcast.{0,100}all_?reduce|all_?reduce.{0,100}broadcast",
            "(different|other|not the same|another) (collective|operation|call)s?",
            "(order|sequence) of .{0,30}(collective|call|operation)s?",
        ],
        "cure": [
            r"(check|same|all|every|look|see)\b.{0,80}(no_sync|accumulat)",
            "same (collectives?|calls?|order|sequence|operations?|branch|path|number)",
            r"(let|make|have|must|should|ensure|needs?|sure|check)\b.{0,60}\b(all|every|each"
            r"|both)\b",
            r"\b(all|every|each|both)\b.{0,60}\b(must|should|has to|have to|needs? to)\b",
            "TORCH_DISTRIBUTED_DEBUG|flight recorder",
            r"(branch|condition|early return|if statement)\w*\b.{0,60}\b(rank|collective|call"
            r"|skip|differ)",
        ],
    },
    "tries-again": {
        "story": "Rank 1 catches an exception and tries the same batch again and again.",
        "expected": ["not-in-collective 1"],
        "place": "tries_again",
        "cause": [
            r"retr(y|ies|ying)|again and again|over and over|\bloops?\b",
            "exception|ValueError|swallow",
            r"time\.sleep|nanosleep",
            r"rank 1\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
            r"(let|raise|re-?raise|log|print|limit|bound)\w*\b.{0,60}(exception|error|retr"
            r"|attempt)",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
    },
    "runs-dry": {
        "story": "Rank 0 has fewer batches, leaves the loop and destroys its group.",
        "source": "pytorch/pytorch#33148",
        "expected": ["left-early 0"],
        "cause": [
            "(fewer|less|uneven|unequal|shorter|no more|out of) .{0,30}(batch|step|sample"
            "|data|input)",
            r"(exit|code|status)\w*( with)?( code| status)?:? 0\b",
            r"\b(exit|end|left|quit|finish|return)\w*.{0,60}(normal|clean|success|without "
            r"(an |a )?\w+)",
            r"\b(exit|end|finish|quit|gone)\w*.{0,60}(before|while|although|earlier than)",
            "destroy_process_group",
            "(left|closed|destroyed|leaves) (its |the )?(process )?group",
        ],
        "cure": [
            r"algorithms\.join|join context|join\(|(under|with|use) join\b",
            "same (number|count) of (batch|step|sample|iteration|call|collective)",
            r"drop_last|DistributedSampler|\bpad|(split|shard|divide)\w* .{0,30}even",
            r"(compare|count|check|print|log)\w*.{0,50}(batches|steps|samples|iterations"
            r"|length)",
            r"agree|decide\w* together|(all|every)\b.{0,60}\b(together|at the same step)",
        ],
    },
    "runs-dry-and-waits": {
        "story": "Rank 2 has fewer batches, and goes to the barrier at the end of the epoch.",
        "source": "pytorch/pytorch#38174",
        "expected": ["left-early 2", "collective-mismatch 2"],
        "place": "runs_dry_and_waits",
        "cause": [
            "(fewer|less|uneven|unequal|shorter|no more|out of) .{0,30}(batch|step|sample"
            "|data|input)",
            r"(exit|code|status)\w*( with)?( code| status)?:? 0\b",
            r"\b(exit|end|left|quit|finish|return)\w*.{0,60}(normal|clean|success|without "
            r"(an |a )?\w+)",
            r"\b(exit|end|finish|quit|gone)\w*.{0,60}(before|while|although|earlier than)",
            "destroy_process_group",
            "(left|closed|destroyed|leaves) (its |the )?(process )?group",
            "barrier.{0,100}all_?reduce|all_?reduce.{0,100}barrier",
            "(different|other|not the same|another) (collective|operation|call)s?",
            "(order|sequence) of .{0,30}(collective|call|operation)s?",
        ],
        "cure": [
            r"algorithms\.join|join context|join\(|(under|with|use) join\b",
            "same (number|count) of (batch|step|sample|iteration|call|collective)",
            r"drop_last|DistributedSampler|\bpad|(split|shard|divide)\w* .{0,30}even",
            r"(compare|count|check|print|log)\w*.{0,50}(batches|steps|samples|iterations"
            r"|length)",
            r"agree|decide\w* together|(all|every)\b.{0,60}\b(together|at the same step)",
            "same (collectives?|calls?|order|sequence|operations?|branch|path|number)",
            r"(let|make|have|must|should|ensure|needs?|sure|check)\b.{0,60}\b(all|every|each"
            r"|both)\b",
            r"\b(all|every|each|both)\b.{0,60}\b(must|should|has to|have to|needs? to)\b",
            "TORCH_DISTRIBUTED_DEBUG|flight recorder",
            r"(branch|condition|early return|if statement)\w*\b.{0,60}\b(rank|collective|call"
            r"|skip|differ)",
        ],
    },
    "leaves": {
        "story": "Rank 1 calls sys.exit(0) in the middle.",
        "expected": ["left-early 1"],
        "cause": [
            r"sys\.exit|SystemExit|exit\(0\)",
            r"(exit|code|status)\w*( with)?( code| status)?:? 0\b",
            r"\b(exit|end|left|quit|finish|return)\w*.{0,60}(normal|clean|success|without "
            r"(an |a )?\w+)",
            r"\b(exit|end|finish|quit|gone)\w*.{0,60}(before|while|although|earlier than)",
            "destroy_process_group",
            "(left|closed|destroyed|leaves) (its |the )?(process )?group",
        ],
        "cure": [
            r"sys\.exit|os\._exit|exit\(|early (exit|return|stop)",
            r"(look|see|check|read|search|find|grep)\w*\b.{0,80}(exit|log\b|output|stderr"
            r"|left|leaves)",
            r"agree|decide\w*.{0,30}together|(stop|leave|end)\w* (all )?together",
            "(broadcast|all_?reduce) (the|a|that|this|its) .{0,20}(decision|flag|stop)",
            r"(all|every)\b.{0,60}\b(together|at the same step|same number)",
            "same (number|count) of (batch|step|sample|iteration|call|collective)",
        ],
        "launcher": "plain",
    },
    "good-enough": {
        "story": "Rank 2 alone decides to stop early, then writes its report for three seconds.",
        "source": "Lightning-AI/pytorch-lightning#379",
        "expected": ["left-early 2"],
        "cause": [
            "early[- ]stop",
            "(fewer|less|uneven|unequal|shorter|no more|out of) .{0,30}(batch|step|sample"
            "|data|input)",
            r"(exit|code|status)\w*( with)?( code| status)?:? 0\b",
            r"\b(exit|end|left|quit|finish|return)\w*.{0,60}(normal|clean|success|without "
            r"(an |a )?\w+)",
            r"\b(exit|end|finish|quit|gone)\w*.{0,60}(before|while|although|earlier than)",
            "destroy_process_group",
            "(left|closed|destroyed|leaves) (its |the )?(process )?group",
        ],
        "cure": [
            r"agree|decide\w*.{0,30}together|(stop|leave|end)\w* (all )?together",
            "(broadcast|all_?reduce) (the|a|that|this|its) .{0,20}(decision|flag|stop)",
            r"(all|every)\b.{0,60}\b(together|at the same step|same number)",
            "same (number|count) of (batch|step|sample|iteration|call|collective)",
            r"algorithms\.join|join context|join\(|(under|with|use) join\b",
            r"drop_last|DistributedSampler|\bpad|(split|shard|divide)\w* .{0,30}even",
            r"(compare|count|check|print|log)\w*.{0,50}(batches|steps|samples|iterations"
            r"|length)",
        ],
        "launcher": "plain",
    },
    "raises": {
        "story": "Rank 1 raises a KeyError in a training step; torchrun ends the others.",
        "source": "huggingface/trl#6862",
        "expected": ["rank-crashed 1"],
        "place": "raises",
        "cause": [
            "KeyError",
            r"exception|traceback|\braise[sd]\b|uncaught",
        ],
        "cure": [
            r"(look|read|see|find|scroll|search|check|fix)\w*\b.{0,80}(traceback|exception"
            r"|stderr|log\b)",
            "(traceback|exception).{0,40}(above|says|in (its|the) (log|output|stderr))",
            "TORCHELASTIC_ERROR_FILE|@record|error file|--redirects|--log-dir",
            r"missing key|\.get\(",
        ],
    },
    "raises-and-stays": {
        "story": "Rank 0 raises, but a thread that is not a daemon keeps its process alive.",
        "source": "pytorch/torchtitan#1790",
        "expected": ["rank-crashed 0"],
        "place": "raises_and_stays",
        "cause": [
            "RuntimeError|not finite",
            r"exception|traceback|\braise[sd]\b|uncaught",
            "non-?daemon|thread.{0,60}(keeps|still|alive)|_shutdown",
            "main thread.{0,40}(ended|over|finished|gone|died|left)",
        ],
        "cure": [
            r"(look|read|see|find|scroll|search|check|fix)\w*\b.{0,80}(traceback|exception"
            r"|stderr|log\b)",
            "(traceback|exception).{0,40}(above|says|in (its|the) (log|output|stderr))",
            "TORCHELASTIC_ERROR_FILE|@record|error file|--redirects|--log-dir",
            r"daemon ?= ?True|(make|mark|set|start|as)\b.{0,40}\bdaemon",
            r"os\._exit|excepthook|(stop|end|join)\w* .{0,30}thread",
            "kill (it|the process|rank|-)",
        ],
    },
    "struck": {
        "story": "Rank 1 is killed by SIGKILL, as by the OOM killer.",
        "source": "pytorch/pytorch#8976",
        "expected": ["rank-killed 1"],
        "cause": [
            r"SIGKILL|signal 9\b|(?<!\w)-9\b|(code|status):? 137\b",
            "OOM|out[- ]of[- ]memory",
        ],
        "cure": [
            r"dmesg|journalctl|kernel('s)? log|memory\.events|sacct",
            r"(look|check|see|find|ask)\w*\b.{0,80}(OOM|memory|killed|scheduler|batch system"
            r"|cgroup)",
            r"(lower|less|reduce|more|request|smaller|raise)\b.{0,40}(memory|batch size|--mem)",
            "who(ever)? .{0,20}(sent|killed)",
        ],
    },
    "interrupted": {
        "story": "Somebody presses Ctrl-C.",
        "expected": ["cancelled"],
        "cause": [
            r"SIGINT|Ctrl[-+ ]?C|KeyboardInterrupt|signal 2\b|\^C|interrupted",
        ],
        "cure": [
            r"nothing (to|is|was|wrong)|no (fault|culprit|error|bug|action|rank)\b",
            "not a (fault|bug|crash)",
            r"(start|run|submit|launch)\w* (it |the job )?again|re-?start|resume|re-?run",
            "re-?submit|re-?queue",
            "intended|on purpose|wanted|who(ever)? .{0,20}(pressed|sent|cancel|interrupt)",
        ],
        "shape": "on_and_on",
        "act": "SIGINT",
    },
    "terminated": {
        "story": "The batch system sends SIGTERM to the launcher.",
        "expected": ["cancelled"],
        "cause": [
            r"SIGTERM|signal 15\b|batch system|scancel|walltime|preempt|from outside",
        ],
        "cure": [
            r"nothing (to|is|was|wrong)|no (fault|culprit|error|bug|action|rank)\b",
            "not a (fault|bug|crash)",
            r"(start|run|submit|launch)\w* (it |the job )?again|re-?start|resume|re-?run",
            "re-?submit|re-?queue",
            "time limit|walltime|--time|sacct|scontrol|preempt",
            "who(ever)? .{0,20}(sent|cancel|ended)",
            r"(look|see|check|ask)\w*\b.{0,60}(scheduler|batch system|queue)|intended",
            "on purpose",
        ],
        "shape": "on_and_on",
        "act": "SIGTERM",
    },
    "own-rate": {
        "story": "Rank 1 trains on with another learning rate than the others.",
        "expected": ["diverged 1"],
        "cause": [
            r"learning[- ]rate|\blr\b",
            r"(parameter|weight|checksum|norm|hash|replica|model)\w*.{0,80}(differ|diverg"
            r"|drift|not the same)",
            r"(differ|diverg|unequal|not the same|other)\w*.{0,40}(parameter|weight|learning)",
        ],
        "cure": [
            r"learning[- ]rate|\blr\b|scheduler|optimi[sz]er|param_groups",
            r"broadcast\w*.{0,60}(parameter|weight|state|model|from rank)",
            r"(compare|check|look|print)\w*\b.{0,80}(weight|parameter|state|seed|checksum)",
            "same (seed|state|checkpoint|weight|parameter)",
        ],
        "tolerated": ["sampler-not-distributed 0,1,2"],
    },
    "old-weights": {
        "story": "Rank 2 loads an older checkpoint than the others, after the model was wrapped.",
        "expected": ["diverged 2"],
        "cause": [
            "checkpoint|load_state_dict",
            r"(parameter|weight|checksum|norm|hash|replica|model)\w*.{0,80}(differ|diverg"
            r"|drift|not the same)",
            r"(differ|diverg|unequal|not the same|other)\w*.{0,40}(parameter|weight|learning)",
        ],
        "cure": [
            r"(same|check|compare|load|look|newest|one|right)\b.{0,60}checkpoint",
            "load_state_dict",
            "before .{0,30}(wrap|DDP|DistributedDataParallel)",
            r"broadcast\w*.{0,60}(parameter|weight|state|model|from rank)",
            r"(compare|check|look|print)\w*\b.{0,80}(weight|parameter|state|checksum)",
            "same (state|weight|parameter)",
        ],
        "tolerated": ["sampler-not-distributed 0,1,2"],
    },
    "accumulates": {
        "story": "Gradients are accumulated over eight batches without synchronisation.",
        "expected": [],
        "tolerated": ["sampler-not-distributed 0,1,2", "sampler-not-distributed 0,1"],
    },
    "rotates": {
        "story": "In each step another rank is the slow one.",
        "expected": [],
        "launcher": "plain",
        "tolerated": ["sampler-not-distributed 0,1,2", "sampler-not-distributed 0,1"],
    },
    "lengths": {
        "story": "The work differs from step to step, and differently on each rank.",
        "source": "huggingface/transformers#47340",
        "expected": [],
        "tolerated": ["sampler-not-distributed 0,1,2", "sampler-not-distributed 0,1"],
    },
    "joined": {
        "story": (
            "Uneven inputs under Join: the rank that is done shadows the collectives of the others."
        ),
        "source": "pytorch/pytorch#38174",
        "expected": [],
        "tolerated": ["sampler-not-distributed 0,1,2", "sampler-not-distributed 0,1"],
    },
    "compiled": {
        "story": "The first step compiles.",
        "source": "karpathy/nanochat#722",
        "expected": [],
        "world": 2,
        "tolerated": ["sampler-not-distributed 0,1,2", "sampler-not-distributed 0,1"],
    },
    "again": {
        "story": (
            "The first attempt fails on one rank; torchrun restarts, and the second attempt "
            "goes on."
        ),
        "expected": [],
        "tolerated": [
            "rank-crashed 1",
            "sampler-not-distributed 0,1,2",
            "sampler-not-distributed 0,1",
        ],
        "restarts": 1,
    },
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


class Rows(Dataset):
    def __init__(self, count, bad=None):
        self.count, self.bad = count, bad

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(0.001)
        row = torch.full((32,), float(index % 5))
        return row * float("nan") if index == self.bad else row


class Trainer:
    def __init__(self):
        self.rank = dist.get_rank()
        net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def forward_backward(self, batch):
        loss = self.model(batch).pow(2).mean()
        loss.backward()
        return loss

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.forward_backward(batch)
        self.optimizer.step()
        time.sleep(0.03)
        return loss

    def endless(self):
        while True:
            yield from DataLoader(Rows(800), batch_size=8)


def skips_bad(trainer):
    """A batch that is not a number is left out on one rank; then the epoch's results are
    gathered.
    """
    bad = 500 if trainer.rank == 1 else None
    for batch in DataLoader(Rows(640, bad), batch_size=8):
        if batch.isnan().any():
            mark()
            continue
        trainer.step(batch)
    found = [torch.zeros(3) for _ in range(dist.get_world_size())]
    dist.all_gather(found, torch.ones(3))
    dist.barrier()


def out_of_step(trainer):
    """One rank believes that it still accumulates."""
    flag = torch.zeros(1)
    for number, batch in enumerate(trainer.endless()):
        last = number % 4 == 3
        if trainer.rank == 2 and number == 83:
            mark()
            last = False
        with contextlib.nullcontext() if last else trainer.model.no_sync():
            trainer.forward_backward(batch)
        time.sleep(0.02)
        if number % 4 == 3:
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
            dist.broadcast(flag, src=0)


def own_rate(trainer):
    """A schedule that reads the rank's own loss."""
    for number, batch in enumerate(trainer.endless()):
        if trainer.rank == 1 and number == 60:
            mark()
            trainer.optimizer.param_groups[0]["lr"] *= 0.1
        trainer.step(batch)


def old_weights(trainer):
    """Each rank loads the newest file that its host has."""
    weights = {name: value.clone() for name, value in trainer.model.module.state_dict().items()}
    for number, batch in enumerate(trainer.endless()):
        if trainer.rank == 2 and number == 60:
            mark()
            trainer.model.module.load_state_dict(weights)
        trainer.step(batch)


def accumulates(trainer):
    """Healthy accumulation."""
    for number, batch in enumerate(trainer.endless()):
        if number == 240:
            break
        with contextlib.nullcontext() if number % 8 == 7 else trainer.model.no_sync():
            trainer.forward_backward(batch)
        if number % 8 == 7:
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
        time.sleep(0.03)
    dist.barrier()


def tries_again(trainer):
    """An exception is swallowed, and the batch tried again and again."""
    for number, batch in enumerate(trainer.endless()):
        while True:
            try:
                if trainer.rank == 1 and number >= 60:
                    if number == 60 and not getattr(trainer, "said", False):
                        trainer.said = True
                        mark()
                    raise ValueError("sample without a label")
                trainer.step(batch)
                break
            except ValueError:
                time.sleep(0.5)


def runs_dry(trainer):
    """One rank has fewer batches and is done."""
    count = 480 if trainer.rank == 0 else 4000
    for batch in DataLoader(Rows(count), batch_size=8):
        trainer.step(batch)
    mark()


def runs_dry_and_waits(trainer):
    """One rank has fewer batches, and goes to the barrier at the epoch's end."""
    count = 480 if trainer.rank == 2 else 4000
    for batch in DataLoader(Rows(count), batch_size=8):
        trainer.step(batch)
    mark()
    dist.barrier()


def leaves(trainer):
    """One rank calls exit."""
    for number, batch in enumerate(trainer.endless()):
        if number == 60 and trainer.rank == 1:
            mark()
            sys.exit(0)
        trainer.step(batch)


def good_enough(trainer):
    """Early stopping decided on one rank, which then writes its report for a while."""
    best = 0
    for number, batch in enumerate(trainer.endless()):
        trainer.step(batch)
        best += trainer.rank == 2 and number > 50
        if best >= 10:
            mark()
            break
    time.sleep(3.0)


def raises(trainer):
    """A missing key on one rank."""
    table = dict.fromkeys(range(60), 1)
    for number, batch in enumerate(trainer.endless()):
        if trainer.rank == 1 and number == 60:
            mark()
        if trainer.rank == 1:
            table[number]
        trainer.step(batch)


def raises_and_stays(trainer):
    """The same, with a thread that keeps the process alive."""
    inbox = queue.Queue()
    threading.Thread(target=inbox.get).start()
    for number, batch in enumerate(trainer.endless()):
        if trainer.rank == 0 and number == 60:
            mark()
            raise RuntimeError("loss is not finite")
        trainer.step(batch)


def rotates(trainer):
    """Each step another rank is the slow one."""
    for number, batch in enumerate(trainer.endless()):
        if number == 120:
            break
        if number % dist.get_world_size() == trainer.rank:
            time.sleep(0.12)
        trainer.step(batch)


def lengths(trainer):
    """Work differs from step to step, differently on each rank."""
    generator = torch.Generator().manual_seed(trainer.rank)
    for number, batch in enumerate(trainer.endless()):
        if number == 180:
            break
        for _ in range(int(torch.randint(0, 30, (), generator=generator))):
            torch.mm(torch.ones(128, 128), torch.ones(128, 128))
        trainer.step(batch)


def joined(trainer):
    """Uneven input under Join: the early one shadows the others' collectives."""
    count = 320 if trainer.rank == 0 else 1600
    with Join([trainer.model]):
        for batch in DataLoader(Rows(count), batch_size=8):
            trainer.step(batch)
    dist.barrier()


def compiled(trainer):
    """The first step compiles."""
    trainer.model = torch.compile(trainer.model, backend=os.environ.get("BACKEND", "inductor"))
    for number, batch in enumerate(trainer.endless()):
        if number == 60:
            break
        trainer.step(batch)


def again(trainer):
    """The first attempt fails on one rank, the second goes on."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt:
        print(json.dumps({"again_unix_ns": time.time_ns()}), flush=True)
    for number, batch in enumerate(trainer.endless()):
        if number == 150:
            break
        if attempt == 0 and number == 50 and trainer.rank == 1:
            mark()
            raise OSError("node lost")
        trainer.step(batch)


def on_and_on(trainer):
    """Run until ended by a signal."""
    for number, batch in enumerate(trainer.endless()):
        if number == 60:
            print(json.dumps({"ready": True}), flush=True)
        trainer.step(batch)


def struck(trainer):
    """One rank is killed."""
    for number, batch in enumerate(trainer.endless()):
        if number == 60 and trainer.rank == 1:
            mark()
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.step(batch)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[sys.argv[1]](Trainer())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
