"""The `ddtop` command, and `python -m ddtop`.

A training environment has no packages of the viewer. There the command says in one sentence what
to install.
"""

from __future__ import annotations

import sys

UNREACHABLE, INTERRUPTED = 3, 130
OF_THE_VIEWER = ("click", "textual", "rich")


def main() -> None:
    """Run the `ddtop` command. Exit code 3: this Python has the agent, and no viewer."""
    try:
        from ddtop.cli import main as command

        command()
    except KeyboardInterrupt:
        # Ctrl-C while the command is still imported; later click answers it in the same way.
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in OF_THE_VIEWER:
            raise
        sys.stderr.write(missing(error.name) + "\n")
        sys.exit(UNREACHABLE)


def missing(name: str) -> str:
    """What to do where a package of the viewer is not installed."""
    return (
        f"ddtop: {sys.executable} has ddtop's agent, but not its viewer ({name} is missing).\n"
        f"Install it there: {sys.executable} -m pip install 'ddtop[viewer]'\n"
        "or in a place of its own, on the same host: uv tool install 'ddtop[viewer]'"
    )


if __name__ == "__main__":
    main()
