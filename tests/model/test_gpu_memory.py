"""What the model keeps of one GPU: running means, and spans that all GPUs share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.model.facts import GpuProgress
from ddtop.model.gpu_memory import SPANS, Load, progress_of
from ddtop.policy import POLICY
from ddtop.wire.records import CudaState, Gpu, GroupProgress, RankState
from tests.jobs import SECOND

START = 1_700_000_000 * SECOND


def reported(steps=None, calls=0, refused=0):
    """The last report of the only rank on a GPU. It shows how far the rank is."""
    groups, cuda = (GroupProgress("0", calls, calls),), CudaState(0, retries=refused)
    return (RankState("running", iteration=steps, groups=groups, cuda=cuda),)


def loaded(*values, start=START, load=None):
    """A GPU with these (util, watts) reports, a second apart."""
    load = load or Load()
    for second, (util, watts) in enumerate(values):
        gpu = Gpu(0, "GPU-0", util, power_watts=watts, sm_mhz=1500)
        load.add(start + second * SECOND, gpu, reported(second, 10 * second), POLICY)
    return load


def test_a_mean_follows_the_gpu_within_ten_seconds():
    load = loaded(*[(1.0, 600.0)] * 30)
    assert (load.util_ratio, load.power_watts) == (1.0, pytest.approx(600.0))
    assert load.peak_watts == pytest.approx(600.0)

    loaded(*[(0.5, 200.0)] * 25, start=START + 30 * SECOND, load=load)
    assert load.util_ratio == pytest.approx(0.5, abs=0.05)
    assert load.power_watts == pytest.approx(200.0, abs=35.0)
    assert load.peak_watts == pytest.approx(600.0)


def test_spans_are_equal_for_all_gpus_and_say_how_far_the_rank_was():
    load = loaded(*[(0.9, 100.0 * (second // 10 + 1)) for second in range(61)])

    assert [span.power_watts for span in load.spans] == pytest.approx([300.0, 400.0, 500.0, 600.0])
    assert [span.number for span in load.spans] == [
        START // SECOND // 10 + at for at in range(2, 6)
    ]
    assert [span.done.calls for span in load.spans] == [300, 400, 500, 600]
    assert len(load.spans) == SPANS


def test_a_gap_starts_the_spans_anew_and_too_few_reports_are_no_span():
    load = loaded(*[(0.9, 100.0)] * 31)
    loaded(*[(0.9, 100.0)] * 12, start=START + 60 * SECOND, load=load)
    assert [span.number - START // SECOND // 10 for span in load.spans] == [6]

    sparse = Load()
    for second in range(0, 60, 3):
        sparse.add(START + second * SECOND, Gpu(0, "GPU-0", 1.0, power_watts=1.0), (), POLICY)
    assert sparse.spans == ()


def test_a_gpu_that_does_not_report_power_has_spans_without_it():
    load = loaded(*[(0.9, None)] * 31)

    assert (load.util_ratio, load.power_watts, load.peak_watts) == (pytest.approx(0.9), None, None)
    assert {span.power_watts for span in load.spans} == {None}


def test_allocations_that_did_not_fit_long_ago_are_forgotten():
    load = Load()
    for second in range(70):
        load.add(
            START + second * SECOND,
            Gpu(0, "GPU-0", 1.0),
            reported(refused=5 + min(second, 8)),
            POLICY,
        )
        if second == 9:
            assert load.refused_lately == 8
    assert load.refused_lately == 0


@given(
    st.lists(
        st.tuples(
            st.integers(-40, 40), st.none() | st.floats(0, 1), st.none() | st.floats(0, 1000)
        ),
        max_size=80,
    )
)
def test_reports_in_any_order_and_with_any_gaps_give_means_within_the_reported_values(reports):
    load, at = Load(), START
    for step, util, watts in reports:
        at += step * SECOND
        load.add(at, Gpu(0, "GPU-0", util, power_watts=watts), (), POLICY)
        assert load.util_ratio is None or -1e-9 <= load.util_ratio <= 1 + 1e-9
        assert load.peak_watts is None or -1e-9 <= load.peak_watts <= 1000 + 1e-9
        numbers = [span.number for span in load.spans]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True


def test_progress_of_a_gpu_counts_all_its_ranks_but_steps_of_only_one():
    one, two = reported(7, 100, 2), reported(8, 50, 1)

    assert progress_of(one) == GpuProgress(7, 100, 2)
    assert progress_of(one + two) == progress_of((*one, None, *two)) == GpuProgress(None, 150, 3)
    assert progress_of((None,)) == progress_of(()) == GpuProgress()
