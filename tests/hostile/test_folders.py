"""Other users' files and folders: refused with a reason, never followed, never waited for."""

import os
import pwd
import shutil
import stat
import threading

import msgspec
import pytest

from ddtop import folders, journal, private, registry
from ddtop.agent.state_page import StatePage
from ddtop.journal import Journal, JournalError
from ddtop.registry import RegistryError
from ddtop.relay.processes import sample
from ddtop.wire import page as layout
from ddtop.wire.records import Hello
from tests.hostile.names import entry

OTHER = 65534
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
FOLDERS = [("DDTOP_STATE", registry.state_dir), ("DDTOP_RUNTIME", registry.runtime_dir)]


@pytest.fixture(params=FOLDERS, ids=["state", "runtime"])
def place(request, monkeypatch, tmp_path):
    """(path, what makes a folder unsafe there)."""
    monkeypatch.setenv(request.param[0], str(tmp_path / "place"))
    return tmp_path / "place", request.param[1]


def planted(path, kind):
    """A thing at that path that is not a file of ddtop."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "symlink to a secret":
        path.symlink_to("/etc/shadow")
    elif kind == "symlink to a file of ours":
        path.with_suffix(".theirs").write_bytes(
            b"0" * 64 if path.name == "key" else msgspec.json.encode(entry("linked"))
        )
        path.with_suffix(".theirs").chmod(0o600)
        path.symlink_to(path.with_suffix(".theirs"))
    elif kind == "dangling symlink":
        path.symlink_to(path.parent / "nothing")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "somebody else's":
        path.write_bytes(b"x" * 100)
        os.chown(path, OTHER, OTHER)


KINDS = ["pipe", "folder", "symlink to a secret", "dangling symlink", "device"]
KINDS_OF_ROOT = [*KINDS, pytest.param("somebody else's", marks=ROOT)]


# -- the folders themselves


def test_a_folder_that_another_user_made_first_is_refused(place, monkeypatch):
    path, made = place
    path.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: OTHER)

    with pytest.raises(
        RegistryError, match=rf"belongs to uid {os.geteuid()}, not to you; set DDTOP_"
    ):
        made()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o703, 0o1700])
def test_a_folder_that_everybody_can_write_to_is_refused_and_left_unchanged(place, mode):
    """DDTOP_STATE=/tmp as root: if root restricted that folder, every program on the host would
    fail.
    """
    path, made = place
    path.mkdir()
    path.chmod(mode)

    with pytest.raises(RegistryError, match=r"is everybody's.*; set DDTOP_"):
        made()
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("mode", [0o775, 0o2770, 0o770, 0o2775, 0o755, 0o750, 0o711])
def test_a_folder_that_others_can_enter_keeps_its_mode_and_gets_a_private_one_inside(place, mode):
    """A team uses its scratch space as DDTOP_STATE. Restricting the folder locked the team out, so
    an existing folder is never changed.
    """
    path, made = place
    path.mkdir()
    path.chmod(mode)
    found = made()

    assert (found, made()) == (path / f"ddtop-{os.getuid()}", found)
    assert stat.S_IMODE(found.stat().st_mode) & 0o777 == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == mode


@ROOT
def test_a_colleagues_folder_inside_a_team_folder_is_refused(place):
    """Another user may create a folder with our name there, and would own its content."""
    path, made = place
    path.mkdir()
    path.chmod(0o2775)
    (path / f"ddtop-{os.getuid()}").mkdir(mode=0o700)
    os.chown(path / f"ddtop-{os.getuid()}", OTHER, OTHER)

    with pytest.raises(RegistryError, match=f"belongs to uid {OTHER}, not to you"):
        made()


# -- the usual runtime folder, in /tmp, which is writable for all users


@pytest.fixture
def usual(home, monkeypatch):
    """The path of the usual runtime folder of a user who has none yet. It is removed again."""
    real, wanted = folders.Path, f"/tmp/ddtop-{41_000_000 + os.getpid()}"
    monkeypatch.delenv("DDTOP_RUNTIME")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    ours = f"/tmp/ddtop-{os.getuid()}"
    monkeypatch.setattr(folders, "Path", lambda name: real(wanted if str(name) == ours else name))
    path = real(wanted)
    yield path
    for one in (path, *MADE):
        if one.is_symlink() or one.is_file():
            one.unlink()
        else:
            shutil.rmtree(one, ignore_errors=True)
    MADE.clear()


MADE = set()


def strangers(path, kind):
    if kind == "a folder of another user":
        path.mkdir()
        os.chown(path, OTHER, OTHER)
    elif kind == "everybody's":
        path.mkdir()
        path.chmod(0o1777)
    elif kind == "a symlink":
        path.symlink_to("/var/tmp")
    else:
        path.write_text("x")


STRANGERS = [
    pytest.param("a folder of another user", marks=ROOT),
    "everybody's",
    "a symlink",
    "a file",
]


@pytest.mark.parametrize("kind", STRANGERS)
def test_if_a_stranger_made_the_usual_runtime_folder_the_one_of_the_session_is_used_and_reported(
    usual, monkeypatch, tmp_path, kind
):
    strangers(usual, kind)
    session = tmp_path / "run"
    session.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    path, why = folders.runtime_place()

    assert path == session / "ddtop"
    assert str(usual) in why
    assert why.endswith(f"; {path} is used instead")


@pytest.mark.parametrize("kind", STRANGERS)
def test_without_a_session_all_ranks_meet_in_a_folder_that_a_stranger_cannot_guess(usual, kind):
    strangers(usual, kind)
    barrier, found = threading.Barrier(6), []

    def rank():
        barrier.wait()
        found.append(folders.runtime_place())

    threads = [threading.Thread(target=rank) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    MADE.update(path for path, _ in found)
    again = folders.runtime_place()

    assert len({path for path, _ in [*found, again]}) == 1
    assert len(found) == 6
    assert again[0].parent == usual.parent
    assert stat.S_IMODE(again[0].stat().st_mode) == 0o700
    assert "is used instead" in again[1]


def test_a_runtime_folder_that_was_removed_from_tmp_is_made_again(usual):
    strangers(usual, "a file")
    first = folders.runtime_dir()
    MADE.add(first)
    first.rmdir()
    second = folders.runtime_dir()
    MADE.add(second)

    assert second != first
    assert folders.runtime_dir() == second


def test_the_usual_runtime_folder_is_used_if_nobody_else_made_it_first(usual):
    """The counterpart: there is no message."""
    assert folders.runtime_place() == (usual, None)
    assert stat.S_IMODE(usual.stat().st_mode) == 0o700


# -- what is above them


def test_the_folders_above_are_made_private_too(place, monkeypatch, tmp_path):
    """In many containers the umask is 0, so ~/.local would be writable for all users."""
    _, made = place
    for name in ("DDTOP_STATE", "DDTOP_RUNTIME"):
        monkeypatch.setenv(name, str(tmp_path / "a" / "b" / "c"))
    before = os.umask(0)
    try:
        made()
    finally:
        os.umask(before)

    assert [stat.S_IMODE((tmp_path / one).stat().st_mode) for one in ("a", "a/b", "a/b/c")] == [
        0o700
    ] * 3


@pytest.mark.parametrize("target", ["/tmp", "nothing", None])
def test_a_symlink_or_a_file_in_place_of_a_folder_is_refused(place, target):
    """Every user can write to /tmp. Another user can create a link there before ddtop does, and
    would get its sockets.
    """
    path, made = place
    path.symlink_to(target) if target else path.write_text("")

    with pytest.raises(RegistryError, match=r"is not a folder; set DDTOP_"):
        made()


@pytest.mark.parametrize("value", ["state", "./state", "../x", "~nosuchuser/state"])
def test_a_folder_without_an_absolute_path_is_refused(monkeypatch, value):
    """The relay's working folder differs from the job's, so the path would be another folder
    there.
    """
    monkeypatch.setenv("DDTOP_STATE", value)

    with pytest.raises(RegistryError, match="set DDTOP_STATE to a folder"):
        registry.state_dir()


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch):
    """In many containers the user has no entry in /etc/passwd."""
    for name in ("DDTOP_STATE", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(_uid):
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", nobody)

    with pytest.raises(RegistryError, match="set DDTOP_STATE to a folder"):
        registry.state_dir()


# -- the key


@pytest.mark.parametrize("kind", [*KINDS_OF_ROOT, "symlink to a file of ours"])
def test_a_key_that_is_not_our_file_is_refused_without_waiting(home, kind):
    planted(registry.state_dir() / "key", kind)

    with pytest.raises(RegistryError, match="the key"):
        registry.secret()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_may_have_read_is_refused(home, mode):
    registry.secret()
    (home.state / "key").chmod(mode)

    with pytest.raises(RegistryError, match=r"must be yours and mode 0600.*remove it"):
        registry.secret()


@pytest.mark.parametrize("given", ["x", "hunter2", "f" * 15])
def test_a_short_key_is_refused_with_the_next_step(home, monkeypatch, given):
    """An attacker who records one handshake can try secrets offline."""
    monkeypatch.setenv("DDTOP_KEY", given)

    with pytest.raises(RegistryError, match="openssl rand -hex 32") as refused:
        registry.secret()
    assert given not in str(refused.value).split("make one")[0].replace("DDTOP_KEY", "")


def test_a_key_may_consist_of_any_bytes(home, monkeypatch):
    """The environment is bytes. A value that is not UTF-8 ended the agent."""
    monkeypatch.setitem(os.environ, "DDTOP_KEY", os.fsdecode(b"\xff\xfe" * 10))

    assert registry.secret() == b"\xff\xfe" * 10


# -- job files


@pytest.mark.parametrize("kind", [*KINDS_OF_ROOT, "symlink to a file of ours"])
def test_a_job_file_that_is_not_our_file_is_ignored(home, kind):
    registry.write_entry(entry())
    planted(home.state / "x.json", kind)

    assert [one.job for one in registry.read_entries()] == ["train"]
    registry.prune_ended(1 << 62)


@ROOT
def test_a_job_file_that_somebody_else_left_is_ignored(home):
    """The file would lead a viewer to another user's relay."""
    registry.write_entry(entry())
    path = registry.entry_path(entry())
    os.chown(path, OTHER, OTHER)

    assert registry.read_entries() == []


