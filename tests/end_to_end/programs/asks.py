"""Two jobs, `asks.py FOLDER ask|serve`: one asks for an answer over HTTP in each step. In the one
that serves, rank 1 stops after a while."""

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.request import urlopen

import torch
import torch.distributed as dist

port, side = Path(sys.argv[1], "asked-port"), sys.argv[2]


def compute(steps: int) -> None:
    for _ in range(steps):
        time.sleep(0.01)
        dist.all_reduce(torch.ones(8))


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        dist.broadcast(torch.ones(1), 0)
        compute(5)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


dist.init_process_group("gloo")
rank = dist.get_rank()
if side == "ask":
    while True:
        if rank == 0:
            urlopen(f"http://127.0.0.1:{port.read_text()}", timeout=300).read()
        compute(5)
elif rank == 0:
    server = HTTPServer(("127.0.0.1", 0), Answers)
    port.with_suffix(".new").write_text(str(server.server_port))
    port.with_suffix(".new").rename(port)
    server.serve_forever()
else:
    for _ in range(40):
        dist.broadcast(torch.ones(1), 0)
        compute(5)
    threading.Event().wait()
