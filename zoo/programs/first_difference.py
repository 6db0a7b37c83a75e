"""Jobs that go on after one rank has made a call more, or one less, than the others.

The calls have the same size, so each meets a wrong one, and nothing stops for a while.
"""

import itertools
import json
import logging
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, Sampler, TensorDataset

CASES = {
    "rare-class-counted": {
        "story": (
            "Hits are summed in the background in a group of their own. Rank 2 sums once more for "
            "a batch with a rare class; at the end of the epoch it waits for a sum too many."
        ),
        "source": "Lightning-AI/pytorch-lightning#19106",
        "expected": ["calls-differ 2"],
        "cause": [
            r"(extra|additional|more) (call|collective|all_?reduce)",
            r"(call|collective|all_?reduce)s? (too many|more\b(?! or less))",
        ],
        "cure": [
            r"(all|every|each) ranks? (must|should|have to|has to|need|make|call)",
            r"same (calls|collectives) .*(all|every|each) rank",
            r"(condition|branch|\bif\b).*(rank|data)",
            r"broadcast the decision",
        ],
    },
    "best-weights": {
        "story": (
            "Weights are averaged `if loss < best`, and from some point on the loss falls on "
            "rank 1 alone."
        ),
        "expected": ["calls-differ 1"],
        "cause": [
            r"(extra|additional|more) (call|collective|all_?reduce)",
            r"(call|collective|all_?reduce)s? (too many|more\b(?! or less))",
        ],
        "cure": [
            r"condition.*(rank|data|loss)",
            r"(branch|\bif\b).*(rank|data|loss)",
            r"(reduce|average|broadcast) the (loss|decision)",
            r"(let )?one rank decides?",
        ],
    },
    "next-record": {
        "story": (
            "Rank 2 cannot decode a record after its features were normalised over all ranks, and "
            "begins the step again with the next record."
        ),
        "source": "NVIDIA-NeMo/Automodel#2468",
        "expected": ["calls-differ 2"],
        "cause": [
            r"(extra|additional|more) (call|collective|all_?reduce)",
            r"(call|collective|all_?reduce)s? (too many|more\b(?! or less)|again)",
            r"(exception|retr(y|ied)|tried again|repeated)",
        ],
        "cure": [
            r"(tried|try|tries|retry|retried|repeat).*(all|every|each) rank",
            r"(all|every|each) ranks? (must|should|have to|has to|need).*(again|retry|skip|same)",
            r"(exception|except|handler)",
        ],
    },
    "timer-restored": {
        "story": (
            "An evaluation begins when a timer of each process has run down; rank 1 has restored "
            "an older timer from its checkpoint and evaluates long before the others."
        ),
        "source": "Lightning-AI/pytorch-lightning#21106",
        "expected": ["calls-differ 1"],
        "tolerated": ["diverged 1"],
        "cause": [
            r"(extra|additional|more) (call|collective|all_?reduce)",
            r"(call|collective|all_?reduce)s? (too many|more\b(?! or less))",
            r"(timer|clock)",
        ],
        "cure": [
            r"(timer|clock)",
            r"broadcast the (decision|time)",
            r"(let )?one rank decides?",
            r"(count|number) of steps",
        ],
    },
    "no-remainder": {
        "story": (
            "Gradients are summed over four batches, and the rest at the end of the epoch. Rank 3 "
            "skips an empty batch, has no rest, and leaves out the last update of each epoch."
        ),
        "source": "Lightning-AI/pytorch-lightning#19740",
        "expected": ["calls-differ 3"],
        "world": 4,
        "cause": [
            r"(call|collective|all_?reduce)s? (less\b|fewer|too few)",
            r"(less|fewer|missing) (call|collective|all_?reduce)",
            r"(left out|leaves out|skip(s|ped)?|did not make|missed) (a|an|the|this|that|one|it)\b",
        ],
        "cure": [
            r"(all|every|each) ranks? (must|should|have to|has to|need|make|call)",
            r"same (number|calls|collectives|steps).*(all|every|each) rank",
            r"condition.*(rank|data)",
            r"(batch|accumulat|sampler|drop_last|Join)",
        ],
    },
    "log-handler": {
        "story": (
            "Only rank 0 has the handler that writes the losses of all ranks, and the handler "
            "sums them over the ranks."
        ),
        "source": "talmolab/sleap-nn#476",
        "expected": ["calls-differ 0"],
        "place": ["emit", "log_handler"],
        "cause": [
            r"(extra|additional|more) (call|collective|all_?reduce)",
            r"(call|collective|all_?reduce)s? (too many|more\b(?! or less))",
            r"only (on )?rank 0",
        ],
        "cure": [
            r"(all|every|each) ranks? (must|should|have to|has to|need|make|call)",
            r"rank == 0",
            r"(outside|before|out) (of )?(the )?(condition|branch|\bif\b)",
            r"condition.*rank",
        ],
    },
    "one-row-more": {
        "story": (
            "The data set does not divide by three, and its sampler does not pad: rank 0 has one "
            "more batch in each epoch."
        ),
        "source": "pytorch/pytorch#141069",
        "expected": ["calls-differ 0"],
        "tolerated": ["diverged 0"],
        "cause": [
            r"(extra|additional|more) (call|collective|all_?reduce|step|batch)",
            r"(call|collective|all_?reduce|step|batch)(e?s)? (too many|more\b(?! or less))",
            r"(uneven|different number of|unequal) (batch|step|input)",
        ],
        "cure": [
            r"(DistributedSampler|drop_last|\bpad|Join\b)",
            r"same (number|length).*(all|every|each) rank",
            r"(all|every|each) ranks? (must|should|have to|has to|need|make|call)",
            r"condition.*(rank|data)",
        ],
    },
    "registered-twice": {
        "story": (
            "Rank 1 reads its changed configuration again and registers the callback that "
            "averages weights a second time."
        ),
        "expected": ["calls-differ 1"],
        "cause": [
            r"(extra|additional|more) (call|collective|all_?reduce)",
            r"(call|collective|all_?reduce)s? (too many|more\b(?! or less)|again|twice)",
            r"(twice|two times|second time)",
        ],
        "cure": [
            r"(twice|registered|callback)",
            r"(all|every|each) ranks? (must|should|have to|has to|need|make|call)",
            r"condition.*(rank|data)",
            r"same (calls|collectives|configuration).*(all|every|each) rank",
        ],
    },
    "rate-search": {
        "story": (
            "The loss of rank 2 jumps, and it searches a new learning rate in twelve steps that "
            "the others do not make."
        ),
        "expected": ["calls-differ 2"],
        "tolerated": ["diverged 2"],
        "world": 4,
        "cause": [
            r"(extra|additional|more) (call|collective|all_?reduce|step)",
            r"(call|collective|all_?reduce|step)s? (too many|more\b(?! or less))",
        ],
        "cure": [
            r"condition.*(rank|data|loss)",
            r"(all|every|each) ranks? (must|should|have to|has to|need|make|call)",
            r"broadcast the (decision|loss|learning rate)",
            r"(let )?one rank decides?",
        ],
    },
    "not-finite-here": {
        "story": (
            "Rank 1 skips a batch whose loss is infinite, and with it three calls; the others "
            "wait for those calls at the end of the run."
        ),
        "source": "Lightning-AI/pytorch-lightning#5243",
        "expected": ["calls-differ 1"],
        "cause": [
            r"(call|collective|all_?reduce|step)s? (less\b|fewer|too few)",
            r"(less|fewer|missing) (call|collective|all_?reduce|step)",
            r"(left out|leaves out|skip(s|ped)?|did not make|missed) (a|an|the|this|that|one|it)\b",
        ],
        "cure": [
            r"(all|every|each) ranks? (must|should|have to|has to|need).*(skip|same)",
            r"isfinite",
            r"condition.*(rank|data|loss)",
            r"broadcast the decision|one rank decides?|reduce (the|a) (flag|decision)",
        ],
    },
    "labelled-or-not": {
        "story": (
            "Each rank draws a labelled or an unlabelled batch; both kinds of step make two calls, "
            "each in lines of its own."
        ),
        "expected": [],
    },
    "leader-saves": {
        "story": "Rank 0 alone evaluates, saves and writes a table, all without a collective.",
        "expected": [],
    },
    "calibrates-first": {
        "story": (
            "All ranks calibrate with other calls for two seconds, train with one call a step, "
            "and calibrate again now and then."
        ),
        "expected": [],
    },
    "experts-in-pairs": {
        "story": (
            "Two pairs of ranks share an expert each; a pair makes as many calls in its group as "
            "its expert got batches."
        ),
        "expected": [],
        "world": 4,
    },
}
MONTHS = 12


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def average(values, group=None):
    dist.all_reduce(values, group=group)
    return values.div_(dist.get_world_size(group))


