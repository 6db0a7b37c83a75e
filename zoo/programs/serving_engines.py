"""Inference servers: workers that wait for a front end, a scheduler that tells the workers its
batch, data parallel engines in step, and prompts that are filled on one rank and continued on
others.
"""

import ctypes
import json
import multiprocessing
import os
import queue
import signal
import socket
import sys
import threading
import time
import zlib

import torch
import torch.distributed as dist

CASES = {
    "forked-tokenizer": {
        "story": (
            "Worker 1 was forked while a thread held the tokenizer's lock; a prompt that needs it "
            "stops the worker."
        ),
        "expected": ["not-in-collective 1"],
        "place": "encode_slowly",
        "launcher": "own",
        "cause": [r"\block\b"],
        "cure": [r"\block\b|fork|spawn|TOKENIZERS_PARALLELISM"],
    },
    "scheduler-killed": {
        "story": "Rank 0 schedules and is killed by SIGKILL; the front end waits for answers.",
        "expected": ["rank-killed 0"],
        "launcher": "own",
        "needs": ["zmq"],
        "cause": [r"SIGKILL|signal 9|out of memory|\bOOM\b"],
        "cure": [r"dmesg|out.of.memory|killed process|who (sent|killed)|memory limit|restart"],
    },
    "no-dummy-step": {
        "story": "Engine 2 has no request left and waits for one; the others need its dummy step.",
        "source": "vllm-project/vllm#51984",
        "expected": ["not-in-collective 2"],
        "place": "await_request",
        "launcher": "own",
        "cause": [r"queue|request|\bget\b"],
        "cure": [r"queue|dummy|branch|all ranks|every rank|only some ranks|time-?out"],
    },
    "block-not-sent": {
        "story": (
            "Rank 0 gives up a prompt and does not send its blocks; rank 1 waits for them while "
            "rank 0 sends it the next request."
        ),
        "source": "sgl-project/sglang#28651",
        "expected": ["unmatched-p2p 0,1"],
        "place": ["hand_over", "receive_blocks"],
        "cause": [r"\btags?\b|(do|does) not match|cannot match|never sen[dt]"],
        "cure": [r"\btags?\b|match|abort|both sides|branch|extra message|same number"],
    },
    "idle-engine": {
        "story": "No request comes for 20 seconds; the workers wait for orders.",
        "expected": [],
        "launcher": "own",
    },
    "uneven-load": {
        "story": "Bursts of requests for one engine at a time; the others make dummy steps.",
        "expected": [],
        "tolerated": ["straggler 0", "straggler 1", "straggler 2"],
        "launcher": "own",
    },
    "warm-up": {
        "story": (
            "Rank 0 reads and checks the weights for seconds, then all ranks warm up each batch "
            "size, one size much longer than the rest."
        ),
        "expected": [],
        "tolerated": ["not-in-collective 0"],
    },
}

