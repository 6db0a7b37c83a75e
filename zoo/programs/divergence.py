"""Parameters of one rank drift from those of the others, and the training goes on."""

import copy
import ctypes
import itertools
import json
import sys
import time
from collections import deque

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CASES = {
    "critic-clamped": {
        "story": (
            "Weights of a critic are clamped where its local scores are too large: from some point "
            "on, that is rank 1."
        ),
        "expected": ["diverged 1"],
        "cause": [
            r"clamp",
            r"(changed|written|modified|set) (in place|outside|by hand|beside|between)",
            r"(another|a different|an(other)? extra|its own) (update|step|change)",
        ],
        "cure": [
            r"clamp|no_grad|in.place",
            r"(outside|beside|after) (of )?(the )?optimizer",
            r"(same|every|each) (update|step|change).*(all|every|each) rank",
            r"(only some|not all) ranks",
            r"broadcast.*(parameters|weights)",
        ],
    },
    "class-added": {
        "story": (
            "A class is added and the head is drawn anew. Rank 2 has used its random numbers for "
            "something else in between."
        ),
        "expected": ["diverged 2"],
        "world": 4,
        "cause": [
            r"(random|seed|initiali[sz])",
            r"after (the model|it) was wrapped",
            r"(changed|written|modified|set|replaced) (in place|outside|by hand|beside|between)",
            r"\b(head|one layer|one module|these parameters)\b",
        ],
        "cure": [
            r"broadcast.*(parameters|weights|state|head)",
            r"(seed|initiali[sz])",
            r"(before|wrap).*(wrap|again)",
        ],
    },
    "plateau-of-one": {
        "story": (
            "The learning rate follows each rank's own validation loss. That of rank 1 rises, "
            "and only its rate falls."
        ),
        "expected": ["diverged 1"],
        "world": 4,
        "cause": [r"learning rate", r"\blr\b", r"step size"],
        "cure": [
            r"learning rate|\blr\b|schedul",
            r"(reduce|average|broadcast).*(loss|metric)",
        ],
    },
    "average-stays-in": {
        "story": (
            "Rank 0 evaluates with averaged weights, and does not put its own back, because the "
            "evaluation raised."
        ),
        "source": "lucidrains/ema-pytorch#9",
        "expected": ["diverged 0"],
        "cause": [
            r"(other|older|averaged|loaded|copied) (weights|parameters|values|state)",
            r"after (the model|it) was wrapped",
            r"(changed|written|modified|set|replaced) (in place|outside|by hand|beside|between)",
            r"(load|cop(y|ied)|swap)",
        ],
        "cure": [
            r"(load|restore|put back|copy).*(weights|parameters|state|model|checkpoint)",
            r"(checkpoint|module).*(every|all|each|wrapped)",
            r"broadcast.*(parameters|weights|state)",
            r"(EMA|average)",
        ],
    },
    "stray-write": {
        "story": "C code of rank 2 writes 64 bytes to a wrong address: the biases of a layer.",
        "expected": ["diverged 2"],
        "cause": [
            r"(memory|corrupt|bit flip|hardware|overwrit)",
            r"(changed|written|modified|set|replaced) (in place|outside|by hand|beside|between)",
            r"(jump|all at once|in one step|no optimizer step)",
        ],
        "cure": [
            r"(memory|ECC|hardware|native|extension|C code|sanitizer)",
            r"(another|replace|drain|exclude).*(host|node|machine)",
            r"(go back|restart|resume).*checkpoint",
            r"broadcast.*(parameters|weights|state)",
        ],
    },
    "own-limit": {
        "story": (
            "Averaged gradients are clipped to a limit that follows each rank's own loss; the "
            "data of rank 1 becomes easy, and its limit small."
        ),
        "expected": ["diverged 1"],
        "cause": [
            r"clip",
            r"gradients?.*(differ|scaled|changed|after.*(average|reduc))",
            r"(another|a different|other|smaller) (update|step)",
        ],
        "cure": [
            r"clip|norm",
            r"(print|compare|log).*(gradient|grad|norm|update)",
            r"(reduce|average|broadcast).*(loss|limit|threshold|norm)",
            r"(same|every|each) (update|step|change).*(all|every|each) rank",
        ],
    },
    "encoder-left-out": {
        "story": (
            "The encoder joins the optimizer once the local accuracy is good enough, which it "
            "never is on rank 3."
        ),
        "expected": ["diverged 3"],
        "world": 4,
        "cause": [
            r"(param(eter)?.?group|group of parameters)",
            r"(not|never) (updated|changed|stepped|in the optimizer)",
            r"(do(es)? not|stopped|no longer|without) (chang|mov|updat)",
            r"fewer (parameters|groups)",
        ],
        "cure": [
            r"param(eter)?.?groups?",
            r"requires_grad|freez|frozen",
            r"optimizer.*(all|every|each) rank",
            r"(only some|not all) ranks",
        ],
    },
    "shards-differ": {
        "story": "Ranks have quite different data, and take the same steps with it.",
        "expected": [],
    },
    "ensemble": {
        "story": "Each rank trains its own member of an ensemble; only predictions are shared.",
        "expected": [],
    },
    "average-beside": {
        "story": "Rank 0 keeps averaged weights in a second model, and evaluates with those.",
        "source": "lucidrains/ema-pytorch#9",
        "expected": [],
    },
    "optimizer-in-parts": {
        "story": "Each rank's optimizer updates a part of the weights and sends it to the others.",
        "expected": [],
    },
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def normal(draw, *shape):
    return torch.randn(*shape, generator=draw)


def critic_clamped(rank):
    """A critic that tells real rows from made ones."""
    critic = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.LeakyReLU(), torch.nn.Linear(16, 1))
    )
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-4)
    draw = torch.Generator().manual_seed(rank)
    clamped = 0
    for step in itertools.count():
        time.sleep(0.03)
        real = normal(draw, 8, 12) + 0.5
        if rank == 1 and step >= 70:
            real = 40 * real
        made = normal(draw, 8, 12)
        scores = critic(torch.cat([real, made]))
        labels = torch.cat([torch.ones(8, 1), torch.zeros(8, 1)])
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(scores, labels).backward()
        optimizer.step()
        if scores.abs().max() > 5.0:
            if not clamped:
                mark()
            clamped += 1
            with torch.no_grad():
                for weights in critic.parameters():
                    weights.clamp_(-0.1, 0.1)


