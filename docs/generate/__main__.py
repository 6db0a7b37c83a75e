"""`python -m docs.generate` writes what is stale; with `--check` it writes nothing and exits
with 1.
"""

from __future__ import annotations

import sys

from docs.generate import stale, write

if "--check" in sys.argv[1:]:
    names = stale()
    print("\n".join(f"stale: docs/{name}" for name in names) or "all generated pages are current")
    sys.exit(1 if names else 0)
print("\n".join(f"written: docs/{name}" for name in write()) or "all generated pages were current")
