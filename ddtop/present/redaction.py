"""The last look over a text that will be read by strangers: what looks like a secret goes, whoever
wrote it there.

Agents have redacted what they say already, by the same patterns (`ddtop.redaction`); but a relay or
an older agent may not have, and source lines and paths are first seen here.
"""

from __future__ import annotations

import re

from ddtop import redaction
from ddtop.redaction import HIDDEN

__all__ = ("HIDDEN", "redacted")


def redacted(text: str, home: str | None = None) -> str:
    """The text without what looks like a secret; `home`, the user's folder, becomes `~`."""
    text = redaction.redacted(text)
    if home and len(home.rstrip("/")) > 1:
        text = re.sub(re.escape(home.rstrip("/")) + r"(?![\w.-])", "~", text)
    return text
