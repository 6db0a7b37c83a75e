"""Commands: whatever a file, a scheduler or a user does, it is one sentence and an exit code."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from ddtop.cli.actions import check_url
from ddtop.cli.errors import CommandError
from ddtop.feeds.route import NoContactError
from ddtop.feeds.schedulers import NoSuchJobError, kubernetes_job
from tests.cli.commands import ddtop
from tests.hostile.names import BAD
from tests.relay.stage import listed_job
from tests.silent_fs import NEEDS_FUSE, hangs

DEADLINE_S = 30.0


def said(*words, code):
    """What it says on stderr: one sentence."""
    done = ddtop(*words)
    assert (done.returncode, done.stdout) == (code, ""), done
    assert done.stderr.startswith("ddtop: "), done
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


# -- the config file


def test_a_pipe_in_place_of_the_config_file_does_not_block(home, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "config.toml")
    monkeypatch.setenv("DDTOP_CONFIG", str(tmp_path / "config.toml"))

    assert "is not a file" in said("jobs", code=2)


@NEEDS_FUSE
@pytest.mark.job
def test_a_home_folder_that_hangs_is_named(home, tmp_path, monkeypatch):
    (tmp_path / "hung").mkdir()
    monkeypatch.setenv("DDTOP_CONFIG", str(tmp_path / "hung" / "config.toml"))
    with hangs(tmp_path / "hung"):
        began = time.monotonic()
        text = said("jobs", code=3)

    assert f"{tmp_path}/hung/config.toml does not answer within 5 s" in text
    assert time.monotonic() - began < DEADLINE_S


# -- schedulers


def answers(monkeypatch, text):
    monkeypatch.setattr("ddtop.feeds.schedulers.ask", lambda *_: (0, text, ""))


def pod(name="train", labels=None, status=None):
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"phase": "Running"} if status is None else status,
    }


PENDING = {"phase": "Pending"}
MALFORMED = [
    "",
    "[]",
    "7",
    '"items"',
    '{"items": 7}',
    '{"items": null}',
    "[" * 100_000,
    '{"items": [7]}',
    '{"items": [{}]}',
    '{"items": [{"metadata": 7}]}',
    '{"items": [{"metadata": {"name": 7}}]}',
    *(
        json.dumps({"items": [one]})
        for one in (
            pod(labels=7),
            pod(labels={"apps.kubernetes.io/pod-index": 7}),
            pod(labels={"apps.kubernetes.io/pod-index": "\u00b2"}),
            pod(labels={"apps.kubernetes.io/pod-index": "9" * 5000}),
            pod(status=7),
            pod(status={**PENDING, "conditions": 7}),
            pod(status={**PENDING, "conditions": [7]}),
            pod(status={**PENDING, "containerStatuses": [{"state": 7}]}),
            pod(status={**PENDING, "containerStatuses": [{"state": {"waiting": 7}}]}),
        )
    ),
]


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_list_of_pods_is_reported(monkeypatch, text):
    answers(monkeypatch, text)

    with pytest.raises(NoContactError, match="did not answer with a list of pods"):
        kubernetes_job("default/train", None)


@pytest.mark.parametrize("name", ["--kubeconfig=/tmp/x", "-n", "a b", "a/b", "", BAD, "\u0430"])
def test_a_pod_with_a_malformed_name_is_skipped(monkeypatch, name):
    """The name stands before the words of `kubectl exec`."""
    labels = {"job-name": "train"}
    answers(monkeypatch, json.dumps({"items": [pod(name, labels)]}))
    with pytest.raises(NoSuchJobError, match="there are no pods"):
        kubernetes_job("default/train", None)

    answers(monkeypatch, json.dumps({"items": [pod(name, labels), pod("train-0", labels)]}))
    assert kubernetes_job("default/train", None).before[-2:] == ("train-0", "--")


# -- arguments


TOKENS = [
    "https://hooks.slack.com/services/T/B/x",
    "https://hooks.slack.com/workflows/T01/A02/345",
    "https://acme.webhook.office.com/webhookb2/a@b/IncomingWebhook/c",
    "https://discord.com/api/webhooks/1/abcdefgh",
    "https://api.telegram.org/bot12:AAbb/sendMessage",
    "https://chat.example.org/hooks/8kzf3cxq7b8bmy6s9ae4m1o5xc",
    "https://n8n.example.org/webhook/5a0e6f3c-3b7e-41ee-be56-0242ac120002",
    "https://events.example.org/?token=abc",
    "https://events.example.org/in?api_key=abc",
    "https://ada@events.example.org/",
    "https://ada:pw@events.example.org/",
]


@pytest.mark.parametrize("url", TOKENS)
def test_a_webhook_with_a_token_is_refused_on_the_command_line(url):
    """Every user of the host reads the command line, whoever's token it is."""
    said = "this URL is a secret, and every user of the host can read it"
    with pytest.raises(CommandError, match=said) as raised:
        check_url(url, "--webhook")

    assert raised.value.code == 2
    assert check_url(url, "--webhook-file") == url


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9093/api/v2/alerts",
        "https://alerts.example.org/ddtop",
        "https://alerts.example.org/teams/training-cluster-2024/alerts?severity=page",
    ],
)
def test_a_webhook_without_a_token_is_accepted(url):
    assert check_url(url, "--webhook") == url


