"""The one place that catches errors of the agent. It switches off the part that raised and counts
the error; the training continues.
"""

from __future__ import annotations

import time

# Not at run time: this module is loaded in every Python of a DDTOP=1 shell.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

REASON_CHARACTERS = 200
AGAIN_S = 30.0
"""The next pauses are two and eight minutes, so a part that always fails costs four exceptions."""
FAILURES_MAX = 4
AGAIN = frozenset({"runtime", "stacks", "arrivals", "relay restart", "ptracer", "exceptions"})
"""Parts that are tried again, besides the probes: each attempt starts from scratch."""
_NEVER = (0, float("inf"))


class Guard:
    """Runs parts of the agent. A part that raised is off; `off` maps its name to the reason.

    A part that only reads is tried again a few times (`try_again`), because each attempt starts
    from scratch. A wrapper of the program's functions stays off, because it may have done half of
    its work.
    """

    def __init__(self) -> None:
        self.off: dict[str, str] = {}
        # Name: (failures, when it may be tried again, monotonic s).
        self._failed: dict[str, tuple[int, float]] = {}
        self._again = set(AGAIN)

    def try_again(self, name: str) -> None:
        """From now on, try this part again some time after it has failed."""
        self._again.add(name)

    def run(self, name: str, part: Callable[..., object], *arguments: object) -> bool:
        """Run the part unless it is off; False if it did not run to its end.

        It takes the arguments separately, so that the agent's tick creates no closures.
        """
        if name in self.off:
            if time.monotonic() < self._failed.get(name, _NEVER)[1]:
                return False
            del self.off[name]
        try:
            part(*arguments)
        except Exception as error:  # noqa: BLE001 - the agent's edge: the job must not see it
            self.off[name] = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS]
            failures = self._failed.get(name, _NEVER)[0] + 1
            again_s = self.again_s(name, failures)
            self._failed[name] = (
                failures,
                float("inf") if again_s is None else time.monotonic() + again_s,
            )
            return False
        return True

    def note(self, name: str, reason: str) -> None:
        """Report a part as off because it has found that it cannot work here.

        It is not tried again.
        """
        self.off[name] = reason[:REASON_CHARACTERS]

    def again_s(self, name: str, failures: int) -> float | None:
        """After how many seconds a part with this many failures is tried again; None: never."""
        return (
            AGAIN_S * 4 ** (failures - 1)
            if name in self._again and failures < FAILURES_MAX
            else None
        )

    def failures(self, name: str) -> int:
        """How often this part has failed."""
        return self._failed.get(name, _NEVER)[0]


guard = Guard()
"""The guard of this process. Wrappers are installed before there is a rank, so it belongs to none.
"""
