"""The exception that a blamed rank handles stands in its sentence and in its evidence."""

from __future__ import annotations

import pytest

from tests.diagnosis.handling import ERROR, after, failed, hang, of_a_thread


@pytest.mark.parametrize(
    "numbers",
    [(), (0, 2), (0, 1, 2, 3)],
    ids=["nobody", "ranks that wait", "all: the whole program runs in a handler"],
)
def test_what_others_handle_is_not_the_reason(numbers):
    finding = hang(*numbers).finds("critical", "not-in-collective", 1)

    assert "handling" not in "".join((finding.summary, *finding.evidence))


# -- a save that has failed, and a signal


@pytest.mark.parametrize("ago_s", [0.2, -3.0], ids=["just before", "while the others wait"])
def test_the_save_that_has_failed_is_named_with_its_path(ago_s):
    finding = after("failed_save", failed(ago_s), 1).finds("critical", "not-in-collective", 1)

    assert finding.summary.endswith(f"; rank 1's torch.save to /ckpt/7.pt has failed: {ERROR}")


@pytest.mark.parametrize(("ago_s", "numbers"), [(9.0, (1,)), (0.2, (0, 1))], ids=["old", "all"])
def test_a_save_that_failed_long_before_or_on_others_too_is_not_the_reason(ago_s, numbers):
    finding = after("failed_save", failed(ago_s), *numbers).finds(
        "critical", "not-in-collective", 1
    )

    assert "torch.save" not in "".join((finding.summary, *finding.evidence))


# -- a thread that has ended by an exception


@pytest.mark.parametrize(("ago_s", "before"), [(0.3, ""), (-3.0, ""), (16.0, ", 16 s before")])
def test_the_exception_of_a_thread_is_in_the_sentence_with_its_age(ago_s, before):
    """A queue feeds the rank for some time after the thread that fills it has ended."""
    finding = after("exception", of_a_thread(ago_s), 1).finds("critical", "not-in-collective", 1)

    assert finding.summary.endswith(
        f"; rank 1's thread Thread-1 (fill) raised KeyError: 'shard 17' (fill, data.py:31){before}"
    )