@pytest.mark.parametrize("name", ["-it", "--privileged", "-"])
def test_a_container_whose_name_is_an_option_is_refused(home, name):
    assert "is an option" in said("setup-env", "python3", f"--container={name}", code=2)


@pytest.mark.parametrize("target", ["/dev/null", "/dev/null/x", "/proc/x", "a" * 300])
@pytest.mark.parametrize("undo", [(), ("--undo",)], ids=["fill", "undo"])
def test_a_target_that_cannot_be_a_folder_is_refused(home, target, undo):
    said("setup-env", sys.executable, "--target", target, *undo, code=2)


PRINTS = ["7", "{}", "[]", "null", '{"python": 1, "version": 2}', "\udcff"]


@pytest.mark.parametrize("text", PRINTS)
def test_a_program_that_does_not_answer_as_python_is_refused(home, tmp_path, text):
    program = tmp_path / "python"
    program.write_bytes(b"#!/bin/sh\ncat <<'E'\n" + os.fsencode(text) + b"\nE\n")
    program.chmod(0o700)

    assert "does not answer as a Python does" in said("doctor", "--python", program, code=3)


@pytest.mark.parametrize("python", ["", "a" * 5000, "/dev/null", "/", "x/y", "\udcff"])
def test_a_file_that_is_not_a_program_is_refused_as_python(home, python):
    said("doctor", "--python", python, code=3)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_python_in_a_folder_that_may_not_be_entered_is_refused(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o700)
    code = (
        f"import os; os.setuid(65534)\nfrom ddtop.cli.other_python import OtherPython\n"
        f"print(OtherPython({str(tmp_path / 'closed')!r}).python)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "PermissionError" not in done.stderr


# -- an impatient user


@pytest.mark.parametrize("between_s", [0.0, 0.001, 0.005, 0.1])
def test_ctrl_c_again_ends_a_watch_without_a_traceback(home, between_s):
    with listed_job(home):
        watch = subprocess.Popen(
            [sys.executable, "-m", "ddtop", "watch", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert watch.stdout is not None
        assert watch.stdout.readline()
        for _ in range(3):
            watch.send_signal(signal.SIGINT)
            time.sleep(between_s)
        _, err = watch.communicate(timeout=DEADLINE_S)

    assert (watch.returncode in (130, -signal.SIGINT), err.strip()) == (True, "")


# -- tools for language models


def test_a_time_that_is_not_a_number_is_refused(home):
    pytest.importorskip("mcp")
    from mcp.server.mcpserver.exceptions import ToolError

    from ddtop.cli import mcp_server

    for tool in (
        lambda: mcp_server.diagnose("x", float("nan")),
        lambda: mcp_server.history("x", float("nan")),
    ):
        with pytest.raises(ToolError, match="NaN is not a time"):
            tool()


def test_an_answer_can_be_written_as_utf_8(home):
    pytest.importorskip("mcp")
    from mcp.server.mcpserver.exceptions import ToolError

    from ddtop.cli import mcp_server

    def raises():
        raise ToolError("\udcff")

    answer = mcp_server._in_turn(lambda: {"a\udcff": ["\udcfe"]})()
    assert answer == {"data": mcp_server.DATA, "a\\udcff": ["\\udcfe"]}
    with pytest.raises(ToolError, match=r"^\\udcff \("):
        mcp_server._in_turn(raises)()


def test_four_looks_run_at_once_and_the_others_wait(home):
    pytest.importorskip("mcp")
    from ddtop.cli import mcp_server

    most, lock, now = 0, threading.Lock(), [0]
    barrier = threading.Barrier(mcp_server.LOOKS_MAX)

    def look():
        nonlocal most
        with lock:
            now[0] += 1
            most = max(most, now[0])
        barrier.wait(DEADLINE_S)
        with lock:
            now[0] -= 1

    tool = mcp_server._in_turn(look)
    threads = [threading.Thread(target=tool) for _ in range(3 * mcp_server.LOOKS_MAX)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(DEADLINE_S)

    assert most == mcp_server.LOOKS_MAX
