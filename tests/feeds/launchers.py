"""Programs that look like torchrun and have only its sockets."""

import os
import subprocess
import sys
from contextlib import contextmanager

TORCHRUN = """
import os, socket, subprocess, sys, threading

port, role, kept = int(os.environ["PORT"]), os.environ["PLAYS"], []

def serve(server):
    while True:
        kept.append(server.accept()[0])
        kept[-1].sendall(b"x")

if role == "first":
    server = socket.create_server(("127.0.0.1", port))
    threading.Thread(target=serve, args=(server,), daemon=True).start()
if role in ("first", "second"):
    kept.append(socket.create_connection(("127.0.0.1", port)))
    kept[-1].recv(1)
if role == "with a child":
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
print("ready", flush=True)
sys.stdin.read()
"""


SCRIPT = """
import subprocess, sys
sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)
"""


@contextmanager
def torchrun(folder, plays, port, *words, by=()):
    """Such a launcher with these words, else of two nodes; yields its pid once it has the sockets
    of its part. `by`: the script that starts it, whose pid is yielded then."""
    script = folder / "torchrun"
    script.write_text(TORCHRUN)
    words = words or ("--nnodes", "2", f"--rdzv-endpoint=127.0.0.1:{port}")
    process = subprocess.Popen(
        [sys.executable, *by, str(script), *words, "tabular.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PLAYS": plays, "PORT": str(port)},
    )
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        process.communicate(timeout=20)
