"""One viewer of a relay in a plain loop."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ddtop.link.viewer_side import ViewerLinks


class ViewerLink:
    """Joins nothing by itself: what it sends is for the test to say."""

    def __init__(self, address: str, port: int, secret: bytes, controller: bool = False) -> None:
        self._links = ViewerLinks()
        self._links.open("", address, port, secret, controller)

    def send(self, frame: bytes) -> None:
        self._links.send("", frame)

    def receive(self, seconds: float) -> Iterator[bytes]:
        """The frames that come in during the next `seconds`."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for _, data in self._links.receive(left):
                yield data

    def close(self) -> None:
        self._links.close()
