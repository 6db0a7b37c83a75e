"""Reinforcement learning in one world: trainers and rollout engines, with what stands beside them:
a reward server, environments in processes of their own, a replay buffer, weights that are sent.
"""

import json
import multiprocessing
import pickle
import socket
import socketserver
import sys
import threading
import time
from collections import deque

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

CASES = {
    "reward-not-given": {
        "story": "The reward server runs an answer of rank 1 that waits for input for ever.",
        "source": "modelscope/ms-swift#6962",
        "expected": ["not-in-collective 1"],
        "place": "ask_reward",
        "cause": [r"socket|\brecv\b|connection|127\.0\.0\.1|answer from|reply"],
        "cure": [r"time-?out", r"server|service|other (end|side|process)"],
    },
    "tied-head": {
        "story": (
            "Engine 2 leaves out the tied output layer when new weights are broadcast, and is one "
            "call ahead."
        ),
        "source": "allenai/open-instruct#536",
        "expected": ["collective-mismatch 2", "calls-differ 2"],
        "place": ["load_weights", "share_lengths"],
        "world": 4,
        "cause": [
            r"broadcast.{0,200}all_?gather|all_?gather.{0,200}broadcast",
            r"(left out|skipp|missing|one call (more|less|fewer)|fewer calls)",
        ],
        "cure": [r"same order|branch|condition|all ranks|every rank"],
    },
    "environment-hangs": {
        "story": "An environment of rank 2 waits for a lock of its simulator and never steps.",
        "source": "PrimeIntellect-ai/prime#381",
        "expected": ["not-in-collective 2"],
        "place": "receive_frames",
        "cause": [r"child|worker process|subprocess|\bpid \d+|\bpipe\b"],
        "cure": [r"child|worker|time-?out|\bpid\b|py-spy|process"],
    },
    "answer-without-end": {
        "story": "An answer of engine 2 has no limit and never gets its end token.",
        "source": "verl-project/verl#6583",
        "expected": ["not-in-collective 2"],
        "place": ["sample_answer", "next_token"],
        "within_s": 15,
        "cause": [r"still (work|runn|busy|comput)|at work|\bloop\b|\d ?% .{0,9}CPU"],
        "cure": [r"limit|\bmax\b|bound|end.?less|what (it|the rank) does|stacks|py-spy"],
    },
    "buffer-not-filled": {
        "story": (
            "The thread that fills rank 0's replay buffer has ended by an exception; the trainer "
            "waits for a sample."
        ),
        "expected": ["not-in-collective 0"],
        "place": "draw_batch",
        "cause": [r"condition|notif|thread|KeyError|exception"],
        "cure": [r"time-?out|thread|exception|KeyError|nobody|notif|who .{0,30}(fill|set|wake)"],
    },
    "rollouts-of-seconds": {
        "story": "Each round has one long rollout that still makes tokens, on another engine.",
        "expected": [],
        "tolerated": ["not-in-collective 1", "not-in-collective 2", "not-in-collective 1,2"],
    },
    "trainer-waits": {
        "story": "The trainers idle in a gather for four seconds a round while the engines work.",
        "expected": [],
        "world": 4,
    },
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def policy():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))


# -- a reward server beside the trainers


class Judge(socketserver.StreamRequestHandler):
    """Scores one answer a line, by running it."""

    def handle(self):
        for line in self.rfile:
            rank, number = json.loads(line)
            if (rank, number) == (1, 60):
                mark()
                # The answer is a program that reads its input, and nobody writes it.
                ours, _theirs = socket.socketpair()
                ours.recv(1)
            self.wfile.write(b"%f\n" % (number % 7 / 7))


def judge_answers(port):
    """The process of the reward server."""
    socketserver.ThreadingTCPServer.daemon_threads = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Judge) as server:
        port.send(server.server_address[1])
        server.serve_forever()


def ask_reward(lines, rank, number):
    lines.write(json.dumps([rank, number]) + "\n")
    lines.flush()
    return float(lines.readline())


