"""The user's folders and key: the state folder with a file a job, the runtime folder with the
sockets, the secret of all keys.

The state folder may be on a shared home; it is private (0700) and so is every file in it (0600).
The runtime folder is local and its owner is checked, because a socket in another user's folder
would be another user's relay. An existing folder is never changed: if others use it, a private
folder inside it is used.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ddtop import private

KEY_BYTES_MIN = 16
"""An attacker who records a handshake can try any number of secrets offline: a short one would be
found.
"""


ANSWER_S = 5.0
"""How long a view waits for a folder. A busy file server answers within a second or two.
"""
HANGING_MAX = 4
"""The most calls of a view that may hang at the same time: each holds a thread, and a dashboard
asks again and again.
"""

_T = TypeVar("_T")
_patience_s: float | None = None
_hanging: set[threading.Thread] = set()


class RegistryError(Exception):
    """The state or runtime folder cannot be used; the text names it and the next step."""


def wait_no_longer_than(seconds: float | None) -> None:
    """Set how long this process waits for the state folder from now on; None, the default, means
    for ever. Views set it: otherwise, on a hanging file server, only SIGKILL would end them. Agents
    and relays do not set it, because they must not start threads for it; they use threads that they
    already have.
    """
    global _patience_s
    _patience_s = seconds


def call_patiently(
    call: Callable[[], _T], folder: Callable[[], str] = lambda: "", longer_s: float = 0.0
) -> _T:
    """Return or raise what `call` returns or raises.

    If this process waits for a limited time only, `call` runs on a separate thread (`longer_s` is
    added to the limit). Raises: RegistryError: no result in that time; names `folder`.
    """
    if _patience_s is None or getattr(_inside, "patient", False):
        return call()
    seconds, done = _patience_s + longer_s, threading.Event()
    found: list[_T] = []
    failed: list[BaseException] = []
    _hanging.difference_update([one for one in tuple(_hanging) if not one.is_alive()])
    if len(_hanging) >= HANGING_MAX:
        raise _no_answer_error(folder(), seconds)

    def run() -> None:
        _inside.patient = True
        try:
            found.append(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            failed.append(error)
        done.set()

    thread = threading.Thread(target=run, name="ddtop-folder", daemon=True)
    thread.start()
    if not done.wait(seconds):
        _hanging.add(thread)
        raise _no_answer_error(folder(), seconds)
    if failed:
        raise failed[0]
    return found[0]


_inside = threading.local()


def _no_answer_error(folder: str, seconds: float) -> RegistryError:
    return RegistryError(
        f"{folder or 'the state folder'} does not answer within {seconds:.0f} s (a file server that"
        " hangs?): what is in it is not known"
    )


def state_dir_text() -> str:
    """The path of the state folder, for a sentence; the folder is not touched."""
    try:
        return str(_state_path())
    except RuntimeError:
        return "the state folder"


def _state_path() -> Path:
    if os.environ.get("DDTOP_STATE"):
        return Path(os.environ["DDTOP_STATE"]).expanduser()
    if os.environ.get("XDG_STATE_HOME"):
        return Path(os.environ["XDG_STATE_HOME"]) / "ddtop"
    return Path.home() / ".local" / "state" / "ddtop"


def state_dir() -> Path:
    """The folder of job files, created if necessary; private.

    Raises:
        RegistryError: it cannot be created or written.
    """
    try:
        path = _state_path()
    except RuntimeError as error:
        raise RegistryError(
            f"there is no home for the state folder ({error}); set DDTOP_STATE to a folder"
        ) from None
    return call_patiently(lambda: _private_dir(path, "DDTOP_STATE"), state_dir_text)


def runtime_dir() -> Path:
    """The local folder of sockets and locks, created if necessary; private and owned by this user.
    If another user has already taken its usual name, it has another name.

    Raises:
        RegistryError: it cannot be made; or belongs to somebody else, and DDTOP_RUNTIME names it.
    """
    return runtime_place()[0]


def runtime_place() -> tuple[Path, str | None]:
    """(the runtime folder, a sentence why it is not the usual one; None if it is).

    Raises:
        RegistryError: as `runtime_dir`.
    """
    if given := os.environ.get("DDTOP_RUNTIME"):
        return _private_dir(Path(given), "DDTOP_RUNTIME"), None
    usual = Path(f"/tmp/ddtop-{os.getuid()}")
    try:
        return _private_dir(usual, "DDTOP_RUNTIME"), None
    except RegistryError as error:
        why = str(error).partition(";")[0]
    if session := os.environ.get("XDG_RUNTIME_DIR"):
        with contextlib.suppress(RegistryError):
            path = _private_dir(Path(session) / "ddtop", "DDTOP_RUNTIME")
            return path, f"{why}; {path} is used instead"
    path = _agreed_folder()
    return path, f"{why}; {path} is used instead"


def _agreed_folder() -> Path:
    """A private folder with an unguessable name. The name is in the state folder, so that all ranks
    of this host use the same one.
    """
    # Processes of this boot and mount namespace share /tmp. Hosts that share the state folder may
    # not.
    note = state_dir() / f"runtime-{identity_of('ns/mnt')}"
    for _ in range(3):
        with contextlib.suppress(OSError, ValueError):
            path = Path(os.fsdecode(private.read(note, 4096)).strip())
            if path.is_absolute() and path.is_dir():
                private.folder(path)
                return path
        made = f"/tmp/ddtop-{os.getuid()}-{os.urandom(8).hex()}"
        try:
            os.mkdir(made, 0o700)
        except OSError as error:
            raise RegistryError(
                f"cannot make a folder in /tmp: {error.strerror}; set DDTOP_RUNTIME to one"
            ) from None
        # Only the first of several ranks that start together writes the note; the others read it. A
        # note about a missing folder is replaced.
        replace(note, os.fsencode(made) + b"\n", only_if_absent=not _names_missing_folder(note))
        if private.read(note, 4096).strip() != os.fsencode(made):
            os.rmdir(made)
    raise RegistryError(f"no private folder for sockets can be agreed upon; remove {note}")


def _names_missing_folder(note: Path) -> bool:
    """Whether the note exists and the folder that it names does not."""
    try:
        return not os.path.isdir(private.read(note, 4096).strip())
    except (OSError, ValueError):
        return False


def identity_of(*namespaces: str) -> str:
    """This boot in these namespaces of this process, 12 hex digits."""
    import hashlib

    parts = []
    for source in ("/proc/sys/kernel/random/boot_id", *map("/proc/self/{}".format, namespaces)):
        try:
            path = Path(source)
            parts.append(os.readlink(path) if "ns/" in source else path.read_text().strip())
        except OSError:
            parts.append(os.uname().nodename)
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]


def _private_dir(path: Path, variable: str) -> Path:
    """This folder, or a private one inside it if others use the folder: it stays open to them."""
    if not path.is_absolute():
        # The relay and the job have different working folders.
        raise RegistryError(f"{path} is relative; set {variable} to a folder that begins with /")
    try:
        try:
            private.folder(path)
        except private.SharedError:
            path = path / f"ddtop-{os.getuid()}"
            private.folder(path)
    except private.ForeignError as error:
        raise RegistryError(f"{path} {error}; set {variable} to a folder of your own") from None
    except OSError as error:
        raise RegistryError(
            f"cannot make the folder {path}: {error.strerror}; set {variable} to another one"
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise RegistryError(f"cannot write to {path}; set {variable} to another folder")
    return path


def secret() -> bytes:
    """The user's secret, from which all keys are derived: $DDTOP_KEY, else the state folder's
    `key`, created once.

    Raises:
        RegistryError: the key file cannot be read or created, or others may read it.
    """
    if given := os.environ.get("DDTOP_KEY"):
        if len(os.fsencode(given)) < KEY_BYTES_MIN:
            raise RegistryError(
                f"DDTOP_KEY is shorter than {KEY_BYTES_MIN} characters; make one: openssl rand"
                " -hex 32"
            )
        return os.fsencode(given)
    return call_patiently(_kept_secret, state_dir_text)


def _kept_secret() -> bytes:
    path = state_dir() / "key"
    for _ in range(2):
        try:
            data = _key_in(path)
        except FileNotFoundError:
            _make_key(path)
            continue
        except private.ForeignError:
            raise RegistryError(
                f"the key {path} must be a file of yours and mode 0600; remove it"
            ) from None
        except OSError as error:
            raise RegistryError(f"cannot read the key {path}: {error.strerror}") from None
        if len(data) >= KEY_BYTES_MIN:
            return data
        raise RegistryError(f"the key {path} is damaged; remove it, a new one is made")
    raise RegistryError(f"cannot make the key {path}")


def _key_in(path: Path) -> bytes:
    with os.fdopen(private.open_file(path), "rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise RegistryError(
                f"the key {path} must be yours and mode 0600; others may have read it: remove it"
            )
        return file.read(4096).strip()


def _make_key(path: Path) -> None:
    # Written completely, then linked: another process finds either no key or a complete one.
    replace(path, os.urandom(32).hex().encode() + b"\n", only_if_absent=True)


def replace(path: Path, data: bytes, only_if_absent: bool = False) -> None:
    try:
        with private.written(path, only_if_absent=only_if_absent) as file:
            file.write(data)
    except FileExistsError:
        return
    except OSError as error:
        raise RegistryError(f"cannot write {path}: {error.strerror}") from None
