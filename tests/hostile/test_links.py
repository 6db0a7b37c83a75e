"""Links that somebody else has left in a folder where anybody may write: no file behind one is
changed."""

import os
import stat
import sys
import threading

import pytest

from ddtop.cli.actions import guard_of
from tests.cli.commands import ddtop, ddtop_process, finished, write_ended

OTHER = 65534
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
KEPT = "the thesis\n"


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "thesis.txt"
    path.write_text(KEPT)
    path.chmod(0o640)
    return path


@pytest.fixture
def everybodys(tmp_path):
    path = tmp_path / "everybodys"
    path.mkdir()
    path.chmod(0o1777)
    return path


def planted(path, victim):
    """A link of another user."""
    path.symlink_to(victim)
    if os.geteuid() == 0:
        os.lchown(path, OTHER, OTHER)


def untouched(victim):
    return victim.read_text() == KEPT and stat.S_IMODE(victim.stat().st_mode) == 0o640


@ROOT
def test_a_named_report_takes_the_place_of_a_link(home, victim, everybodys):
    write_ended(finished())
    target = everybodys / "ticket.md"
    planted(target, victim)

    ddtop("report", "train-47", "-o", str(target), exits=0)

    assert untouched(victim)
    assert not target.is_symlink()
    assert target.read_text().startswith("# ddtop report")
    assert os.listdir(everybodys) == ["ticket.md"]


@ROOT
def test_a_link_to_nothing_makes_no_file_elsewhere(home, victim, everybodys, tmp_path):
    write_ended(finished())
    planted(everybodys / "ticket.md", tmp_path / "authorized_keys")

    ddtop("report", "train-47", "-o", str(everybodys / "ticket.md"), exits=0)

    assert not (tmp_path / "authorized_keys").exists()


def test_a_report_is_written_through_a_link_of_ones_own(home, everybodys, tmp_path):
    write_ended(finished())
    link = everybodys / "latest.md"
    link.symlink_to(tmp_path / "ticket.md")

    ddtop("report", "train-47", "-o", str(link), exits=0)

    assert link.is_symlink()
    assert (tmp_path / "ticket.md").read_text().startswith("# ddtop report")


def test_a_report_goes_into_a_pipe_that_was_named(home):
    write_ended(finished())

    done = ddtop_process("report", "train-47", "-o", "/dev/stdout")

    assert done.returncode == 0, done.stderr
    assert "# ddtop report" in done.stdout


def test_a_watch_finds_out_whether_it_may_write_without_following(home, victim, everybodys):
    planted(everybodys / f".ddtop-{os.getpid()}", victim)

    assert guard_of(print, folder=str(everybodys)) is not None

    assert untouched(victim)
    assert (everybodys / f".ddtop-{os.getpid()}").is_symlink()


def test_the_text_file_of_the_exporter_follows_nothing(home, victim, everybodys):
    client = pytest.importorskip("prometheus_client")
    from ddtop.cli.exporter import TextFile

    here = (os.getpid(), threading.get_ident())
    names = [f".ddtop.prom.{here[0]}", f"ddtop.prom.{here[0]}.{here[1]}", "ddtop.prom"]
    for name in names:
        planted(everybodys / name, victim)
    registry = client.CollectorRegistry()
    client.Gauge("up", "one", registry=registry)

    file = TextFile(str(everybodys), registry)
    file.write()

    assert untouched(victim)
    assert "up 0.0" in (everybodys / "ddtop.prom").read_text()
    assert stat.S_IMODE((everybodys / "ddtop.prom").stat().st_mode) & 0o444 == 0o444
    assert sorted(os.listdir(everybodys)) == sorted(names)


def test_a_new_config_file_is_not_made_behind_a_link(home, everybodys, tmp_path):
    (everybodys / "ddtop").mkdir()
    planted(everybodys / "ddtop" / "config.toml", tmp_path / "elsewhere")

    ddtop("config", "edit", XDG_CONFIG_HOME=str(everybodys), EDITOR="true", VISUAL="", exits=2)

    assert not (tmp_path / "elsewhere").exists()


@ROOT
def test_the_agent_is_put_into_no_folder_of_another_user(home, everybodys):
    os.chown(everybodys, OTHER, OTHER)

    done = ddtop("setup-env", sys.executable, "--target", str(everybodys), exits=2)

    assert "is another user's: name a new folder" in done.stderr
    assert os.listdir(everybodys) == []
