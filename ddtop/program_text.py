"""What the text of a program says around the line at which a thread stands: the condition of a loop
that polls, and the locks that it holds or waits for.

Text only: no code of the program runs, and no object of it is read. Lines count from 1. A line that
is continued is not understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

LINES_BACK = 400
"""The head of a block is looked for up to this many lines above the line."""
CONDITION_MAX = 160
_PAUSES = re.compile(r"\b(?:sleep|wait|poll)\(|^pass$|^continue$")
_SLEEPS = re.compile(r"(?:await )?(?:time\.|asyncio\.|trio\.)?sleep\(|pass$|continue$|#")
_TAKES = re.compile(r"([\w.\[\]'\"]+)\.acquire\(")
_FORMATTED = re.compile(r"""\b[fF](["'])(?:\\.|(?!\1).)*\1""")
_STRING = re.compile(r"""(["'])(?:\\.|(?!\1).)*\1""")
_BRACES = re.compile(r"\{([^{}:!]+)")
_NAME = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(\.[A-Za-z_]\w*)?\b([.(\[])?")
_WORDS = frozenset({"and", "or", "not", "in", "is", "if", "else", "for", "None", "True", "False"})
_ALWAYS = ("True", "1")
_DEF = "def "
_FUNCTIONS, _LOOPS = (_DEF, "class ", "async def "), ("while ", "for ", "async for ")
_STORE = re.compile(
    r"\w*store\w*(?:\(\))?\.(get|wait|check|add|compare_set)"
    r"""\(\[?(f?"[^"]*"|f?'[^']*'|[^\],)]+)""",
    re.IGNORECASE,
)
_AWAIT_KEY, _COUNTS = ("get", "wait", "check"), ", 0)"
_COMMA = re.compile(r",(?![^()]*\))")
_LEAVES = re.compile(r"(break|return|raise)\b")
_CLOCK = re.compile(
    r"\b(?:monotonic|time|perf_counter)(?:_ns)?\(\)"
    r"|\b(?:elapsed|waited|deadline|timeout|remaining)\b"
)
"""What a condition has that becomes false with time."""


def condition_of(lines: Sequence[str], line: int) -> str | None:
    """`len(seen) < need`: while that holds, the innermost loop around the line goes on; `True` of
    one that only sleeps. None if it stands in no loop that pauses there."""
    here = _text(lines, line)
    if here.startswith("while "):
        found = _head(here, "while ")
        return found if found not in _ALWAYS else _endless(lines, line)
    number = _loop(lines, line)
    if not number or not (_PAUSES.search(here) or here.startswith("if ")):
        return None
    found = _head(_text(lines, number), "while ")
    if found is not None and found not in _ALWAYS:
        return found
    return _until(lines, number) or (_endless(lines, number) if found else None)


class Key(NamedTuple):
    """The text of a store's key in a line. `taken`: the line takes the key as a lock."""

    named: str
    taken: bool


def key_at(lines: Sequence[str], line: int) -> Key | None:
    """The key of a store for which the line waits, or the condition of its loop asks. A call that
    adds 0 asks how many have come, of which the condition says more."""
    text = _text(lines, line)
    found = _STORE.search(text)
    if found is None or found[1].lower() not in _AWAIT_KEY:
        text = condition_of(lines, line) or ""
        found = _STORE.search(text)
    if found is None or text.startswith(_COUNTS, found.end()):
        return None
    return Key(found[2], found[1].lower() not in _AWAIT_KEY)


def is_timed(lines: Sequence[str], line: int) -> bool:
    """Whether the innermost loop around the line ends with time, by its condition or by an `if`
    inside."""
    number = line if _text(lines, line).startswith("while ") else _loop(lines, line)
    head = _text(lines, number)
    asked = [head] if head.startswith("while ") and " or " not in head else []
    asked += [condition for condition, _ in _leaves(lines, number)] if number else []
    return any(map(_CLOCK.search, asked))


def is_in_loop(lines: Sequence[str], line: int) -> bool:
    """Whether the line stands in a loop of its function."""
    return _loop(lines, line) > 0


def loops_at(lines: Sequence[str], line: int) -> set[int]:
    """The heads of the loops of its function around the line."""
    inside = takewhile(lambda head: not head[1].startswith(_FUNCTIONS), _heads(lines, line))
    return {number for number, text in inside if text.startswith(_LOOPS)}


def names_in(condition: str) -> tuple[str, ...]:
    """The variables in a condition, `need`, and attributes of variables, `self.need`, without what
    it calls; those in the braces of an f-string too."""
    code = _FORMATTED.sub(lambda found: " ".join(_BRACES.findall(found[0])), condition)
    words = _NAME.finditer(_STRING.sub(" ", code))
    names = [
        found[1] + (found[2] or "") * (found[3] is None)
        for found in words
        if (found[2] or found[3] != "(") and found[1] not in _WORDS
    ]
    return tuple(dict.fromkeys(names))


def taken_at(lines: Sequence[str], line: int) -> str | None:
    """`self.lock`: what the line takes, by `with`, `async with` or `acquire`."""
    here = _text(lines, line).removeprefix("async ")
    if (head := _head(here, "with ")) is not None:
        return head.partition(" as ")[0].strip()
    found = _TAKES.search(here)
    return found[1] if found is not None else None


def held_at(lines: Sequence[str], line: int) -> Iterator[str]:
    """What the blocks around the line hold, the innermost first."""
    for _, text in _heads(lines, line):
        if (head := _head(text.removeprefix("async "), "with ")) is not None:
            yield from (one.partition(" as ")[0].strip() for one in _COMMA.split(head))


def function_at(lines: Sequence[str], line: int) -> str | None:
    """The name of the innermost function around the line; None outside of functions."""
    heads = (text.removeprefix("async ") for _, text in _heads(lines, line))
    head = next((text for text in heads if text.startswith(_DEF)), None)
    return head and head.removeprefix(_DEF).partition("(")[0].strip()


def statement(lines: Sequence[str], line: int) -> str:
    """The text of the line."""
    return _text(lines, line)[:CONDITION_MAX]


def _text(lines: Sequence[str], line: int) -> str:
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _heads(lines: Sequence[str], line: int) -> Iterator[tuple[int, str]]:
    """The heads of the blocks around the line, the innermost first."""
    if not 0 < line <= len(lines):
        return
    deep = _indent(lines[line - 1])
    for number in range(line - 1, max(line - LINES_BACK, 0), -1):
        text = lines[number - 1]
        if text.strip() and not text.lstrip().startswith("#") and _indent(text) < deep:
            deep = _indent(text)
            yield number, text.strip()


def _loop(lines: Sequence[str], line: int) -> int:
    """The head of the innermost loop of the function around the line; 0 if there is none."""
    starts = (*_FUNCTIONS, *_LOOPS)
    number, text = next((one for one in _heads(lines, line) if one[1].startswith(starts)), (0, ""))
    return number if text.startswith(_LOOPS) else 0


def _head(text: str, word: str) -> str | None:
    """What stands between the word and the colon at the end of the line."""
    code = text.partition("  #")[0].rstrip()
    if not code.startswith(word):
        return None
    inside = code.removeprefix(word)
    if code.endswith(":"):
        return inside[:-1].strip()[:CONDITION_MAX]
    # `while not ready(): sleep(1)`
    head, colon, _ = inside.rpartition(": ")
    return head.strip()[:CONDITION_MAX] if colon else None


def _until(lines: Sequence[str], head: int) -> str | None:
    """`not (ready)`, of a loop that ends by `if ready: break`."""
    found = next((condition for condition, how in _leaves(lines, head) if how != "raise"), "")
    return f"not ({found})" if found else None


def _endless(lines: Sequence[str], head: int) -> str | None:
    """`True`, if this loop has nothing but sleeps; else None."""
    deep, inside = _indent(lines[head - 1]), _text(lines, head).partition(":")[2]
    block = takewhile(lambda text: not text.strip() or _indent(text) > deep, lines[head:])
    every = filter(None, map(str.strip, (inside, *block)))
    return _ALWAYS[0] if all(map(_SLEEPS.match, every)) else None


def _leaves(lines: Sequence[str], head: int) -> Iterator[tuple[str, str]]:
    """The conditions by which the loop is left, each with `break`, `return` or `raise`."""
    deep = _indent(lines[head - 1])
    for number in range(head + 1, min(head + LINES_BACK, len(lines)) + 1):
        text = lines[number - 1]
        if text.strip() and _indent(text) <= deep:
            return
        asked, _, then = text.strip().rpartition(":")
        how = _LEAVES.match(then.strip()) or _LEAVES.match(_text(lines, number + 1))
        if asked.startswith("if ") and how is not None:
            yield asked.removeprefix("if ").strip(), how[1]
