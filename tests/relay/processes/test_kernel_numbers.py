"""The numbers of system calls are those of the kernel's headers (asm-generic: aarch64)."""

import re
from pathlib import Path

import pytest

from ddtop.agent import start_relay
from ddtop.relay.processes import sockets

HEADERS = {
    "x86_64": (
        Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        Path("/usr/include/asm/unistd_64.h"),
    ),
    "aarch64": (Path("/usr/include/asm-generic/unistd.h"),),
}


def kernel_table(machine):
    """{name of a system call: its number}. Numbers that depend on the word size are resolved."""
    header = next((path for path in HEADERS[machine] if path.exists()), None)
    if header is None:
        pytest.skip(f"no kernel headers for {machine} here: apt-get install linux-libc-dev")
    said = dict(re.findall(r"#\s*define\s+(__NR\w*)\s+(\w+)", header.read_text()))

    def number(name):
        value = said[name]
        return int(value) if value.isdigit() else number(value)

    return {
        name.removeprefix("__NR_"): number(name)
        for name in said
        if name.startswith("__NR_") and (said[name].isdigit() or said[name] in said)
    }


@pytest.mark.parametrize(("column", "machine"), list(enumerate(HEADERS)))
def test_the_calls_that_a_process_waits_in_have_the_kernels_numbers(column, machine):
    table = kernel_table(machine)
    ours = {
        name: numbers[column]
        for name, numbers in sockets._NUMBERS.items()
        if numbers[column] is not None
    }

    assert len(ours) > 60
    assert {name: number for name, number in ours.items() if table.get(name) != number} == {}


@pytest.mark.parametrize("machine", HEADERS)
def test_the_calls_that_start_a_relay_have_the_kernels_numbers(machine):
    table = kernel_table(machine)

    assert start_relay._SYS_CLONE[machine] == table["clone"]
    assert table.get("close_range", 436) == start_relay._SYS_CLOSE_RANGE
