"""Text that many ranks report alike is kept once. Each record is read with text of its own, and of
100,000 Hellos that is 100 MB.
"""

from __future__ import annotations

from sys import intern

from msgspec.structs import force_setattr

from ddtop.wire.records import Hello

_TEXTS = (
    "job", "run", "host", "script", "python", "torch", "backend", "agent_version", "claim",
)  # fmt: skip


def share_text(hello: Hello, other: Hello | None) -> None:
    """Let this Hello share its text with all others, and with `other` its arguments.

    It stays equal to what it was. What is shared is freed with its last user.
    """
    for name in _TEXTS:
        text = getattr(hello, name)
        if text is not None:
            force_setattr(hello, name, intern(text))
    environment = {intern(key): intern(value) for key, value in hello.environment.items()}
    force_setattr(hello, "environment", environment)
    if other is not None and hello.argv == other.argv:
        force_setattr(hello, "argv", other.argv)