def test_a_job_file_of_a_gigabyte_or_of_a_million_brackets_is_ignored(home):
    registry.write_entry(entry())
    with (home.state / "sparse.json").open("wb") as file:
        file.truncate(1 << 30)
    (home.state / "deep.json").write_bytes(b"[" * 1_000_000)
    (home.state / "deeper.json").write_bytes(b'{"schema":' * 6000)

    assert [one.job for one in registry.read_entries()] == ["train"]


@pytest.mark.parametrize(
    "more",
    [
        {"port": 65536},
        {"port": -1},
        {"public_port": 1 << 40},
        {"address": "127.0.0.1;x"},
        {"address": "a b"},
        {"public_address": "\x1b[2J"},
        {"hub": "x\n"},
        {"started_unix_ns": 1 << 70},
        {"heartbeat_unix_ns": -1},
        {"world_size": -4},
        {"reporting": 1 << 80},
        {"schema": "ddtop.job/2"},
    ],
    ids=str,
)
def test_a_job_file_with_contents_that_no_relay_writes_is_ignored(home, more):
    registry.state_dir()
    words = msgspec.json.decode(msgspec.json.encode(entry())) | more
    (home.state / "x.json").write_bytes(__import__("json").dumps(words).encode())

    assert registry.read_entries() == []


