"""Which function writes the text of a finding, by the type of its record: the tables of all
topics."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from ddtop.say import topics
from ddtop.say.said import Around, Writer

_TOPICS = [import_module(f"{topics.__name__}.{one.name}") for one in iter_modules(topics.__path__)]
WRITERS: dict[type, Writer] = {
    record: writer for topic in _TOPICS for record, writer in getattr(topic, "WRITERS", {}).items()
}
AROUND: dict[type, Around] = {
    record: writer for topic in _TOPICS for record, writer in getattr(topic, "AROUND", {}).items()
}
"""The writers of findings that are made of another one: they also get the words of that one."""
