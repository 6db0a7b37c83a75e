"""The traceback of an exception that nothing caught."""

import msgspec

from ddtop.agent.probes.exceptions import _encode_to_fit
from ddtop.present.stacks import traceback_lines, tracebacks_text
from ddtop.present.text import plain
from ddtop.wire.page import EXCEPTION_BYTES_MAX
from ddtop.wire.records import LastException, StackFrame
from tests.ui import builders
from tests.ui.changed import replace

ERROR = LastException(
    "ValueError",
    "shapes differ",
    1,
    frames=(StackFrame("load", "/home/ada/data.py", 40, True), StackFrame("main", "/m.py", 3)),
    omitted=7,
)


def test_the_outermost_frame_stands_first_as_python_prints_it():
    assert [plain(line) for line in traceback_lines(ERROR)] == [
        "7 frames in the middle are left out",
        "/m.py:3 main",
        "/home/ada/data.py:40 load",
    ]


def test_ranks_that_raised_alike_share_one_traceback():
    raised = [replace(one, reported={"exception": ERROR}) for one in builders.healthy(3).ranks]
    text = tracebacks_text([*raised[:2], builders.healthy(3).ranks[2]])
    assert text.startswith("ranks 0,1:")
    assert text.endswith("ValueError: shapes differ")
    assert tracebacks_text(builders.healthy(3).ranks) == ""


def test_control_characters_of_a_path_do_not_reach_the_terminal():
    bent = msgspec.structs.replace(ERROR, frames=(StackFrame("f", "/a\x1b[2J.py", 1),))
    assert all("\x1b" not in text for line in traceback_lines(bent) for text, _ in line)


def test_a_traceback_that_has_no_room_on_the_page_keeps_its_innermost_frames():
    long = tuple(StackFrame("f", "/" + "x" * 500, line) for line in range(24))
    made = _encode_to_fit(msgspec.structs.replace(ERROR, frames=long, omitted=0))
    assert len(made) <= EXCEPTION_BYTES_MAX
    kept = msgspec.msgpack.decode(made, type=LastException)
    assert kept.frames[0].line == 0
    assert kept.omitted == 24 - len(kept.frames)