# -- journals, rosters, locks


@pytest.mark.parametrize("kind", KINDS_OF_ROOT)
def test_a_journal_is_never_written_into_a_file_that_is_not_ours(home, kind):
    path = registry.journal_path("train", "r1")
    planted(path, kind)
    before = os.lstat(path)
    box = Journal(path, 1 << 20, lambda: ())

    with pytest.raises(OSError, match=r"not a file|symbolic links|directory|belongs to"):
        box.append([b"frame"])
    assert (os.lstat(path).st_ino, os.lstat(path).st_size) == (before.st_ino, before.st_size)


@pytest.mark.parametrize("kind", KINDS_OF_ROOT)
def test_a_roster_that_is_not_our_file_is_not_read(home, kind):
    """Otherwise another user would decide which processes a relay watches."""
    path = registry.roster_path("train", "r1")
    planted(path, kind)

    with pytest.raises(JournalError):
        journal.read(path, ours=True)


@ROOT
def test_a_colleagues_journal_can_be_replayed(tmp_path):
    path = tmp_path / "sent.journal"
    journal.write(path, [b"frame"])
    os.chown(path, OTHER, OTHER)

    assert journal.read(path).frames == (b"frame",)
    with pytest.raises(JournalError, match=f"belongs to uid {OTHER}|cannot read"):
        journal.read(path, ours=True)