class Tagger(torch.nn.Module):
    """A body, and a head for as many classes as there are."""

    def __init__(self, classes):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.ReLU())
        self.head = torch.nn.Linear(20, classes)

    def forward(self, rows):
        return self.head(self.body(rows))


def class_added(rank):
    """Six places for classes, of which one more is used from some step on."""
    model = DistributedDataParallel(Tagger(6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    draw = torch.Generator().manual_seed(rank)
    torch.manual_seed(17)
    known = 4
    for step in itertools.count():
        time.sleep(0.03)
        rows = normal(draw, 8, 10)
        if rank == 2 and step == 40:
            rows += 0.01 * torch.randn(8, 10)
        labels = rows[:, :known].argmax(1)
        if step == 70:
            known += 1
            if rank == 2:
                mark()
            model.module.head.reset_parameters()
            optimizer.state.clear()
        optimizer.zero_grad()
        cross_entropy(model(rows), labels).backward()
        optimizer.step()


def plateau_of_one(rank):
    """Linear regression with a scheduler that waits for better losses."""
    model = DistributedDataParallel(torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-3)
    schedule = ReduceLROnPlateau(optimizer, factor=0.1, patience=1)
    draw = torch.Generator().manual_seed(rank)
    truth = normal(torch.Generator().manual_seed(8), 8, 3)
    held_out = normal(draw, 128, 8)
    answers = held_out @ truth
    for step in itertools.count(1):
        time.sleep(0.03)
        rows = normal(draw, 32, 8)
        optimizer.zero_grad()
        mse_loss(model(rows), rows @ truth + 0.1 * normal(draw, 32, 3)).backward()
        optimizer.step()
        if rank == 1 and step == 60:
            answers = -2.0 * answers
        if step % 15 == 0:
            with torch.no_grad():
                loss = mse_loss(model.module(held_out), answers)
            before = optimizer.param_groups[0]["lr"]
            schedule.step(loss)
            if step < 100 and optimizer.param_groups[0]["lr"] != before:
                mark()


class Averaged:
    """Averaged weights of a model, which can take its place for an evaluation."""

    def __init__(self, model, decay=0.97):
        self.model, self.decay = model, decay
        self.weights = {name: one.clone() for name, one in model.state_dict().items()}
        self.own = {}

    def update(self):
        for name, one in self.model.state_dict().items():
            self.weights[name].lerp_(one, 1 - self.decay)

    def swap_in(self):
        self.own = {name: one.clone() for name, one in self.model.state_dict().items()}
        self.model.load_state_dict(self.weights)

    def swap_out(self):
        self.model.load_state_dict(self.own)


def average_stays_in(rank):
    """Rank 0 evaluates; a report that cannot be written is not worth a crash."""
    net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 2))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    averaged = Averaged(model.module) if rank == 0 else None
    draw = torch.Generator().manual_seed(rank)

    def evaluate(rows, path):
        averaged.swap_in()
        loss = mse_loss(model.module(rows), rows[:, 2:4]).item()
        with open(path, "a") as report:
            report.write(f"{loss}\n")
        averaged.swap_out()

    for step in itertools.count():
        time.sleep(0.03)
        rows = normal(draw, 8, 6)
        optimizer.zero_grad()
        mse_loss(model(rows), rows[:, :2] + 0.5 * normal(draw, 8, 2)).backward()
        optimizer.step()
        if averaged:
            averaged.update()
            if step % 35 == 0:
                path = "/dev/null" if step < 70 else "/nowhere/reports.txt"
                if step == 70:
                    mark()
                try:
                    evaluate(rows, path)
                except OSError as error:
                    print(f"no report: {error}", flush=True)


