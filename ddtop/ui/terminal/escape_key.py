"""Esc and the key after it, as two keys.

Terminals send Alt and a key as Esc and the key, and Textual takes them for that (or drops the Esc)
when both come within a tenth of a second. ddtop has no key with Alt; but who leaves a page and goes
on at once, or whose line hands several keys over in one packet, means two. What is overridden is
not public: where it is not as expected, Textual's own way is taken.
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
    """Textual's, without Alt."""

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[events.Key]:
        keys = [*super()._sequence_to_key_events(sequence)]
        # What begins a longer sequence means nothing yet.
        if keys and len(sequence) == 2 and sequence[0] == ESC:
            alt, keys = True, [*super()._sequence_to_key_events(sequence[1])]
        if alt:
            yield events.Key("escape", ESC)
        yield from keys


def install() -> bool:
    """Have the driver read keys so; False where this release of Textual is made otherwise."""
    own = getattr(XTermParser, "_sequence_to_key_events", None)
    if (
        own is None
        or list(inspect.signature(own).parameters) != _PARAMETERS
        or not hasattr(linux_driver, "XTermParser")
    ):
        return False
    linux_driver.__dict__["XTermParser"] = Parser
    return True
