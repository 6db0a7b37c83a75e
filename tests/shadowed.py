"""A folder in which every name of the standard library is a module of somebody else."""

from __future__ import annotations

import sys
from pathlib import Path

OURS = ("ddtop", "click", "msgspec", "textual", "torch", "zmq", "pip")
_MARKS = """
import posix
posix.close(posix.open({marks!r} + "/" + __name__, posix.O_CREAT | posix.O_WRONLY, 0o600))
raise ImportError("this module is a stranger's")
"""


class Shadowed:
    """`folder` has the modules. `ran()` lists those that were executed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._marks = folder / "everybodys", folder / "marks"
        self.folder.mkdir()
        self._marks.mkdir()
        code = _MARKS.format(marks=str(self._marks))
        for name in (*sys.stdlib_module_names, *OURS):
            (self.folder / f"{name}.py").write_text(code)

    def ran(self) -> list[str]:
        return sorted(path.name for path in self._marks.iterdir())
