"""Text that is not UTF-8 is sent escaped; all other text is sent unchanged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.wire import frames
from ddtop.wire.frames import escape
from ddtop.wire.records import LastException, RankState


def travelled(record):
    envelope = frames.open_envelope(frames.seal(record, sender="h", unix_ns=1, mono_ns=1))
    return frames.open_record(envelope)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("caf\udce9", "caf\\udce9"),
        ("\ud800", "\\ud800"),
        ("ノード", "ノード"),
        ("a\\udce9", "a\\udce9"),
        ("", ""),
    ],
)
def test_a_lone_surrogate_is_shown_as_python_shows_it(text, shown):
    """A name of a file in another encoding, in the text of an exception.

    It ended the agent for good.
    """
    state = RankState(
        "running", exception=LastException("OSError", text, 1, None, "main"), probes_off=(text,)
    )
    found = travelled(state)

    assert (found.exception.text, found.probes_off) == (shown, (shown,))


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_whatever_is_utf_8_is_left_alone(value):
    assert escape(value) == value
