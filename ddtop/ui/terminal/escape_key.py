"""Reads Esc and the key after it as two keys.

Terminals send Alt+key as Esc and the key, and Textual reads them as Alt+key (or drops the Esc) when
both arrive within a tenth of a second. ddtop has no keys with Alt. But a user who leaves a page and
presses the next key at once, or whose connection delivers several keys in one packet, means two
keys. The overridden parts are not public: if they are not as expected, Textual's own parser is
used.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver

ESC = "\x1b"
_PARAMETERS = ["self", "sequence", "alt"]


class Parser(XTermParser):
    """Textual's parser without Alt keys."""

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[events.Key]:
        keys = [*super()._sequence_to_key_events(sequence)]
        # The beginning of a longer sequence means nothing yet.
        if keys and len(sequence) == 2 and sequence[0] == ESC:
            alt, keys = True, [*super()._sequence_to_key_events(sequence[1])]
        if alt:
            yield events.Key("escape", ESC)
        yield from keys


def install() -> bool:
    """Make the driver use this parser; False if this release of Textual is built differently."""
    own = getattr(XTermParser, "_sequence_to_key_events", None)
    if (
        own is None
        or list(inspect.signature(own).parameters) != _PARAMETERS
        or not hasattr(linux_driver, "XTermParser")
    ):
        return False
    linux_driver.__dict__["XTermParser"] = Parser
    return True