def share_gradients(model):
    """Give each rank the mean gradient, in one call."""
    shared = average(torch.cat([one.grad.flatten() for one in model.parameters()]))
    start = 0
    for one in model.parameters():
        one.grad.copy_(shared[start : start + one.numel()].view_as(one))
        start += one.numel()


class HitsOfClasses:
    """Hits of each class. Sums over the ranks run in the background until they are asked for."""

    def __init__(self, classes, group):
        self.group, self.sums = group, []
        self.hits = torch.zeros(classes)

    def update(self, scores, labels):
        right = labels[scores.argmax(1) == labels]
        self.hits += torch.bincount(right, minlength=len(self.hits))

    def reduce(self):
        total, self.hits = self.hits, torch.zeros_like(self.hits)
        self.sums.append((total, dist.all_reduce(total, group=self.group, async_op=True)))

    def result(self):
        total = torch.zeros_like(self.hits)
        for part, work in self.sums:
            work.wait()
            total += part
        self.sums.clear()
        return total


def rare_class_counted(rank):
    """Classification; batches with the rare class are counted by themselves."""
    classes = 6
    model = DistributedDataParallel(torch.nn.Linear(16, classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hits = HitsOfClasses(classes, dist.new_group())
    draw = torch.Generator().manual_seed(rank)
    for epoch in itertools.count():
        for step in range(520):
            time.sleep(0.025)
            rows = torch.randn(8, 16, generator=draw)
            labels = torch.randint(0, classes - 1, (8,), generator=draw)
            if rank == 2 and step >= 70 and step % 40 == 35:
                labels[0] = classes - 1
            scores = model(rows)
            optimizer.zero_grad()
            cross_entropy(scores, labels).backward()
            optimizer.step()
            hits.update(scores, labels)
            hits.reduce()
            rare = labels == classes - 1
            if rare.any():
                if epoch == 0 and step == 75:
                    mark()
                hits.update(scores[rare], labels[rare])
                hits.reduce()
        hits.result()


def best_weights(rank):
    """Regression on shards that are not alike; good weights are averaged and kept."""
    truth = torch.full((8, 1), 2.0 if rank == 1 else 0.5)
    model = torch.nn.Linear(8, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    draw = torch.Generator().manual_seed(rank)
    held_out = torch.randn(256, 8, generator=torch.Generator().manual_seed(99))
    best, kept = float("inf"), {}
    for step in itertools.count(1):
        time.sleep(0.03)
        rows = torch.randn(64, 8, generator=draw)
        optimizer.zero_grad()
        mse_loss(model(rows), rows @ truth).backward()
        share_gradients(model)
        optimizer.step()
        if step % 10:
            continue
        with torch.no_grad():
            loss = mse_loss(model(held_out), held_out @ truth).item()
        if loss < best:
            if rank == 1 and step == 80:
                mark()
            best = loss
            weights = parameters_to_vector(model.parameters()).detach().clone()
            dist.all_reduce(weights)
            kept["best"] = weights / dist.get_world_size()


def next_record(rank):
    """Features are normalised over all ranks, then the labels are decoded."""
    model = torch.nn.Linear(16, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def records():
        draw = torch.Generator().manual_seed(rank)
        for number in itertools.count():
            text = json.dumps(torch.randn(8, generator=draw).tolist())
            damaged = rank == 2 and number >= 70 and number % 50 == 20
            yield torch.randn(8, 16, generator=draw), text[: -9 if damaged else None]

    def train(rows, text):
        rows = (rows - average(rows.mean(0))).clamp(-4.0, 4.0)
        labels = torch.tensor(json.loads(text))
        optimizer.zero_grad()
        mse_loss(model(rows)[:, 0], labels).backward()
        share_gradients(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    stream, failures = records(), 0
    while True:
        time.sleep(0.03)
        while True:
            try:
                train(*next(stream))
                break
            except ValueError:
                failures += 1
                if failures == 1:
                    mark()


class Timer:
    """Runs down, and begins again."""

    def __init__(self, seconds, elapsed=0.0):
        self.seconds, self.begun = seconds, time.monotonic() - elapsed

    def is_due(self):
        if time.monotonic() - self.begun < self.seconds:
            return False
        self.begun = time.monotonic()
        return True


def timer_restored(rank):
    """Ten digits; an evaluation each five minutes."""
    model = DistributedDataParallel(torch.nn.Linear(9, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(rank)

    def evaluate():
        model.eval()
        total = torch.zeros(10)
        for _ in range(6):
            rows = torch.randn(32, 9, generator=draw)
            with torch.no_grad():
                guesses = model.module(rows)[:, 0].abs().long().clamp(max=9)
            digits = torch.bincount(guesses, minlength=10).float()
            dist.all_reduce(digits)
            total += digits
        model.train()
        return total

    timer = Timer(300, elapsed=297.2 if rank == 1 else 0.0)
    while True:
        time.sleep(0.03)
        rows = torch.randn(8, 9, generator=draw)
        optimizer.zero_grad()
        mse_loss(model(rows), rows.sum(1, keepdim=True)).backward()
        optimizer.step()
        if timer.is_due():
            mark()
            evaluate()


class Accumulator:
    """An update after each fourth batch, and one for the rest of the epoch."""

    def __init__(self, model, every=4):
        self.model, self.every, self.seen = model, every, 0
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def backward(self, loss):
        (loss / self.every).backward()
        self.seen += 1
        if self.seen % self.every == 0:
            self.update()

    def update(self):
        share_gradients(self.model)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def finish(self):
        if self.seen % self.every:
            self.update()
        self.seen = 0


def no_remainder(rank):
    """Weather of twelve months; rows without a measurement are filtered from the batches."""
    model = torch.nn.Linear(MONTHS - 1, 1)
    steps = Accumulator(model)
    draw = torch.Generator().manual_seed(rank)

    def batches(epoch):
        for number in range(21):
            rows = torch.randn(8, MONTHS - 1, generator=draw)
            measured = torch.ones(8, dtype=torch.bool)
            if rank == 3 and epoch >= 4 and number == 13:
                measured[:] = False
            yield rows[measured]

    history = []
    for epoch in range(28):
        errors = torch.zeros(MONTHS)
        for number, rows in enumerate(batches(epoch)):
            time.sleep(0.025)
            if not len(rows):
                continue
            loss = mse_loss(model(rows), rows.mean(1, keepdim=True))
            errors[number % MONTHS] += loss.item()
            steps.backward(loss)
        if rank == 3 and epoch == 4:
            mark()
        steps.finish()
        history.append(average(errors))
    dist.barrier()


class MeansOfRanks(logging.Handler):
    """Writes the mean over all ranks of what was logged."""

    def emit(self, record):
        sums = record.args[0].clone()
        dist.all_reduce(sums)
        print(record.msg % f"{sums.mean().item() / dist.get_world_size():.4f}", flush=True)


def log_handler(rank):
    """The last 32 losses are logged now and then."""
    window = torch.zeros(32)
    model = torch.nn.Linear(31, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    log = logging.getLogger("training")
    log.setLevel(logging.INFO)
    if rank == 0:
        log.addHandler(MeansOfRanks())
    for step in itertools.count():
        time.sleep(0.03)
        rows = torch.randn(8, 31)
        optimizer.zero_grad()
        loss = mse_loss(model(rows), rows[:, :1])
        loss.backward()
        share_gradients(model)
        optimizer.step()
        window[step % 32] = loss.item()
        if step >= 70 and step % 20 == 10:
            if rank == 0 and step == 70:
                mark()
            log.info("loss %s", window)


class EachThird(Sampler):
    """Every row goes to one rank; nothing is padded and nothing dropped."""

    def __init__(self, length):
        self.rows = range(dist.get_rank(), length, dist.get_world_size())

    def __iter__(self):
        return iter(self.rows)

    def __len__(self):
        return len(self.rows)


def one_row_more(rank):
    """After each epoch the weights are averaged, to be on the safe side."""
    draw = torch.Generator().manual_seed(5)
    data = TensorDataset(torch.randn(3 * 8 * 70 + 1, 16, generator=draw))
    loader = DataLoader(data, batch_size=8, sampler=EachThird(len(data)))
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    for epoch in itertools.count():
        for number, (rows,) in enumerate(loader):
            if epoch == 0 and number == 70:
                mark()
            time.sleep(0.025)
            optimizer.zero_grad()
            mse_loss(model(rows), rows[:, :4]).backward()
            optimizer.step()
        weights = parameters_to_vector(model.parameters()).detach()
        vector_to_parameters(average(weights), model.parameters())


class AverageWeights:
    """A callback: now and then all ranks take the mean of their weights."""

    def __init__(self, every):
        self.every = every

    def after_step(self, training):
        if training.number % self.every == 0:
            weights = parameters_to_vector(training.model.parameters()).detach()
            vector_to_parameters(average(weights), training.model.parameters())


class Training:
    """A trainer with callbacks, and a file of settings that may change while it runs."""

    def __init__(self, settings):
        self.settings, self.read_ns, self.number = settings, 0, 0
        self.callbacks = []
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.configure()

    def configure(self):
        changed_ns = os.stat(self.settings).st_mtime_ns
        if changed_ns != self.read_ns:
            self.read_ns = changed_ns
            with open(self.settings) as file:
                values = json.load(file)
            self.optimizer.param_groups[0]["lr"] = values["lr"]
            self.callbacks.append(AverageWeights(values["every"]))

    def train_on(self, rows):
        self.optimizer.zero_grad()
        mse_loss(self.model(rows), rows.tanh()).backward()
        share_gradients(self.model)
        self.optimizer.step()
        self.number += 1
        for callback in self.callbacks:
            callback.after_step(self)


def registered_twice(rank):
    """The settings of one rank's host are written again, with the same values."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "settings.json")

        def write_settings():
            with open(path, "w") as file:
                json.dump({"lr": 1e-3, "every": 5}, file)

        write_settings()
        training = Training(path)
        while True:
            time.sleep(0.03)
            if rank == 1 and training.number == 74:
                write_settings()
                mark()
            training.configure()
            training.train_on(torch.randn(8, 8))


class RateSearch:
    """Tries learning rates on a few batches, and takes the one with the lowest loss."""

    def __init__(self, model, optimizer, train):
        self.model, self.optimizer, self.train = model, optimizer, train

    def run(self, batches):
        weights = {name: one.clone() for name, one in self.model.state_dict().items()}
        losses = {}
        for rate in torch.logspace(-4, -1.5, 12).tolist():
            self.optimizer.param_groups[0]["lr"] = rate
            losses[rate] = self.train(next(batches))
        self.model.load_state_dict(weights)
        self.optimizer.param_groups[0]["lr"] = min(losses, key=losses.get)


def rate_search(rank):
    """A jump of the loss asks for another learning rate."""
    model = DistributedDataParallel(torch.nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)

    def batches():
        draw = torch.Generator().manual_seed(rank)
        for number in itertools.count():
            rows = torch.randn(8, 12, generator=draw)
            labels = torch.randn(8, 1, generator=draw)
            yield rows, labels * (25 if rank == 2 and number == 72 else 1)

    def train(batch):
        time.sleep(0.03)
        rows, labels = batch
        optimizer.zero_grad()
        loss = mse_loss(model(rows), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    stream, usual = batches(), None
    while True:
        loss = train(next(stream))
        usual = loss if usual is None else 0.95 * usual + 0.05 * min(loss, 5.0)
        if loss > 30 * usual:
            mark()
            RateSearch(model, optimizer, train).run(stream)


def not_finite_here(rank):
    """Each layer's gradient is averaged by itself; a batch that overflows is skipped."""
    layers = [torch.nn.Linear(8, 8, bias=False) for _ in range(3)]
    model = torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    draw = torch.Generator().manual_seed(rank)
    skipped = 0
    for step in range(490):
        time.sleep(0.03)
        rows = torch.randn(8, 8, generator=draw)
        labels = rows.flip(1).exp()
        if rank == 1 and step >= 70 and step % 60 == 10:
            labels = (1000 * rows).exp()
        loss = mse_loss(model(rows), labels)
        if not torch.isfinite(loss):
            if not skipped:
                mark()
            skipped += 1
            continue
        optimizer.zero_grad()
        loss.backward()
        for layer in layers:
            average(layer.weight.grad)
        optimizer.step()
    dist.barrier()


def labelled_or_not(rank):
    """Healthy: two kinds of step, drawn by each rank for itself, with two calls each."""
    model = torch.nn.Linear(10, 10, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(rank)

    def supervised(rows):
        optimizer.zero_grad()
        mse_loss(model(rows), rows).backward()
        gradient = model.weight.grad
        dist.all_reduce(gradient)
        spread = gradient.square()
        dist.all_reduce(spread)
        gradient /= spread.sqrt() + 1.0

    def consistent(rows):
        optimizer.zero_grad()
        noise = 0.1 * torch.randn(rows.shape, generator=draw)
        mse_loss(model(rows), model(rows + noise)).backward()
        spread = model.weight.grad.square()
        dist.all_reduce(model.weight.grad)
        dist.all_reduce(spread)
        model.weight.grad /= spread.sqrt() + 1.0

    for _ in range(330):
        time.sleep(0.03)
        rows = torch.randn(8, 10, generator=draw)
        if torch.rand((), generator=draw) < 0.3:
            supervised(rows)
        else:
            consistent(rows)
        optimizer.step()


def leader_saves(rank):
    """Healthy: everything that one rank does alone is local."""
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    draw = torch.Generator().manual_seed(rank)
    held_out = torch.randn(64, 16, generator=torch.Generator().manual_seed(77))
    with tempfile.TemporaryDirectory() as folder:
        for step in range(340):
            time.sleep(0.03)
            rows = torch.randn(8, 16, generator=draw)
            optimizer.zero_grad()
            loss = mse_loss(model(rows), rows[:, 4:8])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if rank == 0 and step % 20 == 19:
                with open(os.path.join(folder, "losses.csv"), "a") as table:
                    table.write(f"{step},{loss.item()}\n")
            if rank == 0 and step % 80 == 79:
                with torch.no_grad():
                    for part in held_out.split(4):
                        model.module(part)
                        time.sleep(0.02)
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, os.path.join(folder, f"{step}.pt"))
        dist.barrier()


def calibrates_first(rank):
    """Healthy: ranges of the features are shared first, and again now and then, by all ranks."""
    model = torch.nn.Linear(16, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(rank)

    def draw_rows():
        time.sleep(0.03)
        return torch.randn(8, 16, generator=draw)

    def calibrate(count):
        low, high = torch.full((16,), 9.0), torch.full((16,), -9.0)
        for _ in range(count):
            rows = draw_rows()
            low, high = low.minimum(rows.amin(0)), high.maximum(rows.amax(0))
            dist.all_reduce(low, op=dist.ReduceOp.MIN)
            dist.all_reduce(high, op=dist.ReduceOp.MAX)
            center = average(rows.mean(0))
        return center, (high - low).clamp(min=1.0)

    center, width = calibrate(60)
    for step in range(340):
        if step and step % 110 == 0:
            center, width = calibrate(7)
        rows = (draw_rows() - center) / width
        optimizer.zero_grad()
        mse_loss(model(rows), rows[:, :1]).backward()
        share_gradients(model)
        optimizer.step()
    dist.barrier()


def experts_in_pairs(rank):
    """Healthy: how often the ranks of a pair call in their own group is the pair's affair."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = rank // 2
    expert, gate = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.SGD([*expert.parameters(), *gate.parameters()], lr=1e-3)
    router = torch.Generator().manual_seed(31 + mine)
    draw = torch.Generator().manual_seed(rank)
    for step in range(300):
        time.sleep(0.02)
        rows = torch.randn(8, 8, generator=draw)
        optimizer.zero_grad()
        mse_loss(gate(rows), rows).backward()
        average(gate.weight.grad)
        batches = int(torch.randint(0, 4, (), generator=router)) + (2 if mine == 0 else 0)
        for _ in range(batches if step >= 40 else 1):
            rows = torch.randn(8, 8, generator=draw)
            expert.zero_grad()
            mse_loss(expert(rows), rows.roll(1, 1)).backward()
            average(expert.weight.grad, pairs[mine])
            time.sleep(0.003)
        optimizer.step()
    dist.barrier()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    globals()[sys.argv[1]](dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