@pytest.mark.parametrize("kind", [kind for kind in KINDS_OF_ROOT if kind != "folder"])
def test_files_are_replaced_and_links_are_not_followed(home, kind):
    """Files that are written as a whole are renamed into place, so a link at that path is never
    written through.
    """
    path = registry.roster_path("train", "r1")
    planted(path, kind)
    journal.write(path, [b"frame"])

    assert journal.read(path, ours=True).frames == (b"frame",)


# -- state pages


@pytest.fixture
def page_place(monkeypatch, tmp_path):
    """A separate folder for state pages, because all users can write to /dev/shm."""
    import ddtop.agent.state_page as page_module

    monkeypatch.setattr(
        page_module, "Path", lambda name: tmp_path / name.strip("/").replace("/", "-")
    )
    (tmp_path / "dev-shm").mkdir()
    (tmp_path / "tmp").mkdir()
    return tmp_path / "dev-shm" / f"ddtop-pages-{os.getuid()}"


def test_an_existing_page_is_not_used(page_place):
    """A process that has the page open could truncate it, and the rank would end by SIGBUS."""
    page_place.mkdir(mode=0o700)
    planted_page = page_place / "1-2.page"
    planted_page.write_bytes(b"x" * layout.PAGE_BYTES)
    with planted_page.open("r+b") as theirs:
        page = StatePage(1, 2)
        theirs.truncate(0)
        page.words[layout.ITERATION_AT] = 7

    assert page.words[layout.ITERATION_AT] == 7
    assert stat.S_IMODE(page.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["pipe", "symlink to a secret", "dangling symlink"])
def test_a_pipe_or_link_in_place_of_a_page_is_removed_and_not_followed(page_place, kind):
    page_place.mkdir(mode=0o700)
    planted(page_place / "1-2.page", kind)

    assert stat.S_ISREG(StatePage(1, 2).path.lstat().st_mode)


@ROOT
def test_if_another_user_was_first_in_shared_memory_the_page_goes_elsewhere(page_place):
    page_place.mkdir()
    os.chown(page_place, OTHER, OTHER)
    page = StatePage(1, 2)

    assert page.path.parent.parent.name == "tmp"


@pytest.mark.parametrize("kind", [*KINDS_OF_ROOT, "short"])
def test_a_page_that_is_not_our_file_is_not_read_and_does_not_block(monkeypatch, tmp_path, kind):
    path = tmp_path / "x.page"
    path.write_bytes(b"short") if kind == "short" else planted(path, kind)
    monkeypatch.setattr(sample, "page_path", lambda _: path)

    assert sample.page(Hello("train", "r1", 0, 0, 0, 1, "h", 1, 1)) is None


def test_a_file_may_be_truncated_while_it_is_read(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"x" * 10_000)
    descriptor = private.open_file(path)
    try:
        os.truncate(path, 10)
        assert os.read(descriptor, 10_000) == b"x" * 10
    finally:
        os.close(descriptor)