def reward_not_given(rank):
    """Each trainer asks the reward server of rank 0, and the rewards are made comparable."""
    address = [None]
    if rank == 0:
        mine, theirs = multiprocessing.Pipe()
        spawns = multiprocessing.get_context("spawn")
        spawns.Process(target=judge_answers, args=(theirs,), daemon=True).start()
        address[0] = mine.recv()
    dist.broadcast_object_list(address, src=0)
    lines = socket.create_connection(("127.0.0.1", address[0])).makefile("rw")
    model = DistributedDataParallel(policy())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(100_000):
        time.sleep(0.03)
        prompts = torch.rand(4, 16)
        reward = torch.tensor([ask_reward(lines, rank, number)])
        rewards = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(rewards, reward)
        advantage = reward - torch.stack(rewards).mean()
        optimizer.zero_grad()
        (model(prompts).log_softmax(-1)[:, 0].mean() * -advantage.item()).backward()
        optimizer.step()


# -- weights for the engines


def load_weights(model, sends, tied):
    """One broadcast for each parameter; the trainer sends."""
    for name, parameter in model.named_parameters():
        if tied and name == "2.bias":
            continue
        dist.broadcast(parameter.data, src=0)
    if sends:
        model.zero_grad()


def share_lengths(length):
    """How long everybody's answers were, for the next batch."""
    found = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(found, torch.tensor([length]))
    return max(int(one) for one in found)


def tied_head(rank):
    """Two trainers and two engines; each round trains, sends the weights, and generates."""
    trainers = dist.new_group([0, 1])
    engines = dist.new_group([2, 3])
    model = policy()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(100_000):
        if rank < 2:
            model(torch.rand(4, 16)).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=trainers)
            optimizer.step()
        else:
            with torch.no_grad():
                dist.all_reduce(model(torch.rand(4, 16)), group=engines)
        time.sleep(0.03)
        # A reload of its checkpoint has tied the head of this engine to its embedding.
        tied = rank == 2 and number >= 50
        if tied and number == 50:
            mark()
        load_weights(model, rank == 0, tied)
        share_lengths(10 + number % 5)


# -- environments in processes of their own


class Simulator:
    """A game with a lock around its physics."""

    def __init__(self, odd):
        self.odd, self.ticks = odd, 0
        self.physics = threading.Lock()

    def advance(self, action):
        self.ticks += 1
        with self.physics:
            if self.odd and self.ticks == 60:
                mark()
                self.collide()
            return [float(action)] * 16

    def collide(self):
        with self.physics:
            self.ticks += 1


def run_environment(connection, odd):
    game = Simulator(odd)
    while (action := connection.recv()) is not None:
        connection.send(game.advance(action))


class Environments:
    """Several games, each in a process."""

    def __init__(self, count, odd):
        context = multiprocessing.get_context("fork")
        self.ends = []
        for number in range(count):
            mine, theirs = context.Pipe()
            arguments = (theirs, odd and number == count - 1)
            context.Process(target=run_environment, args=arguments, daemon=True).start()
            theirs.close()
            self.ends.append(mine)

    def act(self, actions):
        for end, action in zip(self.ends, actions, strict=True):
            end.send(action)

    def receive_frames(self):
        return torch.tensor([end.recv() for end in self.ends])


def environment_hangs(rank):
    """PPO: each rank steps its own environments and learns with the others."""
    games = Environments(2, rank == 2)
    model = policy()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    frames = torch.zeros(2, 16)
    while True:
        time.sleep(0.03)
        choice = torch.distributions.Categorical(logits=model(frames))
        actions = choice.sample()
        games.act(actions.tolist())
        frames = games.receive_frames()
        optimizer.zero_grad()
        (-choice.log_prob(actions).mean() * float(frames.mean())).backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        dist.all_reduce(flat)
        optimizer.step()


# -- answers, token by token


def next_token(model, state):
    """A forward of the engine."""
    with torch.no_grad():
        for _ in range(20):
            state = torch.tanh(state @ model)
    time.sleep(0.01)
    return state


