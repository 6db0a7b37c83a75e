"""The table that is printed, and the documentation page with it."""

from __future__ import annotations

from collections.abc import Sequence

from tools.matrix.environment import Result

HEAD = ("what", "versions", "Python", "tests", "verdicts", "entries of torch's recorder", "date")
_TEXT = """\
# Works with

Each row is a virtual environment of its own, in which the tests named below ran. `python -m
tools.matrix` makes them one after the other, prints this table, and removes them; with `--write
docs/reference/works-with.md` it writes this page.

{table}

- A row of torch runs the tests of the agent and of `ddtop doctor`, then real jobs on gloo: seven
  faults of seven kinds and a healthy one. A verdict counts if it is right and nothing wrong was
  reported before it. Wheels of torch with CUDA ran on a machine without a GPU.
- Before torch 2.11 the flight recorder is off unless `TORCH_NCCL_TRACE_BUFFER_SIZE` is set; the
  jobs of these rows set it to 2000. Torch 2.4 and 2.6 record nothing of gloo. Where operations are
  not known, a mismatch is reported as `collective-stuck`, which says so.
- A row of Textual runs the tests of the dashboard and of the commands. Pictures of the screen are
  left out: they are compared on the version in `constraints.txt` only.
- A row of pyzmq runs the tests of the link and of the relay, a row of msgspec those of the
  records, the model and the recordings.
- Everything else has the version in `constraints.txt`.

It takes 5 to 7 minutes and up to 8 GB of disk for each release of torch, two minutes for each other
row. An interrupted run continues where it was. `--only torch-2.6` runs one row, `--keep`
leaves its environment, `--again` repeats rows that have a result.

pip follows its own configuration: if that limits the version of torch, `torch-newest` is limited
too.
"""


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """A row a result, as text."""
    return [
        (
            one.name,
            ", ".join(f"{name} {version}" for name, version in one.versions.items()),
            one.python,
            one.trouble.splitlines()[0][:60] if one.trouble else _tests(one),
            _verdicts(one),
            one.recorder.partition(": ")[2].removeprefix("the flight recorder's entries are "),
            one.date,
        )
        for one in results
    ]


def _tests(result: Result) -> str:
    failed = result.tests.get("failed", 0) + result.tests.get("error", 0)
    text = f"{result.tests.get('passed', 0)} passed"
    return f"{text}, {failed} failed" if failed else text


def _verdicts(result: Result) -> str:
    if not result.verdicts:
        return "-"
    wrong = [one["case"] for one in result.verdicts if not one["right"]]
    text = f"{len(result.verdicts) - len(wrong)} of {len(result.verdicts)}"
    return f"{text}, not {', '.join(wrong)}" if wrong else text


def shown(results: Sequence[Result]) -> str:
    """For a terminal; failures are listed below their row."""
    lines = [HEAD, *rows(results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    text = []
    for line, result in zip(lines, [None, *results], strict=True):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        text.append("  ".join(cells).rstrip())
        if result is not None:
            text += [f"    {failure}" for failure in result.failures]
            text += [f"    {part}" for part in result.trouble.splitlines()[1:]]
            text += [
                f"    {part}"
                for one in result.verdicts
                if not one["right"]
                for part in str(one["text"]).splitlines()
            ]
    return "\n".join(text)


def page(results: Sequence[Result]) -> str:
    """The documentation page."""
    lines = [HEAD, tuple("---" for _ in HEAD), *rows(results)]
    return _TEXT.format(table="\n".join(f"| {' | '.join(line)} |" for line in lines))
