"""`python -m docs.generate` writes the man page, which an sdist needs, and the tables of
measurements in the pages that explain them. `python -m docs.generate reference/limits.md` prints
that page of the site.
"""

from __future__ import annotations

import sys

from docs.generate import MAN_PAGE, PAGES, results, write_man_page

if wanted := sys.argv[1:]:
    if unknown := set(wanted) - PAGES.keys():
        sys.exit(f"no such page: {', '.join(sorted(unknown))}; there are {', '.join(PAGES)}")
    print("\n".join(PAGES[name]() for name in wanted))
else:
    write_man_page()
    results.write_tables()
    print(f"written: {MAN_PAGE}")
