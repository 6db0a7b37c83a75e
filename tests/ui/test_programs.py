"""The programs of a system on the dashboard of one of them."""

from ddtop.diagnosis.finding import OK
from ddtop.present.jobs import Health, Listed, health_of, with_roles
from ddtop.ui.session import Programs
from tests.entries import entry
from tests.ui import builders
from tests.ui.builders import JOB, live
from tests.ui.screens import screen_text, watching


def system(*others):
    """The shown job beside others, each a name and its health."""

    def rows(*shown):
        jobs = [(JOB, health_of(*shown)), *others] if others else []
        return with_roles(
            [(Listed(entry(job, script=job), True, 4, ("vm",)), health) for job, health in jobs]
        )

    return Programs(rows)


HUNG = health_of(*reversed(builders.hang()))
CALM = Health(OK, sentence="ok: 4/4 moving")


async def test_a_job_that_stands_alone_has_no_line_of_programs_and_says_so():
    async with watching(live(builders.healthy()), programs=system()) as (app, pilot):
        assert not any("ROLE" in line for line in screen_text(app))

        await pilot.press("P")

        assert "this job stands alone" in "".join(screen_text(app))


async def test_each_program_of_the_system_has_a_line_with_its_health_the_worst_first():
    programs = system(("rollout", HUNG), ("reward", CALM))
    async with watching(live(builders.healthy()), (120, 30), programs) as (app, _):
        lines = screen_text(app)

        at = next(at for at, line in enumerate(lines) if line.strip().startswith("ROLE"))
        assert lines[at + 1].split()[:2] == ["rollout", "rollout"]
        assert "loader-stuck" in lines[at + 1]
        assert lines[at + 2].startswith(f"› {JOB}")
        assert lines[at + 3].split()[0] == "reward"


async def test_the_page_why_lists_the_findings_of_all_programs():
    programs = system(("rollout", HUNG))
    async with watching(live(*builders.straggling()), (120, 40), programs) as (app, pilot):
        await pilot.press("e")

        lines = screen_text(app)
        assert any("› 1" in line and "rank 3" in line for line in lines)
        assert any("rollout rank 5 has been in the DataLoader" in line for line in lines)


async def test_p_goes_to_the_next_program_and_a_click_to_the_one_under_the_pointer():
    programs = system(("rollout", HUNG), ("reward", CALM))
    async with watching(live(builders.healthy()), (120, 30), programs) as (_, pilot):
        await pilot.press("P")
    assert programs.chosen.job == "reward"

    programs = system(("rollout", HUNG), ("reward", CALM))
    async with watching(live(builders.healthy()), (120, 30), programs) as (_, pilot):
        await pilot.click("#system", offset=(4, 1))
    assert programs.chosen.job == "rollout"


async def test_the_palette_goes_to_a_program_by_its_role():
    programs = system(("rollout", HUNG))
    async with watching(live(builders.healthy()), (120, 30), programs) as (_, pilot):
        await pilot.press("ctrl+p", *"program roll", "enter")

    assert programs.chosen.job == "rollout"
