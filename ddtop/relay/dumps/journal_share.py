"""Limits the share of a recording that stacks may take.

A user who asks for stacks again and again must not push the history of the job out of the
recording.
"""

from __future__ import annotations

PART = 4
"""One byte of stacks for this many bytes of other records, after a first allowance of one eighth of
the whole: 50 dumps of 8 ranks."""
FIRST_PART = 8


class JournalShare:
    """Counts what is recorded. Used by the relay's loop only.

    `left_out`: stacks that were not recorded; viewers have got them.
    """

    def __init__(self, whole_bytes: int) -> None:
        self._room_bytes = whole_bytes // FIRST_PART
        self._part_bytes = 0
        self.left_out = 0

    def wrote(self, size_bytes: int) -> None:
        """Something else was recorded."""
        self._part_bytes += size_bytes
        self._room_bytes += self._part_bytes // PART
        self._part_bytes %= PART

    def admits(self, size_bytes: int, automatic: bool) -> bool:
        """Whether stacks of this size are recorded.

        Those that the relay took by itself always are: they are the evidence of a hang, and come at
        most twice a minute.
        """
        if not automatic and size_bytes > self._room_bytes:
            self.left_out += 1
            return False
        self._room_bytes = max(self._room_bytes - size_bytes, 0)
        return True
