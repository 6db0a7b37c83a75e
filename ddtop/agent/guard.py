"""The one place where an error of ours stops: a part that raises is switched off and counted, training goes on."""

from __future__ import annotations

# Not at run time: this module is loaded in every Python of a DDTOP=1 shell.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

REASON_CHARACTERS = 200


class Guard:
    """Runs parts of the agent; a part that raised is not run again. `off` maps its name to the reason."""

    def __init__(self) -> None:
        self.off: dict[str, str] = {}

    def run(self, name: str, part: Callable[..., object], *arguments: object) -> bool:
        """Run the part unless it is off; False if it did not run to its end.

        The arguments are handed on so that the agent's tick makes no closures.
        """
        if name in self.off:
            return False
        try:
            part(*arguments)
        except Exception as error:  # noqa: BLE001 - the agent's edge: the job must not see it
            self.off[name] = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS]
            return False
        return True


guard = Guard()
"""The guard of this process; wrappers are installed before there is a runtime, so it belongs to none."""
