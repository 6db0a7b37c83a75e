"""A person's path in tmux: from the verdict to the stacks and back, and out."""

import os
import shlex
import shutil
import subprocess
import sys
import time

import pytest

from tests.ui.terminals import HANG, WITHOUT

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Pane:
    """One window of a tmux server of its own."""

    def __init__(self, folder, width, height):
        self._socket = str(folder / "tmux")
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in (*WITHOUT, "TMUX", "TMUX_PANE")
        }
        command = (
            f"{shlex.join([sys.executable, '-c', HANG])}; echo the shell is back, status $?;"
            " exec cat"
        )
        subprocess.run(
            [
                *self._tmux,
                "new-session",
                "-d",
                "-x",
                str(width),
                "-y",
                str(height),
                "sh",
                "-c",
                command,
            ],
            check=True,
            env=environment,
        )

    @property
    def _tmux(self):
        return ["tmux", "-S", self._socket, "-f", "/dev/null"]

    def _ask(self, *words):
        return subprocess.run(
            [*self._tmux, *words], check=True, capture_output=True, text=True
        ).stdout

    def press(self, *keys):
        """Keys as tmux names them."""
        self._ask("send-keys", *keys)

    def lines(self):
        """The text of the pane."""
        return self._ask("capture-pane", "-p").splitlines()

    def until(self, *texts):
        """The lines as soon as all of these texts are on the pane."""
        end = time.monotonic() + 30
        lines = self.lines()
        while not all(any(text in line for line in lines) for text in texts):
            if time.monotonic() > end:
                pytest.fail(f"{texts} did not come:\n" + "\n".join(lines))
            lines = self.lines()
        return lines

    def flag(self, name):
        """One of tmux's formats."""
        return self._ask("display-message", "-p", f"#{{{name}}}").strip()

    def close(self):
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)


@pytest.fixture
def pane(tmp_path):
    one = Pane(tmp_path, 80, 24)
    yield one
    one.close()


def test_from_the_verdict_to_the_stacks_and_out(pane):
    lines = pane.until("✖ rank 5 has been in the DataLoader", "? help")
    assert lines[0].startswith("train-4730  8/8 ranks")
    assert any(
        "ranks 0-4,6,7 wait for it in all_reduce #74893 of default_pg" in line for line in lines
    )

    pane.press("e")
    pane.until("worker pid 4811 must deliver the next batch", "Esc back")
    pane.press("Escape")
    pane.until("? help")

    pane.press("Enter")
    pane.until("rank 5", "load_image", "Esc back")
    pane.press("q")
    pane.until("? help")

    pane.press("d")
    pane.until("asking rank 5", "Esc back")
    pane.press("Escape")
    pane.until("? help")

    pane.press("/")
    pane.press("-l", "state:culprit")
    pane.press("Enter")
    lines = pane.until("filter state:culprit, 1 of 8 ranks")
    assert sum("node000" in line or "blocked" in line for line in lines if "│" not in line) <= 1
    pane.press("Escape")
    pane.until("rank 5", "■ blocked")

    pane.press("F9")
    pane.until("a signal to rank", "KILL", "Esc back")
    pane.press("Escape")
    pane.until("? help")

    pane.press("q")
    pane.until("the shell is back, status 0")
    assert [pane.flag(name) for name in ("alternate_on", "mouse_any_flag", "cursor_flag")] == [
        "0",
        "0",
        "1",
    ]


def test_a_window_of_another_size_is_filled_anew(pane):
    pane.until("✖ rank 5 has been in the DataLoader", "? help")
    pane._ask("resize-window", "-x", "120", "-y", "40")
    lines = pane.until("ranks 0-4,6,7 wait for it in", "F9 signal  < > sort  Space tag")
    assert len(lines) == 40
    pane._ask("resize-window", "-x", "30", "-y", "6")
    pane.until("too small: 30x6")
    pane.press("q")
    pane.until("status 0")
