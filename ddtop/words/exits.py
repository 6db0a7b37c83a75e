"""How a process ended, as text."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """`SIGKILL`; a number without a name stays a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_text(code: int | None, number: int | None, oom: bool | None = None) -> str:
    """`exit code 1`, `SIGKILL`, `SIGKILL (out of memory)`; `exit code unknown` where no one knows.

    `number` is the signal that ended the process, None where it was none.
    """
    if number is not None:
        name = signal_name(number)
        return f"{name} (out of memory)" if oom else name
    return f"exit code {code}" if code is not None else "exit code unknown"
