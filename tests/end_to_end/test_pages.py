"""What the pages show is typed and run, and the numbers that they name come from the run."""

import json
import os
import re
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.shell_blocks import ROOT, blocks

pytestmark = pytest.mark.torch
HOWTO = ROOT / "docs" / "howto"
STANDS_ONCE = """\
import os, sys, time
import torch, torch.distributed as dist

def wait_for(report):
    while not os.path.exists(report):
        time.sleep(0.1)

dist.init_process_group("gloo")
value = torch.ones(3)
for step in range(1_000_000):
    if step == 40 and dist.get_rank() == 1:
        # It hangs until somebody has seen it.
        wait_for("report.md")
        sys.exit(3)
    dist.all_reduce(value)
    time.sleep(0.03)
"""


def block_with(page, word):
    """The only block of the page in which this word is."""
    (found,) = [block for _, block in blocks(page) if word in block]
    return found


def types(world, block, **variables):
    """Starts the block in a shell that ends at the first error, as the shells of CI do."""
    scripts = sysconfig.get_path("scripts")
    path = os.pathsep.join((scripts, world.environment["PATH"]))
    return world.start_command(
        ["bash", "-e", "-c", block], ddtop=False, PATH=path, DDTOP_LINGER_S="2", **variables
    )


def test_the_report_of_ci_is_there_when_the_test_has_ended(world):
    """Also what `docs/howto/programs.md` does with JSON, on the job that has ended."""
    (world.folder / "test.py").write_text(STANDS_ONCE)
    block = block_with(HOWTO / "ci.md", "--on-critical")
    code = world.done(types(world, block.replace("--nproc-per-node 4", "--nproc-per-node 2")), 120)
    lines = (world.folder / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    kinds = [one["finding"]["kind"] for one in events if one["event"] == "appeared"]

    assert code == 1
    assert kinds[0] == "not-in-collective"
    assert events[-1]["event"] == "ended"
    assert "# ddtop report: ci" in (world.folder / "report.md").read_text()

    schema = block_with(HOWTO / "programs.md", "jsonschema").replace("JOB", "ci")
    checked = types(world, schema.replace("python -m", f"{sys.executable} -m"))
    assert world.done(checked) == 0, world.output(checked)


def test_a_test_in_ci_that_dies_before_it_is_seen_is_not_waited_for(world):
    """The wait ends with the launcher, and the exit code is that of the test."""
    block = block_with(HOWTO / "ci.md", "--on-critical")
    ci = types(world, block.replace("--nproc-per-node 4", "--nproc-per-node four"))
    code = world.done(ci, 60)
    _, err = world.output(ci)

    assert code == 1
    assert re.search(r"no job named ci: its launcher, timeout \(pid \d+\), has ended, and no", err)
    assert world.processes() == set()


def test_the_tutorial_says_what_its_demo_shows(world):
    """A newcomer compares each word with the screen."""
    shown = world.ddtop("demo").stdout
    text = " ".join((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").split())
    found = re.search(
        r"rank (\d) has been reading a pipe in (\w+) \((train\.py:\d+)\) for \d+ s:\s+no other"
        r"\s+process\s+writes\s+that\s+pipe;\s+ranks (\d),(\d),(\d) wait for it in (\w+) #\d+"
        r" of default_pg",
        shown,
    )
    assert found is not None, shown
    rank, function, place, one, two, three, call = found.groups()
    (iteration,) = set(re.findall(r"iter (\d+) ", shown))
    ranks = len(re.findall(r"^ +\d ", shown.partition("RANK")[2].partition("demo")[0], re.M))

    assert ranks == len({rank, one, two, three}) == 4
    assert "real training: four ranks" in text
    assert f"After {iteration} iterations rank {rank} does not call `{call}`." in text
    assert f"- **who**: rank {rank};" in text
    assert f"it is in `{function}`, `{place}`, reading from a pipe;" in text
    assert f"ranks {one}, {two} and {three}, in `{call}` of the default process group;" in text


def test_the_script_of_an_alert_sends_the_sentence(world):
    """The page shows it, and how it is made a program."""
    page = HOWTO / "alerts.md"
    script = world.folder / "alert.sh"
    script.write_text(block_with(page, "#!/bin/sh"))
    programs = world.folder / "programs"
    programs.mkdir()
    mail = programs / "mail"
    mail.write_text('#!/bin/sh\n{ echo "$@"; cat; } > mail.txt\n')
    mail.chmod(0o700)
    path = os.pathsep.join((str(programs), world.environment["PATH"]))
    typed = block_with(page, "chmod") + 'echo \'{"text": "rank 2 hangs"}\' | ./alert.sh\n'

    assert world.done(world.start_command(["bash", "-e", "-c", typed], ddtop=False, PATH=path)) == 0
    assert Path(world.folder / "mail.txt").read_text() == (
        "-s training hangs you@example.org\nrank 2 hangs\n"
    )
