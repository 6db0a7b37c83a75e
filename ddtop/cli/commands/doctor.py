"""`ddtop doctor`: what works here, a line each, and what to do about what does not."""

from __future__ import annotations

import faulthandler
import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

import ddtop
from ddtop import plugins, registry, start_python
from ddtop.agent.probes import exceptions
from ddtop.cli import interpreter
from ddtop.cli.errors import CommandError, DdtopCommand, Trait
from ddtop.cli.output import BAD, GOOD, NOTE, CheckLine, echo
from ddtop.relay.gpus.amd import AmdDriver
from ddtop.relay.gpus.driver import Driver
from ddtop.relay.gpus.nvml import NvidiaDriver
from ddtop.relay.gpus.reader import driver_here
from ddtop.relay.processes import pyspy

MPI_S, PY_SPY_S = 20.0, 10.0
"""How long a child process may take to load MPI or py-spy."""


@click.command(
    "doctor",
    cls=DdtopCommand,
    exits="0; 1 something does not work; 3 with `--python`: no Python that answers",
    traits=Trait.ON_LINUX,
)
@click.option(
    "--python", metavar="PYTHON", help="That Python instead: is the agent in it, is torch read?"
)
def command(python: str | None) -> int:
    """What works here: hook, torch, folders, keys, signals, GPU."""
    return doctor() if python is None else doctor_of(python)


def doctor() -> int:
    """Run and print every check. Returns 1 if one that ddtop needs fails, else 0."""
    from ddtop.cli import doctor_hosts

    checks: list[Callable[[], CheckLine]] = [
        _python,
        _hook,
        _torch,
        _frameworks,
        _mpi,
        _state,
        _runtime,
        _key,
        _page,
        _loopback,
        *doctor_hosts.CHECKS,
        _processes,
        _dump_signal,
        _ptrace,
        _py_spy,
        _journal,
        partial(_ask_driver, NvidiaDriver(), "NVML"),
        partial(_ask_driver, AmdDriver(), "amdsmi"),
        _other_gpus,
        _relays,
    ]
    checks += [_exceptions] if exceptions.asked_for() else []
    checks += [_plugins] if plugins.installed() else []
    return _print_checks([check() for check in checks])


def doctor_of(python: str) -> int:
    """Run that Python with DDTOP=1 and print what its jobs would get. Returns as `doctor` does.

    Raises:
        CommandError: 3, it is not a Python that answers.
    """
    from ddtop.cli.other_python import OF_THE_AGENT, OF_THE_COMMANDS, OtherPython, too_old

    here = OtherPython(python).ask(watched=True)
    version = ".".join(map(str, here.version))
    old = too_old(here.version)
    lines: list[CheckLine] = [(BAD if old else GOOD, "python", old or f"{version} ({here.python})")]
    version = f"ddtop {here.packages.get('ddtop')}"
    if here.hook_runs and (lacking := ", ".join(here.missing_packages(OF_THE_AGENT))):
        text = f"{version} lacks {lacking}: {here.python} -m pip install {lacking.replace(',', '')}"
        lines.append((BAD, "hook", text))
    elif here.hook_runs:
        lines.append((GOOD, "hook", f"{version} is there: jobs with DDTOP=1 are seen"))
        if lacking := ", ".join(here.missing_packages(OF_THE_COMMANDS)):
            text = f"not in that Python, which lacks {lacking}: it has only the agent"
            lines.append((NOTE, "commands", text))
    else:
        lines.append((BAD, "hook", f"not there: ddtop setup-env {python}"))
    if "torch" not in here.packages:
        lines.append((NOTE, "torch", "not in that Python"))
    elif here.hook_runs:
        lines.append(_recorder_of(here.packages["torch"], here.python))
        lines.append(_frameworks(here.python))
    else:
        lines.append((NOTE, "torch", f"{here.packages['torch']}: not tried without the hook"))
    return _print_checks(lines)


def _print_checks(lines: list[CheckLine]) -> int:
    for mark, what, text in lines:
        echo(f"{mark:<5}{what:<14}{text}")
    return 1 if any(mark == BAD for mark, _, _ in lines) else 0


def _python() -> CheckLine:
    return (
        GOOD,
        "ddtop",
        f"{ddtop.__version__} on Python {sys.version.split()[0]} ({sys.executable})",
    )


