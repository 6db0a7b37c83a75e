"""What the texts of libraries' exceptions say: they are written for people, and change."""

from __future__ import annotations

import re
from enum import Enum


class Says(Enum):
    """Something that such a text may say."""

    TRUNCATED = re.compile(r"MPI_ERR_TRUNCATE|message truncated", re.IGNORECASE)

    def within(self, text: str) -> bool:
        """Whether the text says it."""
        return bool(self.value.search(text))
