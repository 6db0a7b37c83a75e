"""The `ddtop` command, and `python -m ddtop`.

An image can have the agent alone, without the packages of the commands. There the command says in
one sentence what is missing and how to get it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

UNREACHABLE, INTERRUPTED = 3, 130
OF_THE_AGENT = ("zmq", "msgspec", "psutil")
OF_THE_COMMANDS = ("click", "textual", "rich", "tomli")


def main() -> None:
    """Run the `ddtop` command. Exit code 3: this Python lacks a package."""
    try:
        from ddtop.cli import main as command

        command()
    except KeyboardInterrupt:
        # Ctrl-C while the command is still imported; later click answers it in the same way.
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in (*OF_THE_AGENT, *OF_THE_COMMANDS):
            raise
        sys.stderr.write(missing_package_text(name) + "\n")
        sys.exit(UNREACHABLE)


def missing_package_text(name: str) -> str:
    """What works in this Python without the package that could not be imported, and how to get
    it."""
    python = sys.executable
    lacking = [one for one in OF_THE_AGENT if find_spec(one) is None]
    if lacking:
        needed = f"{python} lacks {', '.join(lacking)}, which agent and commands need"
    else:
        needed = f"the agent works in {python}, but the commands need {name}"
    return f"ddtop: {needed}: {python} -m pip install ddtop, or elsewhere on this host: uvx ddtop"


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        # Of `python -m`: the current folder. A file of it must not take the place of a module that
        # is imported from here on.
        del sys.path[0]
    main()