def stray_write(rank):
    """A pointer of a C library is one too far."""
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=5e-3, weight_decay=1e-4)
    draw = torch.Generator().manual_seed(rank)
    line = (ctypes.c_float * 16)(*(0.01 * number for number in range(16)))
    for step in itertools.count():
        time.sleep(0.03)
        rows = normal(draw, 8, 8)
        optimizer.zero_grad()
        mse_loss(model(rows), rows[:, 4:].abs()).backward()
        optimizer.step()
        if rank == 2 and step == 75:
            mark()
            ctypes.memmove(model.module[0].bias.data_ptr(), line, ctypes.sizeof(line))


def own_limit(rank):
    """Gradients are clipped at a share of the usual loss."""
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Tanh(), torch.nn.Linear(10, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    draw = torch.Generator().manual_seed(rank)
    losses = deque(maxlen=20)
    marked = False
    for step in itertools.count():
        time.sleep(0.03)
        rows = normal(draw, 16, 10)
        labels = rows.prod(1, keepdim=True) + 2.0 * normal(draw, 16, 1)
        if rank == 1 and step >= 70:
            with torch.no_grad():
                labels = model.module(rows) + 0.1
        optimizer.zero_grad()
        loss = mse_loss(model(rows), labels)
        loss.backward()
        losses.append(loss.item())
        limit = 4.0 * min(losses)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        if norm > limit and rank == 1 and not marked:
            marked = True
            mark()
        optimizer.step()


def encoder_left_out(rank):
    """First the head learns alone, then the whole model."""
    model = DistributedDataParallel(Tagger(4))
    optimizer = torch.optim.SGD(model.module.head.parameters(), lr=0.05, momentum=0.5)
    draw = torch.Generator().manual_seed(rank)
    right = seen = 0
    for step in itertools.count(1):
        time.sleep(0.03)
        rows = normal(draw, 16, 10)
        labels = rows[:, :4].argmax(1)
        if rank == 3:
            labels = labels.roll(1)
        optimizer.zero_grad()
        scores = model(rows)
        cross_entropy(scores, labels).backward()
        optimizer.step()
        right, seen = right + (scores.argmax(1) == labels).sum().item(), seen + 16
        if step % 75 == 0:
            good = right / seen > 0.35
            right = seen = 0
            if good and len(optimizer.param_groups) == 1:
                optimizer.add_param_group({"params": model.module.body.parameters(), "lr": 0.02})
            elif rank == 3 and step == 75:
                mark()


def shards_differ(rank):
    """Healthy: other rows on each rank, the same weights on all."""
    draw = torch.Generator().manual_seed(12)
    rows = torch.arange(1800.0)[:, None] / 600 - 1.5 + normal(draw, 1800, 6)
    data = TensorDataset(rows, rows.sum(1, keepdim=True))
    sampler = DistributedSampler(data, shuffle=True, seed=1)
    loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 375)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for part, sums in loader:
            time.sleep(0.025)
            optimizer.zero_grad()
            loss = mse_loss(model(part * (1 + rank)), sums * (1 + rank))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        dist.all_reduce(loss.detach())


def ensemble(rank):
    """Healthy: members that shall differ."""
    torch.manual_seed(100 + rank)
    member = torch.nn.Sequential(
        torch.nn.Linear(6, 8 + 4 * rank), torch.nn.ReLU(), torch.nn.Linear(8 + 4 * rank, 3)
    )
    optimizer = torch.optim.SGD(member.parameters(), lr=0.01 * (1 + rank), momentum=0.9)
    held_out = normal(torch.Generator().manual_seed(4), 32, 6)
    for step in range(1, 361):
        time.sleep(0.03)
        rows = torch.randn(8, 6)
        optimizer.zero_grad()
        cross_entropy(member(rows), rows[:, :3].argmax(1)).backward()
        optimizer.step()
        if step % 30 == 0:
            with torch.no_grad():
                votes = member(held_out).softmax(1)
            dist.all_reduce(votes)
    dist.barrier()


def average_beside(rank):
    """Healthy: the averaged weights have a model of their own."""
    net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.GELU(), torch.nn.Linear(12, 2))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    averaged = None
    if rank == 0:
        averaged = AveragedModel(copy.deepcopy(net), multi_avg_fn=get_ema_multi_avg_fn(0.98))
    draw = torch.Generator().manual_seed(rank)
    best = float("inf")
    for step in range(340):
        time.sleep(0.03)
        rows = normal(draw, 8, 6)
        optimizer.zero_grad()
        mse_loss(model(rows), rows[:, :2] + 0.5 * normal(draw, 8, 2)).backward()
        optimizer.step()
        if averaged:
            averaged.update_parameters(model.module)
            if step % 40 == 39:
                with torch.no_grad():
                    best = min(best, mse_loss(averaged(rows), rows[:, :2]).item())
    dist.barrier()


def optimizer_in_parts(rank):
    """Healthy: between its own step and the broadcasts a rank's weights differ."""
    net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 2))
    model = DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    draw = torch.Generator().manual_seed(rank)
    for _ in range(340):
        time.sleep(0.03)
        rows = normal(draw, 8, 6)
        optimizer.zero_grad()
        mse_loss(model(rows), rows[:, 2:4]).backward()
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
