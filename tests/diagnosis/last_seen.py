"""Where torch is installed."""

from __future__ import annotations

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
