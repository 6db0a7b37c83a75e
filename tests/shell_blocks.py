"""Reads the shell blocks of the pages: what would be typed, command by command.

A block is what stands between ```sh and ```. `complaints` says what a shell, or a program that it
names, would not accept: a command that is not there, an unknown option, a file or module of this
repository that does not exist. Programs of others are only known by their names.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import click
from packaging.requirements import InvalidRequirement, Requirement

from ddtop.cli import cli
from ddtop.cli.check.trial import NotUnderstoodError
from ddtop.cli.check.trial import read as read_torchrun

ROOT = Path(__file__).parents[1]
PYPROJECT = (ROOT / "pyproject.toml").read_text()
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SUBSTITUTED = re.compile(r"\$\(([^()]*)\)")
_ENDS = frozenset({"&", "&&", "||", "|", ";", "\n", "&\n", ";\n"})
_ASSIGNED = re.compile(r"\w+=(.*)", re.DOTALL)
OF_OTHERS = frozenset({
    "mail", "openssl", "pgrep", "kill", "wait", "exit", "tail", "chmod", "command", "kubectl",
    "docker", "mpirun", "mpiexec", "uvx", "pipx", "top", "taskset", "mkdocs", "pre-commit",
    "vllm",
    "lint-imports", "ruff",
})  # fmt: skip
"""Programs and words of the shell that are known by their names alone."""
PROGRAMS = frozenset({"train.py", "test.py", "sim.py"})
"""The reader's own programs."""
OWN = ("ddtop", "tests", "tools", "zoo", "docs")
"""Packages of this repository."""


