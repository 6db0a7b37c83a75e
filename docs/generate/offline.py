"""`python -m docs.generate.offline SITE`: exits with 1 where a page of the built site loads
something from elsewhere.

A link that a person follows is fine. A script, style, font or picture from elsewhere is not: the
site must be complete behind a firewall, and must tell nobody who reads it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "link": "href",
    "use": "href",
    "image": "href",
}
"""Which attribute of a tag makes a browser load something."""
_REMOTE = re.compile(r"\s*(https?:)?//", re.IGNORECASE)
_IN_STYLE = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s;]+)""", re.IGNORECASE)


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a browser would load for this tag."""
        given = dict(attrs)
        # It names the page itself and loads nothing.
        if tag == "link" and given.get("rel") == "canonical":
            return
        value = given.get(LOADED.get(tag, "")) or ""
        if _REMOTE.match(value):
            self.found.append(value)


def remote_of(name: str, text: str) -> list[str]:
    """The addresses elsewhere that this file makes a browser load. `name` decides how it is
    read.
    """
    found = _IN_STYLE.findall(text) if name.endswith((".css", ".html", ".svg")) else []
    if name.endswith((".html", ".svg")):
        loads = _Loads()
        loads.feed(text)
        found += loads.found
    return found


def remote_in(site: Path) -> Iterator[tuple[str, str]]:
    """(file, address) for all of the site."""
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css", ".svg"):
            for address in remote_of(path.name, path.read_text(encoding="utf-8")):
                yield str(path.relative_to(site)), address


if __name__ == "__main__":
    complaints = [f"{name} loads {address}" for name, address in remote_in(Path(sys.argv[1]))]
    print("\n".join(complaints) or "the site loads nothing from elsewhere")
    sys.exit(1 if complaints else 0)
