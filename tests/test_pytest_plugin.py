"""`pytest -p ddtop.pytest`: a test that hangs says who is waited for, and leaves no process."""

import os
from importlib.metadata import entry_points
from xml.etree import ElementTree

import pytest

from ddtop.procfs import environment_of
from tests.waiting import until

pytest_plugins = ["pytester"]
HANGS = """
import os, subprocess, sys, time, unittest
import pytest, torch
import torch.distributed as dist, torch.multiprocessing as mp

def work(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        time.sleep(1000)
    dist.all_reduce(torch.ones(1))

def started(method, folder):
    processes = [
        mp.get_context(method).Process(target=work, args=(rank, folder)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert all(process.exitcode == 0 for process in processes)
"""
SPAWN = """
def test_hangs(tmp_path):
    mp.spawn(work, (tmp_path,), nprocs=2)
"""
FORK = """
def test_hangs(tmp_path):
    started("fork", tmp_path)
"""
CASE = """
class TestIt(unittest.TestCase):
    # As torch's MultiProcessTestCase: setUp starts the ranks, and the test waits for them.
    def setUp(self):
        folder = os.path.join(os.getcwd(), "of" + str(os.getpid()))
        os.mkdir(folder)
        context = mp.get_context("spawn")
        self.processes = [context.Process(target=work, args=(rank, folder)) for rank in range(2)]
        for process in self.processes:
            process.start()
    def test_hangs(self):
        while any(process.exitcode is None for process in self.processes):
            time.sleep(0.1)
        assert all(process.exitcode == 0 for process in self.processes)
"""
TORCHRUN = """
def test_hangs(tmp_path):
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_it;"
    code += "import os; test_it.work(int(os.environ['RANK']), sys.argv[2])"
    script = tmp_path / "ranks.py"
    script.write_text(code)
    here = os.path.dirname(__file__)
    words = ["--standalone", "--nproc-per-node=2", script, here, tmp_path]
    subprocess.run([sys.executable, "-m", "torch.distributed.run", *words], check=True)
"""


@pytest.fixture
def run(pytester, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("DDTOP", "PYTEST_XDIST"))]:
        monkeypatch.delenv(name)
    # What the plugin leaves behind would carry this.
    monkeypatch.setenv("OF_THIS_TEST", str(pytester.path))

    def run(text, *words):
        pytester.makepyfile(test_it=text)
        words = ("-p", "ddtop.pytest", "-p", "no:randomly", "--junitxml=junit.xml", *words)
        return pytester.runpytest_subprocess(*words)

    return run


def left(pytester):
    """Processes that were started for this test and live."""
    return [
        pid
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if (environment_of(pid) or {}).get("OF_THIS_TEST") == str(pytester.path)
    ]


@pytest.mark.job
@pytest.mark.torch
@pytest.mark.parametrize(
    ("text", "words"),
    [(SPAWN, ()), (FORK, ()), (CASE, ()), (TORCHRUN, ()), (SPAWN, ("-n", "1"))],
    ids=["spawn", "fork", "case", "torchrun", "xdist"],
)
def test_a_hang_is_told_with_all_stacks_and_ended(run, pytester, text, words):
    done = run(HANGS + text, "--ddtop-limit", "12", *words)
    failure = ElementTree.parse(pytester.path / "junit.xml").find(".//failure")
    shown = done.stdout.str()

    done.assert_outcomes(failed=1)
    assert "the test has not ended within 12 s" in shown
    for told in (shown, failure.text, failure.get("message")):
        assert "rank 1 has been asleep in work (test_it.py:9)" in told
        assert "rank 0 waits for it in all_reduce" in told
    assert failure.text.count("time.sleep(1000)") >= 1
    assert "test_it.py:10 work" in failure.text  # where rank 0 waits
    assert "the test itself:" in failure.text
    until(lambda: not left(pytester))


@pytest.mark.job
def test_a_test_that_cannot_be_interrupted_ends_the_run_with_its_text(run, pytester, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(pytester.path))
    text = """
import signal, time

def test_hangs():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    time.sleep(1000)
"""
    done = run(text, "--ddtop-limit=1")

    assert done.ret == 1
    assert "the test has not ended within 1 s" in done.stderr.str()
    assert "this process cannot be interrupted" in done.stderr.str()
    assert list(pytester.path.glob("ddtop-*")) == []


def test_a_test_that_waits_alone_is_told_with_its_own_stack(run, monkeypatch):
    text = """
import ddtop.pytest, os, pytest, time
ddtop.pytest.LEAVE_S = 0.5

def test_before():
    assert os.environ.get("DDTOP") is None

@pytest.mark.ddtop(limit=0.5)
def test_hangs():
    assert os.environ["DDTOP"] == "1" and os.path.isdir(os.environ["DDTOP_RUNTIME"])
    time.sleep(1000)

@pytest.mark.ddtop(limit=60)
def test_fails():
    assert 1 == 2

def test_after():
    assert os.environ.get("DDTOP_RUNTIME") is None
"""
    done = run(text)

    done.assert_outcomes(passed=2, failed=2)
    done.stdout.fnmatch_lines(["*has not ended within 0.5 s", "it has started no process"])
    done.stdout.fnmatch_lines(["the test itself:", "    time.sleep(1000)", "*assert 1 == 2"])
    done.stdout.fnmatch_lines(["FAILED test_it.py::test_hangs - the test has not ended within*"])


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        ("def test_it(): pass", ("--ddtop-limit=soon",), "a number of seconds above 0, not 'soon'"),
        ("def test_it(): pass", ("--ddtop-limit=0",), "a number of seconds above 0, not '0'"),
        ("def test_it(): pass", ("--ddtop-limit=nan",), "a number of seconds above 0, not 'nan'"),
        ("", "limit=-1", "a number of seconds above 0, not -1"),
        ("", "3", "the marker is ddtop(limit=SECONDS)"),
        ("", "", "the marker is ddtop(limit=SECONDS)"),
    ],
)
def test_a_wrong_limit_ends_the_run_with_one_sentence(run, text, words, told):
    text = text or f"import pytest\n@pytest.mark.ddtop({words})\ndef test_it(): pass"
    done = run(text, *(words if isinstance(words, tuple) else ()))

    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert told in done.stderr.str()
    assert "Traceback" not in done.stderr.str()


def test_a_run_that_does_not_ask_for_it_imports_nothing():
    assert not [one for one in entry_points(group="pytest11") if "ddtop" in one.value]