def _hook() -> CheckLine:
    hint = interpreter.install_advice(sys.executable)
    if hint:
        return BAD, "hook", hint
    return GOOD, "hook", "ddtop.pth is in this Python: jobs with DDTOP=1 are seen"


def _torch() -> CheckLine:
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("torch")
    except PackageNotFoundError:
        return (
            NOTE,
            "torch",
            "not in this Python; jobs of another Python need ddtop installed there",
        )
    return _recorder_of(found, sys.executable)


def _recorder_of(version: str, python: str) -> CheckLine:
    answer = _output_lines(_TRIES_RECORDER, TORCH_TRIAL_S, python)
    if isinstance(answer, str):
        return NOTE, "torch", f"{version}: its flight recorder could not be tried: {answer}"
    # Importing torch may print something, so the answer is the last line.
    mark, _, text = answer[-1].partition("|")
    return (GOOD, "torch", f"{version}: {text}") if mark == "ok" else (NOTE, "torch", text)


TORCH_TRIAL_S = 60
"""Importing a torch with CUDA from a network file system can take this long."""
_TRIES_RECORDER = """
import torch, torch.distributed as dist
from ddtop.agent.probes.recorder import Recorder
version = torch.__version__.partition("+")[0]
if not dist.is_available() or not dist.is_gloo_available():
    print(f"off|torch {version} has no torch.distributed with gloo: "
          "only stacks and processes are shown")
    raise SystemExit
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.zeros(3))
recorder = Recorder()
status = recorder.status()
entries = recorder.entries(3)
how = "without the GIL" if recorder.reads_without_gil else "for ranks that make no progress"
if entries and status:
    print(f"ok|the flight recorder's entries are read {how}")
elif recorder.why_off:
    print(f"off|{recorder.why_off}")
else:
    print(f"off|torch {version}: the flight recorder is off; verdicts name ranks, not operations; "
          "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 in the job turns it on")
"""
"""Records three collectives of one process and reads them as the agent of a rank does.

It runs in a child process, because a torch that cannot do this may crash.
"""


FRAMEWORKS_TRIAL_S = 90
"""All that are installed are imported, one after the other."""
_TRIES_FRAMEWORKS = """
import os, sys
answers, sys.stdout = sys.stdout, sys.stderr
from ddtop.agent.frameworks import check
for line in check.lines():
    print(line, file=answers, flush=True)
print("end", file=answers)
"""


def _plugins() -> CheckLine:
    """What other packages add. `_frameworks` tries the readers of frameworks."""
    names = ", ".join(f"{one.name} ({one.group})" for one in plugins.installed())
    off = [f"; {name} is left out: {why}" for name, why in plugins.left_out.items()]
    return NOTE if off else GOOD, "plugins", "".join([names, *off])


def _frameworks(python: str = sys.executable) -> CheckLine:
    """Whether the installed frameworks have the attributes that ddtop reads."""
    answer = _output_lines(_TRIES_FRAMEWORKS, FRAMEWORKS_TRIAL_S, python)
    if isinstance(answer, str):
        return NOTE, "frameworks", f"their step and phase could not be tested: {answer}"
    found = [line.split("|", 2) for line in answer if line.count("|") >= 2]
    off = [f"{name} ({text})" for mark, name, text in found if mark == "off"]
    if off:
        text = f"ddtop cannot read {'; '.join(off)}"
        return NOTE, "frameworks", f"{text}: ddtop.step() and ddtop.phase() report step and phase"
    read = ", ".join(f"{name} {version}".strip() for _, name, version in found)
    what = read or "tqdm, torch and ddtop.step()"
    return GOOD, "frameworks", f"ddtop reads {what}"


def _output_lines(program: str, within_s: float, python: str = sys.executable) -> list[str] | str:
    """The lines that a program prints in a child process, or the reason why there are none."""
    try:
        done = subprocess.run(
            start_python.program(python, program),
            capture_output=True,
            text=True,
            timeout=within_s,
            env=start_python.environment(),
            cwd=start_python.FOLDER,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)[:120]
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:120]
    return lines


_ASKS_MPI = """
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
from ddtop.agent.mpi.entry import table_of
table_of(MPI.Comm)["Barrier"]
print(mpi4py.__version__, MPI.get_vendor()[0], ".".join(map(str, MPI.get_vendor()[1])), sep="|")
"""
"""Loads the MPI library without MPI_Init.

It runs in a child process, because a library that does not fit may end its process.
"""


