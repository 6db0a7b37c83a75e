"""Redacts a text that others will read: everything that looks like a secret is removed.

Agents redact their reports by the same patterns (`ddtop.redaction`). A relay or an older agent may
not, and source lines and paths are added only here.
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
