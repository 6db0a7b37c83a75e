"""`python -m tools.new finding NAME` writes what a finding begins with, and puts it into the
tables.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.new import CannotWriteError, write

if len(sys.argv) != 3:
    sys.exit("usage: python -m tools.new finding NAME")
try:
    files, then = write(sys.argv[1], sys.argv[2], Path.cwd())
except CannotWriteError as error:
    sys.exit(str(error))
print("\n".join(f"written: {file}" for file in files))
print(then, end="")
