"""The list of jobs on the screen: it appears at once, updates itself, and returns the selected
job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from textual.pilot import Pilot

from ddtop import registry
from ddtop.present.jobs import Health
from ddtop.ui.picker import JobSearch, PickerApp
from ddtop.ui.session import Kept
from tests.present.entries import NOW, ended, entry


def app(
    jobs: Callable[[], Sequence[registry.JobEntry]],
    ask: Callable[[registry.JobEntry], Health] = lambda _: Health("ok"),
) -> PickerApp:
    return PickerApp(JobSearch(jobs, ask, clock=lambda: NOW))


def lines(running: PickerApp) -> list[str]:
    """The text of the screen, one item per line."""
    width, height = running.size
    rendered = [strip.text for strip in running.screen._compositor.render_strips()]
    assert len(rendered) == height
    assert {len(text) for text in rendered if text.isascii()} <= {width}
    return [text.rstrip() for text in rendered]


async def until(pilot: Pilot[None], true: Callable[[], bool]) -> None:
    """Let the app run until the condition holds; otherwise the test's own timeout ends it."""
    for _ in range(1500):
        if true():
            return
        await pilot.pause(0.02)
    raise AssertionError("it never became so")


async def shows(pilot: Pilot[None], text: str) -> None:
    running = pilot.app
    assert isinstance(running, PickerApp)
    await until(pilot, lambda: any(text in line for line in lines(running)))


async def test_the_jobs_are_shown_with_how_they_are_doing_and_enter_picks_one() -> None:
    first, second = entry("first", 30.0), entry("second", 90.0)
    asked = {"first": Health("ok"), "second": Health("critical", "loader-stuck")}
    asked["third"] = Health("ok", ended="cancelled")
    running = app(lambda: [first, second, ended("third")], lambda job: asked[job.job])

    async with running.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "✖ loader-stuck")
        found = lines(running)
        assert "2 live jobs, 1 ended" in found[0]
        assert [line.split()[0] for line in found[3:6]] == ["second", "first", "third"]
        await shows(pilot, "cancelled")
        await pilot.press("enter")
        await until(pilot, lambda: running.picked is not None)

    assert running.picked == second


async def test_it_is_there_before_anybody_has_answered_and_can_be_left_meanwhile() -> None:
    """A relay that does not answer blocks its thread for seconds. Neither the keys nor the exit
    wait for it.
    """
    answers = threading.Event()

    def never(job: registry.JobEntry) -> Health:
        answers.wait(60.0)
        return Health("unknown")

    running = app(lambda: [entry("first")], never)
    async with running.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "asking ...")
        await pilot.press("q")

    assert running.picked is None
    assert not answers.is_set()
    answers.set()


async def test_a_job_that_comes_later_appears_and_the_cursor_stays_with_its_job() -> None:
    jobs = [entry("first", 60.0), entry("second", 90.0)]
    running = app(lambda: list(jobs))

    async with running.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "second")
        await pilot.press("down")
        jobs.insert(0, entry("newest", 5.0))
        await shows(pilot, "newest")
        await pilot.press("enter")
        await until(pilot, lambda: running.picked is not None)

    assert running.picked is not None
    assert running.picked.job == "second"


async def test_a_folder_that_cannot_be_read_is_reported_and_what_was_known_stays() -> None:
    fails = False

    def read() -> list[registry.JobEntry]:
        if fails:
            raise registry.RegistryError(
                "cannot make the folder /x: no such device; set DDTOP_STATE to another one"
            )
        return [entry("first"), entry("second")]

    running = app(read)
    async with running.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "second")
        fails = True
        await shows(pilot, "set DDTOP_STATE")
        assert any("second" in line for line in lines(running))


async def test_the_filter_leaves_what_has_all_its_words_and_escape_brings_all_back() -> None:
    running = app(lambda: [entry("train-a"), entry("train-q", run="2"), entry("eval", run="3")])

    async with running.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "eval")
        # The q is a letter of the filter here, and the slash too.
        await pilot.press("slash", *"train-q/")
        await shows(pilot, "no job has 'train-q/'")
        await pilot.press("backspace", "enter")
        await shows(pilot, "1 of 3 with train-q")
        await pilot.press("escape")
        await shows(pilot, "eval")
        assert not any(" of 3 with" in line for line in lines(running))


