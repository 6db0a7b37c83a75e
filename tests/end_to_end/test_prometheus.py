"""A real Prometheus scrapes the exporter of a real job, and its alert fires and resolves."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from tests.ports import free_port

pytest.importorskip("prometheus_client")
CONTRIB = Path(__file__).parents[2] / "contrib" / "prometheus"
FIRES_S = 20.0
"""From the fault to the alert."""
START_S, RESOLVES_S = 60.0, 40.0


def needs(program):
    return pytest.mark.skipif(
        shutil.which(program) is None, reason=f"{program} is not installed (Debian: prometheus)"
    )


@needs("promtool")
@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
        ("check", "config", "prometheus.yml"),
    ],
    ids=" ".join,
)
def test_the_alerts_hold_before_promtool(words):
    done = subprocess.run(
        ["promtool", *words], cwd=CONTRIB, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A Prometheus server with the example's config."""

    def __init__(self, world, folder, exporter_port):
        self.port = free_port()
        text = (CONTRIB / "prometheus.yml").read_text()
        assert "127.0.0.1:9477" in text
        config = folder / "prometheus.yml"
        text = text.replace("127.0.0.1:9477", f"127.0.0.1:{exporter_port}")
        # At the example's interval of five seconds it fired 10.6 s after the fault. This test must
        # be short.
        config.write_text(text.replace("interval: 5s", "interval: 1s"))
        shutil.copy(CONTRIB / "alerts.yml", folder)
        self.process = world.start_command(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            ddtop=False,
        )

    def ask(self, path):
        """The answer of its API; None while it starts."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=5
            ) as answer:
                return json.load(answer)["data"]
        except OSError:
            return {"alerts": [], "result": []}

    def value(self, series):
        """The newest value of the one series; None where there is none."""
        found = self.ask(f"query?query={urllib.parse.quote(series)}")["result"]
        return float(found[0]["value"][1]) if found else None

    def firing(self, name):
        """The alert of that name, while it fires."""
        return next(
            (
                one
                for one in self.ask("alerts")["alerts"]
                if one["labels"]["alertname"] == name and one["state"] == "firing"
            ),
            None,
        )


def until(question, seconds, what):
    end = time.monotonic() + seconds
    while not (found := question()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.2)
    return found


@needs("prometheus")
@pytest.mark.torch
@pytest.mark.usefixtures("hook_is_installed")
def test_prometheus_fires_within_twenty_seconds_of_a_hang_and_resolves(world, tmp_path):
    port = free_port()
    exporter = world.start_command(
        [sys.executable, "-m", "ddtop", "exporter", "--listen", f"127.0.0.1:{port}"], ddtop=False
    )
    world.torchrun("train", "none")
    folder = tmp_path / "prometheus"
    folder.mkdir()
    prometheus = Prometheus(world, folder, port)
    job = world.job()
    series = f'ddtop_steps_total{{job="{job}"}}'
    until(lambda: prometheus.value(series), START_S, "the steps are scraped")
    assert prometheus.firing("DdtopHang") is None

    status = json.loads(world.ddtop("status", job, "--json").stdout)
    pid = next(one["pid"] for one in status["ranks"] if one["rank"] == 1)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        alert = until(lambda: prometheus.firing("DdtopHang"), FIRES_S, "the alert fires")
        fired_s = time.monotonic() - began
    finally:
        os.kill(pid, signal.SIGCONT)

    assert alert["labels"]["job"] == job
    assert "rank 1 on" in alert["annotations"]["description"]
    print(f"fired {fired_s:.1f} s after the fault")
    until(lambda: prometheus.firing("DdtopHang") is None, RESOLVES_S, "the alert resolves")
    assert exporter.poll() is None
