from contextlib import AbstractContextManager
from typing import Any

from ddtop.api import watch as watch

__version__: str
__all__ = ["__version__", "expected", "phase", "progress", "step", "watch"]
_agent: Any

def step() -> None: ...
def phase(name: str) -> AbstractContextManager[object, None]: ...
def expected(name: str, *, up_to_s: float) -> AbstractContextManager[object, None]: ...
def progress(
    *,
    step: int | None = None,
    total_steps: int | None = None,
    epoch: float | None = None,
    total_epochs: float | None = None,
    samples: float | None = None,
    tokens: float | None = None,
    loss: float | None = None,
    lr: float | None = None,
) -> None: ...
