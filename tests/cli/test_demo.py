"""`ddtop demo` before any process starts: names, refusals, and the command of each process."""

import re
from collections import Counter
from pathlib import Path

import pytest

from ddtop.cli import demo_job
from ddtop.cli.errors import CommandError
from ddtop.demo import catalogue
from ddtop.demo.catalogue import DEMOS, MPI_DEMOS, DemoPlace
from ddtop.diagnosis.explain import PAGES
from tests.cli.commands import ddtop

PLACE = DemoPlace(4000, 4001, "/tmp/store")


NO_DEMO = {str(page.kind) for page in PAGES.values() if page.no_demo}


def demo(*words):
    return ddtop("demo", *words)


def variables(fault, name, ranks=4):
    return [start.variables[name] for start in DEMOS[fault].plain(ranks, PLACE) if start.watched]


def test_every_kind_has_a_demo_or_a_reason_why_not():
    """Each new rule needs a demo."""
    assert set(DEMOS) - {"healthy"} | NO_DEMO == set(PAGES)
    assert set(DEMOS) & NO_DEMO == set()


def test_an_unknown_fault_lists_the_names(home):
    done = demo("--fault", "rank-mising")

    assert (done.returncode, done.stdout) == (2, "")
    assert "no demo for 'rank-mising'; did you mean rank-missing?" in done.stderr
    assert set(DEMOS) <= set(done.stderr.replace(",", " ").split())


@pytest.mark.parametrize("kind", sorted(NO_DEMO))
def test_a_kind_that_one_host_cannot_show_is_refused_with_the_reason(home, kind):
    done = demo("--fault", kind)

    assert (done.returncode, done.stdout) == (2, "")
    assert f"ddtop: {kind} cannot be shown" in done.stderr
    assert PAGES[kind].no_demo in done.stderr
    assert f"ddtop explain {kind}" in done.stderr
    assert list(home.runtime.iterdir()) == []


def test_too_few_ranks_are_refused_with_the_option_that_is_needed(home):
    """The demo of a duplicate rank needs a third rank that keeps the store."""
    done = demo("--fault", "duplicate-rank", "--ranks", "2")

    assert (done.returncode, done.stderr) == (2, "ddtop: duplicate-rank takes 3 ranks: --ranks 3\n")


def test_help_names_every_fault():
    done = demo("--help")

    assert done.returncode == 0
    assert set(DEMOS) <= set(re.split(r"[\s,.;:]+", done.stdout))


@pytest.mark.parametrize("fault", DEMOS)
def test_a_fault_is_made_by_scripts_that_are_there(fault):
    one = DEMOS[fault]
    starts = (
        [*one.plain(4, PLACE), *(one.earlier(4, PLACE) if one.earlier else [])] if one.plain else []
    )
    scripts = {start.script for start in starts} | ({one.script} if one.script else set())

    assert scripts
    assert all((Path(catalogue.__file__).parent / script).is_file() for script in scripts)
    assert bool(one.script) != bool(one.plain)


@pytest.mark.parametrize("ranks", [2, 3, 4, 16])
def test_the_environments_differ_in_the_fault_alone(ranks):
    assert variables("rank-missing", "RANK", ranks) == [str(rank) for rank in range(ranks - 1)]
    assert set(variables("rank-missing", "WORLD_SIZE", ranks)) == {str(ranks)}
    ports = Counter(variables("rendezvous-mismatch", "MASTER_PORT", ranks))
    assert ports == {"4000": ranks - 1, "4001": 1}
    assert len(variables("master-unreachable", "RANK", ranks)) == ranks
    if ranks >= DEMOS["duplicate-rank"].ranks_min:
        numbers = Counter(variables("duplicate-rank", "RANK", ranks))
        assert (numbers[str(ranks - 2)], numbers["0"], sum(numbers.values())) == (2, 1, ranks)


def test_a_page_says_how_to_see_its_kind_if_a_demo_can_make_it(home):
    def last_line(kind):
        return ddtop("explain", kind).stdout.splitlines()[-1]

    assert last_line("left-early") == "see it: ddtop demo --fault left-early"
    assert "ddtop demo" not in last_line("io-stall")


def test_the_simulation_knows_every_fault_on_mpi():
    text = (Path(catalogue.__file__).parent / "simulate.py").read_text()

    assert set(MPI_DEMOS) <= set(PAGES) | {"healthy"}
    assert all(f'"{fault}"' in text for fault in MPI_DEMOS)
    assert all(one.mpi and one.script == "simulate.py" for one in MPI_DEMOS.values())


def test_an_unknown_fault_on_mpi_lists_the_names(home):
    done = demo("--mpi", "--fault", "loader-stuck")

    assert (done.returncode, done.stdout) == (2, "")
    assert "no demo for 'loader-stuck' on MPI" in done.stderr


def test_without_mpi_the_demo_says_what_to_install(home, monkeypatch):
    monkeypatch.setattr(demo_job.importlib.util, "find_spec", lambda _name: None)

    with pytest.raises(CommandError, match=r"pip install 'ddtop\[mpi\]'"):
        demo_job._mpi_demo_of("healthy", 2)
