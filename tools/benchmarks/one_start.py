"""Does what the line of ddtop.pth does when DDTOP is set, and prints how long the main thread took
for it.

It imports no module before that, because at start-up the interpreter has imported none either.
"""

import os
import time

os.environ["DDTOP"] = "1"
wall, cpu = time.perf_counter(), time.thread_time()
import ddtop.agent.hook  # noqa: E402, F401

wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
print(f'{{"wall_s": {wall}, "cpu_s": {cpu}}}', flush=True)
time.sleep(1e6)