def sample_answer(model, length):
    """Tokens until the end token; without a length there is none."""
    state, count = torch.rand(1, 128), 0
    while length is None or count < length:
        state = next_token(model, state)
        count += 1
    return torch.full((64,), float(count))


def collect_answers(answer, rank, size):
    found = [torch.zeros(64) for _ in range(size)] if rank == 0 else None
    dist.gather(answer, found, dst=0)
    return found


def answer_without_end(rank):
    """A trainer and two engines: weights go out, answers come back."""
    model, size = torch.rand(128, 128) / 11, dist.get_world_size()
    for number in range(100_000):
        dist.broadcast(model, src=0)
        answer = torch.zeros(64)
        if rank:
            endless = rank == 2 and number == 12
            if endless:
                mark()
            answer = sample_answer(model, None if endless else 10 + 3 * (number % 3))
        for one in collect_answers(answer, rank, size) or ():
            model += 1e-6 * one.mean()
        time.sleep(0.02)


def rollouts_of_seconds(rank):
    """Healthy: one engine has a long answer in each round, up to eight seconds of tokens."""
    model, size = torch.rand(128, 128) / 11, dist.get_world_size()
    for number, long_one in enumerate((50, 120, 60, 500, 80, 450)):
        dist.broadcast(model, src=0)
        answer = torch.zeros(64)
        if rank:
            answer = sample_answer(model, long_one if number % 2 == rank - 1 else 40)
        collect_answers(answer, rank, size)


def trainer_waits(rank):
    """Healthy: two trainers wait for two engines, which generate for four seconds a round."""
    trainers = dist.new_group([0, 1])
    model, size = torch.rand(128, 128) / 11, dist.get_world_size()
    for number in range(5):
        answer = sample_answer(model, 240 + 10 * (number % 2)) if rank > 1 else torch.zeros(64)
        found = [torch.zeros(64) for _ in range(size)]
        dist.all_gather(found, answer)
        if rank < 2:
            for _ in range(5):
                loss = torch.stack(found).mean()
                dist.all_reduce(loss, group=trainers)
                time.sleep(0.05)
        dist.broadcast(model, src=0)


# -- a replay buffer


class Replay:
    """Samples that a thread puts in and the trainer draws."""

    def __init__(self):
        self.filled, self.samples = threading.Condition(), deque(maxlen=256)

    def put_sample(self, sample):
        with self.filled:
            self.samples.append(sample)
            self.filled.notify()

    def draw_batch(self):
        with self.filled:
            while not self.samples:
                self.filled.wait()
            return self.samples.popleft()


def take_in(server, replay):
    """Take the samples of the actor: a thread of the trainer."""
    connection, _ = server.accept()
    with connection.makefile("rb") as stream:
        while True:
            sample = pickle.load(stream)
            try:
                replay.put_sample(sample["frames"] * sample["scale"])
            except KeyError:
                mark()
                raise


def buffer_not_filled(rank):
    """Ranks 0 and 1 learn; rank 2 plays, and sends its samples to rank 0."""
    learners = dist.new_group([0, 1])
    server = socket.create_server(("127.0.0.1", 0))
    port = [server.getsockname()[1]]
    dist.broadcast_object_list(port, src=0)
    model = torch.zeros(16)
    if rank == 0:
        replay = Replay()
        threading.Thread(target=take_in, args=(server, replay), daemon=True).start()
    if rank == 2:
        stream = socket.create_connection(("127.0.0.1", port[0])).makefile("wb")
    for number in range(100_000):
        if rank == 2:
            sample = {"frames": torch.rand(16), "scale": 0.5}
            if number == 60:
                # A new version of the actor calls it otherwise.
                sample["factor"] = sample.pop("scale")
            pickle.dump(sample, stream)
            stream.flush()
            time.sleep(0.03)
        else:
            batch = replay.draw_batch() if rank == 0 else torch.zeros(16)
            dist.broadcast(batch, src=0, group=learners)
            model += 0.01 * batch
            dist.all_reduce(model, group=learners)
        dist.broadcast(model, src=0)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[sys.argv[1]](dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
