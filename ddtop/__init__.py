"""ddtop: a live monitor for distributed training.

`ddtop.step()` marks the end of one iteration where no optimizer step and no DataLoader batch does;
it is a no-op in a process that is not watched. Importing this package imports nothing else but its
version.
"""

from __future__ import annotations

try:
    from ddtop._version import version as __version__
except ImportError:
    # A checkout that was never built, reached through PYTHONPATH.
    __version__ = "0.1.0"

__all__ = ["__version__", "step"]


def step() -> None:
    """Mark the end of one iteration; from the first call on, iterations are counted here and
    nowhere else.

    Called on the training thread: O(1), about a microsecond, does nothing where no agent runs.
    """
    import sys

    current = sys.modules.get("ddtop.agent.current")
    if current is not None:
        current.user_step()