def _mpi() -> CheckLine:
    from importlib.util import find_spec

    if find_spec("mpi4py") is None:
        advice = "pip install 'ddtop[mpi]', for jobs under MPI only"
        return NOTE, "MPI", f"mpi4py is not in this Python: {advice}"
    answer = _output_lines(_ASKS_MPI, MPI_S)
    words = answer if isinstance(answer, str) else answer[-1].split("|")
    if isinstance(words, str) or len(words) != 3:
        return NOTE, "MPI", f"mpi4py finds no MPI library that it can use: {answer}"
    version, vendor, number = words
    return GOOD, "MPI", f"mpi4py {version} on {vendor} {number}: its calls can be watched"


def _state() -> CheckLine:
    try:
        return GOOD, "state folder", str(registry.state_dir())
    except registry.RegistryError as error:
        return BAD, "state folder", str(error)


def _runtime() -> CheckLine:
    try:
        path, why = registry.runtime_place()
        registry.socket_path("doctor", "0")
        return (GOOD, "sockets", str(path)) if why is None else (NOTE, "sockets", why)
    except registry.RegistryError as error:
        return BAD, "sockets", str(error)


def _key() -> CheckLine:
    from ddtop.link.keys import SERVER, derive

    try:
        public = derive(registry.secret(), SERVER).public
    except registry.RegistryError as error:
        return BAD, "key", str(error)
    place = "DDTOP_KEY" if os.environ.get("DDTOP_KEY") else "in the state folder, private"
    # A digest of the public half, which a relay shows to everybody.
    digest = hashlib.sha256(public).hexdigest()[:8]
    return GOOD, "key", f"{place}; {digest} here: the same on all hosts of a job"


def _page() -> CheckLine:
    from ddtop.wire.page import PAGE_BYTES

    try:
        free = os.statvfs("/dev/shm")
    except OSError as error:
        return NOTE, "state pages", f"/dev/shm: {error.strerror}; /tmp is used"
    if free.f_bavail * free.f_frsize < 64 * PAGE_BYTES:
        text = "/dev/shm is full: pages go to /tmp, and DataLoader workers will fail there too"
        return NOTE, "state pages", text
    free_mib = free.f_bavail * free.f_frsize >> 20
    return GOOD, "state pages", f"/dev/shm has {free_mib:,} MiB free"


def _loopback() -> CheckLine:
    try:
        with socket.create_server(("127.0.0.1", 0)):
            pass
    except OSError as error:
        return BAD, "ports", f"cannot listen on 127.0.0.1: {error.strerror}"
    return GOOD, "ports", "can listen on 127.0.0.1"


def _processes() -> CheckLine:
    instead = "ddtop looks in /proc for ranks that end; how a rank ended may stay unknown"
    if not hasattr(os, "pidfd_open"):
        return NOTE, "exits", f"no pidfd on this kernel: {instead}"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return NOTE, "exits", f"no pidfd here ({error.strerror}): {instead}"
    return GOOD, "exits", f"pidfd works (Linux {os.uname().release})"


def _dump_signal() -> CheckLine:
    """Send the signal to this process, not only register it."""
    from ddtop.agent.stacks.dump import DumpFile
    from ddtop.relay.dumps.signal import parse

    with tempfile.TemporaryDirectory() as folder:
        dump = DumpFile(Path(folder), "doctor.stacks", os.environ.get("DDTOP_SIGNAL", ""))
        if dump.signal is None or dump.path is None:
            text = f"{dump.off}: a rank whose agent is silent is read by py-spy only"
            return NOTE, "dump signal", text
        os.kill(os.getpid(), dump.signal)
        stacks = parse(dump.path.read_bytes())
        faulthandler.unregister(dump.signal)
        signal.signal(dump.signal, signal.SIG_DFL)
    if not stacks:
        return NOTE, "dump signal", f"signal {dump.signal} came, but faulthandler wrote nothing"
    return GOOD, "dump signal", f"signal {dump.signal} makes faulthandler write the stacks"


def _ptrace() -> CheckLine:
    scope = pyspy.yama_scope()
    if scope == 3:
        return NOTE, "ptrace", "off until the next boot (Yama 3): no py-spy"
    if not scope:
        return GOOD, "ptrace", "not restricted: py-spy reads your processes"
    if pyspy.may_trace_others():
        return GOOD, "ptrace", f"restricted (Yama {scope}), not for this user"
    if scope == 2:
        return NOTE, "ptrace", "root only (Yama 2): no py-spy; with root: sudo py-spy dump --pid P"
    text = "parents only (Yama 1): py-spy reads the ranks of a DDTOP=1 job"
    return NOTE, "ptrace", f"{text}, for others: sudo py-spy dump --pid P"