def blocks(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each shell block of this page."""
    text = path.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, found[1]


def complaints(block: str) -> list[str]:
    """What is wrong with this block; empty if it can be typed."""
    parsed = subprocess.run(
        ["bash", "-n"], input=block, capture_output=True, text=True, check=False
    )
    if parsed.returncode:
        return [parsed.stderr]
    return [text for words in commands(block) for text in _of_command(words)]


def commands(block: str) -> list[list[str]]:
    """The words of each command, also of those in `$(...)`, without what it reads and writes."""
    block = re.sub(r"\$\(command -v ([\w-]+)\)", r"\1", block)
    inner = [words for text in _SUBSTITUTED.findall(block) for words in commands(text)]
    lexer = shlex.shlex(
        _SUBSTITUTED.sub("WORD", block).replace("\\\n", " "),
        posix=True,
        punctuation_chars="&|;<>\n",
    )
    lexer.whitespace, lexer.whitespace_split = " \t", True
    # The line break that ends a comment ends the command before it, too.
    lexer.commenters = ""
    found: list[list[str]] = [[]]
    words = iter(_without_comments(list(lexer)))
    for word in words:
        if word.strip("&|;\n") == "":
            found.append([])
        elif set(word) <= set("<>&"):
            next(words)  # the file
        else:
            found[-1].append(word)
    return inner + [one for one in found if one]


def _without_comments(words: list[str]) -> Iterator[str]:
    comment = False
    for word in words:
        comment = (comment or word.startswith("#")) and "\n" not in word
        if not comment:
            yield word


def _of_command(words: list[str]) -> list[str]:
    while words and _ASSIGNED.fullmatch(words[0]):
        words = words[1:]
    if not words:
        return []
    name = words[0].rpartition("/")[2]
    check = _CHECKS.get(name)
    if check is not None:
        return check(words)
    return [] if name in OF_OTHERS else [f"{words[0]}: no command that the tests know"]


def _after(words: list[str], with_value: frozenset[str] = frozenset()) -> list[str]:
    """The command behind a program that runs another one: behind its options and their values."""
    rest = words[1:]
    while rest and rest[0].startswith("-"):
        rest = rest[2 if rest[0] in with_value else 1 :]
    return rest


def _runs(with_value: frozenset[str] = frozenset(), skipped: int = 0) -> Callable[..., list[str]]:
    return lambda words: _of_command(_after(words, with_value)[skipped:])


def _ddtop(words: list[str]) -> list[str]:
    command, rest = cli, words[1:]
    names = [words[0]]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = cli.load(rest[0]) if command is cli and rest[0] in cli.commands else None
        found = found or (command.commands.get(rest[0]) if command is not cli else None)
        if found is None:
            return [f"{' '.join(names)} has no command {rest[0]}"]
        command, names, rest = found, [*names, rest[0]], rest[1:]
    if rest[:1] in (["--help"], ["-h"]):
        return []
    try:
        # A command keeps the help option of its first context.
        settings = command.context_settings | {
            "allow_interspersed_args": command.allow_interspersed_args
        }
        context = click.Context(command, **settings)
        context.ignore_unknown_options = command.ignore_unknown_options
        _, behind, _ = command.make_parser(context).parse_args(list(rest))
    except click.UsageError as error:
        return [f"{' '.join(names)}: {error.message}"]
    if "--" in rest:
        return _of_command(rest[rest.index("--") + 1 :])
    return [f"{' '.join(names)}: {behind}"] if behind and not command.params else []


def _pip(words: list[str]) -> list[str]:
    if words[1:2] != ["install"]:
        return [f"pip {words[1:2]}"]
    found, rest = [], words[2:]
    while rest:
        word, *rest = rest
        if word in ("-c", "-r"):
            file, *rest = rest
            found += [] if (ROOT / file).is_file() else [f"pip: there is no {file}"]
        elif word == "-e":
            extras, *rest = rest
            found += _extras(extras)
        elif word == "--group":
            group, *rest = rest
            known = re.search(rf"^{group} = \[", PYPROJECT, re.MULTILINE)
            found += [] if known else [f"pip: there is no group {group}"]
        elif word not in ("--no-deps", "-q"):
            try:
                Requirement(word)
            except InvalidRequirement:
                found.append(f"pip: {word!r} is no package")
    return found


def _extras(word: str) -> list[str]:
    text = PYPROJECT
    named = re.fullmatch(r"\.\[([\w,]+)\]", word)
    known = re.search(r"\[project\.optional-dependencies\]\n(.*?)\n\[", text, re.DOTALL)
    assert known is not None
    if named is None:
        return [f"pip: {word!r} is not this folder"]
    have = set(re.findall(r"^(\w+) = ", known[1], re.MULTILINE))
    return [f"there is no extra {name}" for name in set(named[1].split(",")) - have]


def _python(words: list[str]) -> list[str]:
    rest = _after(words[:1] + words[1:], frozenset())
    if words[1] == "-c":
        compile(words[2], "page", "exec")
        return []
    if words[1] != "-m":
        return [] if rest[0] in PROGRAMS else [f"python: there is no {rest[0]}"]
    module, options = words[2], words[3:]
    if module in ("pytest", "pip"):
        return _of_command([module, *options])
    if module.partition(".")[0] not in OWN:
        return [] if find_spec(module) else [f"python: no module {module}"]
    folder = ROOT / module.replace(".", "/")
    files = [
        *folder.glob("*.py"),
        *([folder.with_suffix(".py")] * folder.with_suffix(".py").exists()),
    ]
    text = "".join(path.read_text() for path in files)
    unknown = [word for word in options if word.startswith("-") and f'"{word}"' not in text]
    return [f"python -m {module}: {word}" for word in (unknown if files else ["no such module"])]


def _pytest(words: list[str]) -> list[str]:
    paths = [word for word in words[1:] if word.startswith(("tests", "tools", "zoo"))]
    return [f"pytest: there is no {path}" for path in paths if not list(ROOT.glob(path))]


def _torchrun(words: list[str]) -> list[str]:
    try:
        line = read_torchrun(words, {})
    except NotUnderstoodError as error:
        return [str(error)]
    return [] if line.program in PROGRAMS else [f"torchrun: there is no {line.program}"]


def _shell(words: list[str]) -> list[str]:
    if words[1] == "-c":
        return complaints(words[2] + "\n")
    return [] if (ROOT / words[1]).is_file() else [f"there is no {words[1]}"]


_CHECKS: dict[str, Callable[[list[str]], list[str]]] = {
    "ddtop": _ddtop,
    "pip": _pip,
    "python": _python,
    "python3": _python,
    "pytest": _pytest,
    "torchrun": _torchrun,
    "bash": _shell,
    "sh": _shell,
    "sudo": _runs(),
    "timeout": _runs(skipped=1),
    "srun": _runs(frozenset({"-N", "--ntasks-per-node"})),
}
