"""The user's folders and key: the state folder with a file a job, the runtime folder with the sockets, the secret of all keys.

The state folder may be on a shared home; it is private (0700) and so is every file in it (0600). The runtime folder is
local and its owner is checked, because a socket in somebody else's folder is somebody else's relay.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ddtop import private

KEY_BYTES_MIN = 16
"""Who records a handshake can try secrets at home, as many as he likes: a short one would be found."""


class RegistryError(Exception):
    """The state or runtime folder cannot be used; the text names it and the next step."""


def state_dir() -> Path:
    """The folder of job files, made if need be; private.

    Raises:
        RegistryError: it cannot be made or written.
    """
    try:
        if os.environ.get("DDTOP_STATE"):
            path = Path(os.environ["DDTOP_STATE"]).expanduser()
        elif os.environ.get("XDG_STATE_HOME"):
            path = Path(os.environ["XDG_STATE_HOME"]) / "ddtop"
        else:
            path = Path.home() / ".local" / "state" / "ddtop"
    except RuntimeError as error:
        raise RegistryError(f"there is no home for the state folder ({error}); set DDTOP_STATE to a folder") from None
    return _private_dir(path, "DDTOP_STATE")


def runtime_dir() -> Path:
    """The local folder of sockets and locks, made if need be; private and ours.

    Raises:
        RegistryError: it cannot be made, or belongs to somebody else.
    """
    path = Path(os.environ.get("DDTOP_RUNTIME") or f"/tmp/ddtop-{os.getuid()}")
    return _private_dir(path, "DDTOP_RUNTIME")


def _private_dir(path: Path, variable: str) -> Path:
    if not path.is_absolute():
        # The relay's working folder is another one than the job's.
        raise RegistryError(f"{path} is relative; set {variable} to a folder that begins with /")
    try:
        private.folder(path)
    except private.ForeignError as error:
        raise RegistryError(f"{path} {error}; set {variable} to a folder of your own") from None
    except OSError as error:
        raise RegistryError(f"cannot make the folder {path}: {error.strerror}; set {variable} to another one") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise RegistryError(f"cannot write to {path}; set {variable} to another folder")
    return path


def secret() -> bytes:
    """The user's secret, from which all keys are derived: $DDTOP_KEY, else the state folder's `key`, made once.

    Raises:
        RegistryError: the key file cannot be read or made, or others may read it.
    """
    if given := os.environ.get("DDTOP_KEY"):
        if len(os.fsencode(given)) < KEY_BYTES_MIN:
            raise RegistryError(f"DDTOP_KEY is shorter than {KEY_BYTES_MIN} characters; make one: openssl rand -hex 32")
        return os.fsencode(given)
    path = state_dir() / "key"
    for _ in range(2):
        try:
            data = _key_in(path)
        except FileNotFoundError:
            _make_key(path)
            continue
        except private.ForeignError:
            raise RegistryError(f"the key {path} must be a file of yours and mode 0600; remove it") from None
        except OSError as error:
            raise RegistryError(f"cannot read the key {path}: {error.strerror}") from None
        if len(data) >= KEY_BYTES_MIN:
            return data
        raise RegistryError(f"the key {path} is damaged; remove it, a new one is made")
    raise RegistryError(f"cannot make the key {path}")


def _key_in(path: Path) -> bytes:
    with os.fdopen(private.opened(path), "rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise RegistryError(f"the key {path} must be yours and mode 0600; others may have read it: remove it")
        return file.read(4096).strip()


def _make_key(path: Path) -> None:
    # Written whole, then linked: a second process either finds no key or a whole one.
    import secrets

    replace(path, secrets.token_hex(32).encode() + b"\n", only_if_absent=True)


def replace(path: Path, data: bytes, only_if_absent: bool = False) -> None:
    import tempfile

    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        if only_if_absent:
            try:
                os.link(temporary, path)
            except FileExistsError:
                return
        else:
            os.rename(temporary, path)
            temporary = None
    except OSError as error:
        raise RegistryError(f"cannot write {path}: {error.strerror}") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
