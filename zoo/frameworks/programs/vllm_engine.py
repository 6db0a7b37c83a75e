"""A double of an engine over vLLM's own modules: an API server, an EngineCore and two workers.

Of vLLM: the loops of EngineCore and workers, their calls, the ring of messages and the TP group.
Of this file: a scheduler that counts, a model that adds, an HTTP server. `FAULT`: also `unread` (a
worker stands in a call without a collective) and `engine` (the EngineCore is killed).
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import fault
import torch
import vllm.v1.engine.core as core
import vllm.v1.executor.multiproc_executor as executor
from vllm.distributed import parallel_state
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from vllm.utils.network_utils import get_file_store_init_method
from vllm.utils.system_utils import set_process_title

WORLD, FORWARDS, STEPS = 2, 4, 20
PAUSE_S = float(os.environ.get("PAUSE_S", "1"))
"""Between two bursts of requests."""
CONFIG = SimpleNamespace(
    logging_config=None,
    watchdog_config=SimpleNamespace(dump_dir=None),
    kv_transfer_config=None,
    model_config=SimpleNamespace(is_moe=False),
    shutdown_timeout=0,
    parallel_config=SimpleNamespace(
        data_parallel_size=1,
        numa_bind=False,
        assigned_physical_gpu_ids=None,
        nnodes_within_dp=1,
        reconfigure_for_independent_dp_rank=int,
    ),
)


class Model:
    """What a worker runs: parts that are added over the TP group."""

    def __init__(self, rank: int, method: str) -> None:
        self.rank = rank
        parallel_state.init_distributed_environment(WORLD, rank, method, rank, "gloo")
        parallel_state._TP = parallel_state.init_model_parallel_group(
            [list(range(WORLD))], rank, "gloo", group_name="tp"
        )

    def execute_model(self, _step: int) -> float:
        fault.at(self.rank)
        parts = torch.ones(256)
        for _ in range(FORWARDS):
            parts = parallel_state.get_tp_group().all_reduce(parts)
        return float(parts[0])

    def reset_cache(self) -> None:
        if fault.FAULT == "unread" and self.rank == fault.RANK and fault.is_due():
            fault.say("began")
            threading.Event().wait()

    def shutdown(self) -> None:
        """The worker ends."""


class Worker(executor.WorkerProc):
    def __init__(self, rank: int, distributed_init_method: str, **more: Any) -> None:
        self.rank, self.use_async_scheduling = rank, False
        set_process_title("Worker")
        self.worker = Model(rank, distributed_init_method)
        set_process_title(f"Worker_TP{rank}")
        self._init_message_queues(more["input_shm_handle"], more["vllm_config"])


class Executor(executor.MultiprocExecutor):
    def __init__(self) -> None:
        self.is_failed, self.failure_callback = False, None
        self.vllm_config, self.output_rank, self.futures_queue = CONFIG, 0, deque()
        self.rpc_broadcast_mq = MessageQueue(WORLD, WORLD, max_chunk_bytes=1 << 20)
        handle, method = self.rpc_broadcast_mq.export_handle(), get_file_store_init_method()
        open_here: list[int] = []
        starting = []
        for rank in range(WORLD):
            one = executor.WorkerProc.make_worker_process(
                CONFIG, rank, rank, method, handle, None, rank == 0, open_here
            )
            open_here += [one.death_writer.fileno(), one.ready_pipe.fileno()]
            starting.append(one)
        self.workers = executor.WorkerProc.wait_for_ready(starting)
        self.start_worker_monitor()
        self.response_mqs = [worker.worker_response_mq for worker in self.workers]
        for ring in (self.rpc_broadcast_mq, *self.response_mqs):
            ring.wait_until_ready()


class Engine(core.EngineCoreProc):
    def __init__(self, requests: Any, answers: Any, **_more: Any) -> None:
        self.vllm_config = CONFIG
        self.input_queue, self.aborts_queue = queue.Queue(), queue.Queue()
        self.output_queue: queue.Queue = queue.Queue()
        self.engines_running, self.batch_queue = False, None
        self.shutdown_state = core.EngineShutdownState.RUNNING
        self._idle_state_callbacks: list = []
        self.process_input_queue_block, self.publish_dp_lb_stats = True, False
        self.enable_fault_tolerance = False
        self.left, self.answers, self.step_fn = 0, answers, self.step
        self.scheduler = SimpleNamespace(has_requests=lambda: self.left > 0)
        self.model_executor = Executor()
        threading.Thread(target=self.listen, args=(requests,), daemon=True).start()

    def listen(self, requests: Any) -> None:
        while True:
            self.input_queue.put((core.EngineCoreRequestType.ADD, requests.get()))

    def _handle_client_request(self, _kind: Any, steps: int) -> None:
        if fault.FAULT == "engine" and fault.is_due():
            fault.say("began")
            os.kill(os.getpid(), signal.SIGKILL)
        self.left = steps

    def step(self) -> tuple[dict, bool]:
        self.left -= 1
        call = self.model_executor.collective_rpc
        answer = call("execute_model", args=(self.left,), unique_reply_rank=0)
        if not self.left:
            call("reset_cache")
            self.answers.put(answer)
        return {}, True

    def post_step(self, _executed: bool) -> None:
        """Nothing is left to do."""

    def shutdown(self) -> None:
        """The executor ends its workers."""

    def _send_engine_dead(self) -> None:
        """Nobody listens."""


# Their processes find these classes by the names of vLLM's.
executor.WorkerProc, core.EngineCoreProc = Worker, Engine


class Api(BaseHTTPRequestHandler):
    def log_message(self, *_words: object) -> None:
        """Silent."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


def main() -> None:
    context = executor.get_mp_context()
    requests, answers = context.Queue(), context.Queue()
    named = {"vllm_config": CONFIG, "requests": requests, "answers": answers}
    context.Process(
        target=core.EngineCoreProc.run_engine_core, name="EngineCore", kwargs=named
    ).start()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        requests.put(STEPS)
        answers.get()
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