async def test_nothing_at_all_says_how_to_start_a_job() -> None:
    running = app(list)

    async with running.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "DDTOP=1 torchrun")
        await pilot.press("enter", "q")

    assert running.picked is None


async def test_of_200_jobs_those_that_are_seen_are_asked_first() -> None:
    jobs = [entry(f"job-{number}", float(number), run=str(number)) for number in range(200)]
    asked: list[str] = []
    release = threading.Semaphore(0)

    def ask(job: registry.JobEntry) -> Health:
        asked.append(job.job)
        release.acquire(timeout=60.0)
        return Health("ok")

    running = app(lambda: jobs, ask)
    async with running.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "rows 1-19 of 200")
        await until(pilot, lambda: len(asked) == 4)
        await pilot.press("end")
        await shows(pilot, "rows 182-200 of 200")
        release.release(4)
        await until(pilot, lambda: len(asked) == 8)
        release.release(200)

    seen = {f"job-{number}" for number in range(181, 200)}
    assert set(asked[4:8]) <= seen


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (120, 40)])
async def test_wide_names_fit_any_terminal(size: tuple[int, int]) -> None:
    long = "ファインチューニング-日本語-とても長い名前のジョブ"
    running = app(
        lambda: [
            entry(long, host="gpu-ホスト-東京-0001"),
            entry("b" * 64, run="2", world_size=65_536),
        ]
    )

    async with running.run_test(size=size) as pilot:
        await shows(pilot, "ファ")
        strips = running.screen._compositor.render_strips()

    assert {strip.cell_length for strip in strips} == {size[0]}


async def test_a_double_click_picks_and_a_click_on_a_key_presses_it() -> None:
    first, second = entry("first", 30.0), entry("second", 90.0)
    running = app(lambda: [first, second])

    async with running.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "second")
        await pilot.click("#body", offset=(2, 1), times=2)
        await until(pilot, lambda: running.picked is not None)

    assert running.picked == second


async def test_without_colours_the_list_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    running = app(lambda: [entry("first")], lambda _: Health("warning", "straggler"))

    async with running.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "▲ straggler")
        await pilot.press("t")
        await shows(pilot, "▲ straggler")


async def test_the_theme_that_was_chosen_in_the_list_is_that_of_the_dashboard_after_it(
    tmp_path: Path,
) -> None:
    running = PickerApp(
        JobSearch(lambda: [entry("first", 30.0)], lambda _: Health("ok")),
        kept=Kept(tmp_path / "setup.json"),
    )

    async with running.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "first")
        await pilot.press("t")
        await until(pilot, lambda: Kept(tmp_path / "setup.json").setup.theme == "light")


async def test_followed_jobs_are_new_all_the_time_and_nobody_is_asked() -> None:
    jobs = [entry(f"job-{number:03}", float(number)) for number in range(200)]
    asked: list[str] = []
    slow = Health("warning", "straggler", steps_per_s=2.0, still_s=0.0)
    now = {("job-000", jobs[0].run): slow}
    found = JobSearch(lambda: jobs, lambda job: asked.append(job.job) or Health("ok"), lambda: NOW)
    found.follow_jobs = lambda: lambda: now
    running = PickerApp(found)

    async with running.run_test(size=(160, 24)) as pilot:
        await shows(pilot, "2.00")
        now[jobs[0].job, jobs[0].run] = Health("critical", "loader-stuck", "rank 2 is stuck")
        await shows(pilot, "rank 2 is stuck")
        now[jobs[199].job, jobs[199].run] = Health("critical", "wait-cycle")
        await shows(pilot, "wait-cycle")
        assert [line.split()[0] for line in lines(running)[3:5]] == ["job-000", "job-199"]
        began = time.monotonic()
        for _ in range(50):
            await pilot.press("down")
        pressed_s = (time.monotonic() - began) / 50

    assert asked == []
    assert pressed_s < 0.2, "a key waits for 200 jobs"


async def test_a_question_mark_explains_keys_and_columns_and_goes_back() -> None:
    running = app(lambda: [entry("train-1")])

    async with running.run_test(size=(100, 24)) as pilot:
        await shows(pilot, "train-1")
        await pilot.press("question_mark")
        await shows(pilot, "how long no rank has made progress")
        await pilot.press("escape")
        await shows(pilot, "train-1")
        assert not any("how long no rank" in line for line in lines(running))
