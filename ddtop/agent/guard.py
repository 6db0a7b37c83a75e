"""The one place that catches errors of the agent. It switches off the part that raised and counts
the error; the training continues.
"""

from __future__ import annotations

import time

# Not at run time: this module is loaded in every Python of a DDTOP=1 shell.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

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
        except BaseException as error:  # noqa: BLE001 - the agent's edge: the job must not see it
            self.raised(name, error)
            failures = self._failed.get(name, _NEVER)[0] + 1
            again_s = self.again_s(name, failures)
            self._failed[name] = (
                failures,
                float("inf") if again_s is None else time.monotonic() + again_s,
            )
            return False
        return True

    def raised(self, name: str, error: BaseException) -> None:
        """Switch off the part that has raised this error, whatever it is: a plugin may call
        `sys.exit`. Call it in the `except` block.

        Raises:
            BaseException: this error, if a signal handler of the program has raised it.
        """
        if _is_of_signal(error):
            raise error
        from ddtop.agent.plain import name_of, text_of

        self.note(name, f"{name_of(type(error))}: {text_of(error)}")

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


def _is_of_signal(error: BaseException) -> bool:
    """Whether a signal handler of the program has raised it: Ctrl-C, a time limit, `sys.exit` at
    SIGTERM. It then comes from any instruction of ours, and belongs to the program.
    """
    import signal
    from functools import partial
    from types import FunctionType, MethodType

    from ddtop.agent.plain import is_a, traceback_of

    handlers = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while type(handler) in (partial, MethodType):
            handler = handler.func if type(handler) is partial else handler.__func__
        if type(handler) is FunctionType:
            handlers.add(handler.__code__)
    step = traceback_of(error)
    while step is not None:
        if step.tb_frame.f_code in handlers:
            return True
        code, at, step = step.tb_frame.f_code.co_code, step.tb_lasti, step.tb_next
    if not is_a(error, KeyboardInterrupt):
        return False
    # Python's own handler of SIGINT has no frame. Code that raises it has an instruction for that.
    from opcode import opmap

    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return default and code[at] != opmap["RAISE_VARARGS"]


class _Suppressed:
    """`with suppressed:` around what may fail in the program's thread."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        return error is not None and not _is_of_signal(error)


suppressed = _Suppressed()

guard = Guard()
"""The guard of this process. Wrappers are installed before there is a rank, so it belongs to none.
"""