def _py_spy() -> CheckLine:
    program = pyspy.find()
    if program is None:
        text = pyspy.NOT_INSTALLED.removeprefix("py-spy is ")
        return NOTE, "py-spy", f"{text} (for --native and --pid)"
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=PY_SPY_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return NOTE, "py-spy", f"{program} does not start: {error}"
    version = done.stdout.split()[-1] if done.stdout.split() else "?"
    numbers = [int(part) for part in version.split(".") if part.isdigit()]
    if numbers and numbers < [0, 4]:
        text = f"{version}: if it is killed, it can leave its target stopped; pip install -U py-spy"
        return NOTE, "py-spy", text
    return GOOD, "py-spy", f"{version} ({program})"


def _journal() -> CheckLine:
    from ddtop.relay.history import budget

    size, problem = budget(os.environ)
    try:
        folder = registry.state_dir()
        free = os.statvfs(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"ddtop")
    except (OSError, registry.RegistryError) as error:
        return BAD, "journal", f"cannot be written: {error}"
    if problem is not None:
        return NOTE, "journal", problem
    if size == 0:
        return NOTE, "journal", "switched off by DDTOP_JOURNAL_MIB: nothing to replay after the end"
    room = free.f_bavail * free.f_frsize
    if room < 2 * size:
        text = f"only {room >> 20:,} MiB free in {folder}, a job may write {size >> 20} MiB"
        return NOTE, "journal", text
    return GOOD, "journal", f"at most {size >> 20} MiB a job, {room >> 20:,} MiB free in {folder}"


def _ask_driver(driver: Driver, what: str) -> CheckLine:
    from ddtop.cli.gpu_query import read
    from ddtop.words.units import plural

    if not driver.present():
        return NOTE, what, f"no {driver.maker} driver on this host"
    try:
        gpus, version = read((driver,))
    except CommandError as error:
        return NOTE, what, str(error).removeprefix("ddtop: ")
    count = plural(len([gpu for gpu in gpus if gpu.parent is None]), "GPU")
    text = f"{count}, driver {version or 'unknown'}; who holds them: ddtop gpus"
    first = driver_here()
    if first is not None and first.maker != driver.maker:
        text += f"; ddtop watches those of {first.maker} here"
    return GOOD, what, text


def _other_gpus() -> CheckLine:
    found = [name for path, name in OTHER_GPUS if Path(path).exists()]
    if not found and _has_intel_gpu():
        found = ["Intel GPUs"]
    if not found:
        return GOOD, "other GPUs", "no accelerator here that NVML and amdsmi do not know"
    text = f"{' and '.join(found)}: not read; memory, power and who holds them are unknown"
    return NOTE, "other GPUs", f"{text}, collectives and stacks are shown all the same"


OTHER_GPUS = (("/dev/accel", "accelerators of another maker"),)
"""Device files of drivers that ddtop does not ask. Source: `Documentation/accel` of Linux."""
_DISPLAYS = "sys/class/drm/renderD*/device"
_INTEL, _NO_SCREEN = "0x8086", "0x0380"


def _has_intel_gpu() -> bool:
    """Whether there is an Intel GPU that drives no screen, like those for data centres.

    Source: sysfs, `vendor` and `class` of its PCI device (0x0380: a display controller, other).
    """
    return any(
        _first_line(path / "vendor") == _INTEL
        and _first_line(path / "class").startswith(_NO_SCREEN)
        for path in Path("/").glob(_DISPLAYS)
    )


def _first_line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _exceptions() -> CheckLine:
    name, reason = exceptions.VARIABLE, exceptions.why_not()
    if reason is not None:
        return NOTE, "exceptions", f"{name} {reason}: caught exceptions are not seen"
    return GOOD, "exceptions", f"{name}: exceptions that ranks catch again and again are seen"


def _relays() -> CheckLine:
    try:
        logs = sorted(registry.runtime_dir().glob("*.log"))
        entries = [entry for entry in registry.read_entries() if entry.reachable(time.time_ns())]
    except registry.RegistryError as error:
        return BAD, "relays", str(error)
    if logs:
        return NOTE, "relays", f"a relay failed, see {logs[-1]}"
    return GOOD, "relays", f"{len(entries)} running"