WORKERS = 3


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def join_group(rank, port):
    """What each worker does first. It ends with its front end."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=WORKERS)


def forward(hidden):
    """Two layers, whose parts are added over the workers."""
    for _ in range(2):
        hidden = torch.tanh(hidden)
        dist.all_reduce(hidden)
    time.sleep(0.02)
    return hidden


# -- a front end that forks its workers; each tokenizes for itself


class Tokenizer:
    """Words by a table; rare ones by merging, which fills a cache under a lock."""

    def __init__(self):
        self.lock, self.cache, self.held = threading.Lock(), {}, threading.Event()

    def encode(self, text):
        if text.isascii():
            return [len(word) for word in text.split()]
        return self.encode_slowly(text)

    def encode_slowly(self, text):
        if self.lock.locked():
            mark()
        with self.lock:
            return self.cache.setdefault(text, list(text.encode()))

    def preload(self):
        with self.lock:
            self.held.set()
            time.sleep(0.5)
            self.cache["é"] = [233]


def tokenizing_worker(rank, port, tokenizer, requests, answers):
    join_group(rank, port)
    while (text := requests.get()) is not None:
        hidden = forward(torch.tensor(tokenizer.encode(text), dtype=torch.float32))
        if rank == 0:
            answers.put(float(hidden.sum()))


def forked_tokenizer():
    """A front end with a queue for each worker."""
    forks, port, tokenizer = multiprocessing.get_context("fork"), free_port(), Tokenizer()
    inboxes, answers = [forks.Queue() for _ in range(WORKERS)], forks.Queue()
    for rank, inbox in enumerate(inboxes):
        if rank == 1:
            loading = threading.Thread(target=tokenizer.preload)
            loading.start()
            tokenizer.held.wait()
        arguments = (rank, port, tokenizer, inbox, answers)
        forks.Process(target=tokenizing_worker, args=arguments, daemon=True).start()
        if rank == 1:
            loading.join()
    for number in range(100_000):
        text = "a café in Paris" if number == 60 else "a bar in Paris"
        for inbox in inboxes:
            inbox.put(text)
        answers.get()


# -- a scheduler on rank 0


def scheduling_worker(rank, port, into, out):
    """Rank 0 takes what has come, and tells the others; all compute."""
    import zmq

    join_group(rank, port)
    if rank == 0:
        context = zmq.Context()
        takes, gives = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        takes.connect(into)
        gives.connect(out)
    lengths = []
    while True:
        batch = [None]
        if rank == 0:
            number, tokens = takes.recv_json()
            batch = [torch.full((tokens,), float(number))]
            if number == 60:
                mark()
                os.kill(os.getpid(), signal.SIGKILL)
        dist.broadcast_object_list(batch, src=0)
        lengths.append(len(batch[0]))
        hidden = forward(batch[0])
        if rank == 0:
            gives.send_json(hidden.mean().item())


def scheduler_killed():
    """A front end over zmq; it waits on, whatever becomes of its workers."""
    import zmq

    context, spawns, port = zmq.Context(), multiprocessing.get_context("spawn"), free_port()
    gives, takes = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    ports = [one.bind_to_random_port("tcp://127.0.0.1") for one in (gives, takes)]
    ends = [f"tcp://127.0.0.1:{one}" for one in ports]
    for rank in range(WORKERS):
        spawns.Process(target=scheduling_worker, args=(rank, port, *ends), daemon=True).start()
    for number in range(100_000):
        gives.send_json([number, 8 + number % 5])
        takes.recv_json()


# -- data parallel engines


class DataParallelEngine:
    """Requests of its own, and a step that all engines make together."""

    def __init__(self, rank, inputs, makes_dummies):
        self.rank, self.makes_dummies = rank, makes_dummies
        self.arrived, self.running, self.over = queue.Queue(), [], False
        threading.Thread(target=self.listen, args=(inputs,), daemon=True).start()

    def listen(self, inputs):
        while (request := inputs.recv()) is not None:
            self.arrived.put(request)
        self.arrived.put(None)

    def admit(self, request):
        if request is None:
            self.over = True
        else:
            self.running.append(request)

    def await_request(self):
        mark()
        self.admit(self.arrived.get())

    def admit_all(self):
        if not self.running and not self.over and not self.makes_dummies:
            self.await_request()
        while not self.arrived.empty():
            self.admit(self.arrived.get())

    def serve(self):
        """Until nobody has a request and none will come."""
        while True:
            self.admit_all()
            experts = torch.ones(64)
            dist.all_reduce(experts)
            time.sleep(0.03 if self.running else 0.02)
            self.running = [left - 1 for left in self.running if left > 1]
            state = torch.tensor([len(self.running), int(self.over)])
            dist.all_reduce(state)
            if state.tolist() == [0, WORKERS]:
                break


def run_engine(rank, port, inputs, makes_dummies):
    join_group(rank, port)
    DataParallelEngine(rank, inputs, makes_dummies).serve()
    dist.barrier()
    dist.destroy_process_group()


def start_engines(without_dummies=None):
    """The engines, and a pipe to each."""
    spawns, port = multiprocessing.get_context("spawn"), free_port()
    started, pipes = [], []
    for rank in range(WORKERS):
        theirs, mine = spawns.Pipe(duplex=False)
        arguments = (rank, port, theirs, rank != without_dummies)
        started.append(spawns.Process(target=run_engine, args=arguments, daemon=True))
        pipes.append(mine)
        mine.send(50)
        started[-1].start()
    return started, pipes


def no_dummy_step():
    """A router that has no more requests for the last engine."""
    _started, pipes = start_engines(without_dummies=WORKERS - 1)
    while True:
        for pipe in pipes[:-1]:
            pipe.send(20)
        time.sleep(0.5)


def uneven_load():
    """Healthy: a burst for each engine in turn."""
    started, pipes = start_engines()
    for number in range(9):
        for length in (10, 15, 20):
            pipes[(2 * number) % WORKERS].send(length)
        time.sleep(1.5)
    for pipe in pipes:
        pipe.send(None)
    for one in started:
        one.join()
    sys.exit(max(abs(one.exitcode) for one in started))


# -- prefill and decode


META, BLOCK = 1, 2


def hand_over(request, blocks, target, limit):
    """Announce a request to a decoding rank, fill its blocks, and send them."""
    dist.send(torch.tensor([request, blocks]), dst=target, tag=META)
    if blocks > limit:
        # Too long: the client has its error, and nobody tells the decoding rank.
        mark()
        return
    for number in range(blocks):
        time.sleep(0.005)
        dist.send(torch.full((256,), float(number)), dst=target, tag=BLOCK)


def receive_blocks(blocks):
    """The cache of a prompt that rank 0 has filled."""
    cache = torch.zeros(blocks, 256)
    for number in range(blocks):
        dist.recv(cache[number], src=0, tag=BLOCK)
    return cache


def block_not_sent():
    """Rank 0 fills prompts, ranks 1 and 2 continue them."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for request in range(100_000):
        target = 1 + request % 2
        if rank == 0:
            hand_over(request, 40 if request == 80 else 2 + request % 3, target, limit=32)
        elif rank == target:
            announced = torch.zeros(2, dtype=torch.int64)
            dist.recv(announced, src=0, tag=META)
            state = receive_blocks(int(announced[1])).mean(0)
            for _ in range(2):
                state = torch.tanh(state)
                time.sleep(0.02)


