"""TrainingProgress bars of tqdm, for programs that have a loop of their own.

Source: `tqdm._instances`, the set of bars that are shown (tqdm/std.py, 4.67), with `n`, `total`,
`desc`, `pos` and `postfix` of each. Nothing is wrapped. Caveat: the innermost bar that moves
through a known total is taken for the steps, a bar around it for the epochs; a bar that is disabled
(often on all ranks but 0) is not in the set. Check: the bar itself.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

from ddtop.agent.notes import BAR, ProgressSource, SourceValues, let_go, progress_notes
from ddtop.agent.plain import held_by, number, text, whole
from ddtop.wire.records import TEST, VALIDATE

_LOSS = re.compile(r"(?:^|[\s,])(?:train_)?loss[=:]\s*([-+.\deE]+|nan|inf)")
_LR = re.compile(r"(?:^|[\s,])lr[=:]\s*([-+.\deE]+)")
_VALIDATES = re.compile(r"\b(val|valid|validat\w*|eval\w*|dev)\b", re.IGNORECASE)
_TESTS = re.compile(r"\b(test\w*|predict\w*)\b", re.IGNORECASE)
_OURS = re.compile(r"\b(epochs?|steps?|train\w*|iter\w*|batch\w*)\b", re.IGNORECASE)
_OTHERS = re.compile(
    r"\b(load\w*|download\w*|map|filter|tokeniz\w*|process\w*|generating|fetch\w*|cach\w*)\b",
    re.IGNORECASE,
)


def wrap(module: ModuleType) -> None:
    """Register the source; tqdm is not changed."""
    if hasattr(module, "tqdm"):
        progress_notes.add(TqdmSource(module.tqdm))


class TqdmSource(ProgressSource):
    """Reads the bars that are open."""

    name = "tqdm"
    level = BAR

    def __init__(self, bars: Any) -> None:
        self._bars, self._trained = bars, SourceValues()

    def read(self) -> SourceValues | None:
        """The innermost bar with a total; None while there is none."""
        shown = getattr(self._bars, "_instances", None)
        if not shown:
            return None
        try:
            bars = list(shown)
        except RuntimeError:
            # The program opens or closes one right now.
            return None
        reading = _read_bars([held_by(tqdm_bar) for tqdm_bar in bars])
        let_go(bars)
        if reading is not None and reading.phase is not None:
            # The bar of an evaluation counts its own batches.
            before = self._trained
            reading.step, reading.total_steps = before.step, before.total_steps
            reading.epoch, reading.total_epochs = before.epoch, before.total_epochs
        elif reading is not None:
            self._trained = reading
        return reading


def _read_bars(bars: list[dict[str, Any]]) -> SourceValues | None:
    open_bars = [bar for bar in bars if _counts(bar)]
    if not open_bars:
        return None
    # A bar inside another one is below it: its position is more negative.
    open_bars.sort(key=lambda bar: abs(number(bar.get("pos")) or 0))
    inner = open_bars[-1]
    desc = text(inner.get("desc")) or ""
    total = number(inner.get("total"))
    reading = SourceValues(step=_done(inner), total_steps=int(total) if total else None)
    if _VALIDATES.search(desc):
        reading.phase = VALIDATE
    elif _TESTS.search(desc):
        reading.phase = TEST
    if len(open_bars) > 1:
        outer = open_bars[0]
        reading.epoch = (_done(outer) or 0) + (reading.step or 0) / total if total else None
        reading.total_epochs = number(outer.get("total")) or None
    postfix = text(inner.get("postfix")) or ""
    reading.loss, reading.lr = _number(_LOSS, postfix), _number(_LR, postfix)
    return reading


def _counts(bar: dict[str, Any]) -> bool:
    """Whether this bar is one of a training, and not of a download or of a data set."""
    if bar.get("disable", True) is not False or _done(bar) is None:
        return False
    if text(bar.get("unit")) == "B" or whole(bar.get("unit_scale")) == 1024:
        return False
    desc = text(bar.get("desc")) or ""
    return bool(_OURS.search(desc)) or not _OTHERS.search(desc)


def _done(bar: dict[str, Any]) -> int | None:
    done = number(bar.get("n"))
    return None if done is None else int(done)


def _number(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    try:
        return float(match[1]) if match else None
    except ValueError:
        return None
