"""All cases, read from the programs themselves: each file in `programs` has a dict `CASES`.

The dict is read as text and is not run, because the programs import torch.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from zoo.case import Case, CaseError, read_case

PROGRAMS = Path(__file__).parent / "programs"


def cases_of(program: Path) -> list[Case]:
    """The cases in one file, in its order.

    Raises:
        CaseError: the file has no literal dict `CASES`, or a case in it cannot be understood.
    """
    for node in ast.parse(program.read_text()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(one) for one in node.targets] == ["CASES"]:
            try:
                table = ast.literal_eval(node.value)
            except ValueError:
                raise CaseError(f"{program.name}: CASES is not a literal dict") from None
            return [read_case(name, program, values) for name, values in table.items()]
    raise CaseError(f"{program.name}: no CASES")


@cache
def all_cases(folder: Path = PROGRAMS) -> dict[str, Case]:
    """Every case by its name, in the order of the files' names.

    Raises:
        CaseError: two cases have one name, or a file cannot be understood.
    """
    found: dict[str, Case] = {}
    for program in sorted(folder.glob("**/*.py")):
        for case in cases_of(program):
            if case.name in found:
                first = found[case.name].program.name
                raise CaseError(f"{program.name}: {first} has a case named {case.name} too")
            found[case.name] = case
    return found
