"""How large ddtop is: `python -m tools.house`.

Prints the statements of each room of `ddtop/`, its files, and the lines of the tests. A string that
stands alone, a docstring for example, is not a statement here: words cost nothing. Only files that
git tracks count. A room is a folder of `ddtop/`; the files beside the rooms are one room, `files`.
`tests/house.toml` has the most that each may have, and `tests/test_house.py` holds it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def tracked(folder: str) -> list[Path]:
    """The Python files in `folder` that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", f"{folder}/*.py"], cwd=ROOT, stdout=subprocess.PIPE, check=False
    )
    if listed.returncode:
        sys.exit(listed.returncode)  # git has said why
    paths = (ROOT / name for name in listed.stdout.decode().split("\0") if name)
    return [path for path in paths if path.exists()]  # one may be deleted, but not yet for git


def statements(path: Path) -> int:
    return sum(
        isinstance(node, ast.stmt) and not _is_string(node)
        for node in ast.walk(ast.parse(path.read_text()))
    )


def _is_string(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def lines(paths: list[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[1] if len(parts) > 2 else "files"


def rooms() -> Counter[str]:
    """The statements of each room."""
    counts = Counter[str]()
    for path in tracked("ddtop"):
        counts[room_of(path)] += statements(path)
    return counts


def limits() -> dict[str, int]:
    """What each room may have at most."""
    return {room: int(most) for room, most in _table()["statements"].items()}


def most() -> int:
    """What all rooms together may have."""
    return int(_table()["sum"])


def _table() -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib
    return tomllib.loads((ROOT / "tests" / "house.toml").read_text())


def main() -> None:
    files, counts = Counter(map(room_of, tracked("ddtop"))), rooms()
    print(f"{'room':<12}{'statements':>12}{'files':>8}")
    for room, count in counts.most_common():
        print(f"{room:<12}{count:>12,}{files[room]:>8,}")
    print(f"{'all':<12}{counts.total():>12,}{files.total():>8,}")
    counts = {name: f"{lines(tracked(name)):,}" for name in ("tests", "tools", "zoo")}
    print(f"\n{counts['tests']} lines of tests, {counts['tools']} of tools, {counts['zoo']} of zoo")


if __name__ == "__main__":
    main()