# -- orders by pipe


def ordered_worker(rank, port, orders):
    """Calls what the front end orders, as by a remote call."""
    join_group(rank, port)
    methods = {"run": forward, "end": lambda _: None}
    going = True
    while going:
        method, values = orders.recv()
        result = methods[method](values)
        going = result is not None
        if rank == 0 and going:
            orders.send(float(result.mean()))
    dist.destroy_process_group()


def idle_engine():
    """Healthy: some requests, nothing for 20 seconds, some requests."""
    spawns, port = multiprocessing.get_context("spawn"), free_port()
    started, orders = [], []
    for rank in range(WORKERS):
        mine, theirs = spawns.Pipe()
        one = spawns.Process(target=ordered_worker, args=(rank, port, theirs), daemon=True)
        one.start()
        started.append(one)
        orders.append(mine)
    for burst in range(2):
        for number in range(30):
            for order in orders:
                order.send(("run", torch.full((16,), float(number))))
            orders[0].recv()
        if burst == 0:
            time.sleep(20)
    for order in orders:
        order.send(("end", None))
    for one in started:
        one.join()
    sys.exit(max(abs(one.exitcode) for one in started))


# -- the start of a server


def read_weights(path):
    """Read and check the shards, one after the other."""
    total = 0
    for _ in range(90):
        with open(path, "rb") as file:
            total = zlib.crc32(file.read(), total)
        time.sleep(0.06)
    return torch.tensor([total], dtype=torch.int64)


def warm_up():
    """Healthy: weights, a warm-up for each batch size, then requests."""
    dist.init_process_group("gloo")
    rank, path = dist.get_rank(), "shard.bin"
    check = torch.zeros(1, dtype=torch.int64)
    if rank == 0:
        with open(path, "wb") as file:
            file.write(os.urandom(4 << 20))
        check = read_weights(path)
    dist.broadcast(check, src=0)
    for size in (1, 2, 4, 8, 16, 32):
        for _ in range(150 if size == 8 else 15):
            forward(torch.ones(size, 16))
        dist.barrier()
    for number in range(200):
        forward(torch.ones(1 + number % 8, 16))
    dist.barrier()
    dist.destroy_process_group()


def main():
    torch.set_num_threads(1)
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
