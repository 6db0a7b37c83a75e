"""The user's config file: `~/.config/ddtop/config.toml`.

A flag overrides a variable, a variable overrides the file, and the file overrides ddtop's defaults.
If a setting has a variable and the variable is not set, the setting is put into the environment of
this process, so that each setting is read in one place. Settings that the dashboard itself keeps,
such as columns hidden with a key, are in `setup.json` beside it: ddtop never writes to config.toml.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import stat
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ddtop.cli.errors import USAGE, CommandError
from ddtop.folders import call_patiently
from ddtop.policy import BLOCKS, POLICY, Policy

BYTES_MAX = 1 << 16
LIMITS = "limits"
"""The table of the limits, and what it was called; that goes with the next release."""
SPREAD = 100.0
"""A limit may be this many times smaller or larger than the default. Beyond that it is a typing
error."""
LATER = "not-in-collective.wait_s"
"""A wait is blamed after `still_limit_s`, before its kind is known."""
KEY = re.compile(r"[!-~]|f\d{1,2}|(?:(?:ctrl|alt|shift)\+)+[a-z0-9_]+|[a-z_]{2,}")
"""A key as people write it in the file: a character, or a name."""
NAMED_MAX = 60
"""So many names are listed in a message."""


@dataclass(frozen=True)
class Setting:
    """One setting. `form`: the type of its value in TOML. `variable`, `flag`: they override the
    setting."""

    name: str
    form: type
    default: Any
    meaning: str
    variable: str = ""
    flag: str = ""


SETTINGS = (
    Setting("theme", str, "what suits the terminal", "The colours of the dashboard."),
    Setting("interval_s", float, 0.5, "Seconds between two frames of the dashboard."),
    Setting(
        "hidden",
        list,
        ["comm", "phases"],
        "Columns of the rank table that are not shown, by their keys.",
    ),
    Setting("keys", dict, {}, "Other keys for actions of the dashboard, by their names."),
    Setting("hosts", list, [], "Hosts that the shell offers after --ssh."),
    Setting("ssh", str, "ssh", "The ssh command of --ssh, with its options.", "DDTOP_SSH"),
    Setting(
        "remote",
        str,
        "ddtop",
        "The command that runs ddtop on the other host.",
        "DDTOP_REMOTE",
        "--remote",
    ),
    Setting("webhook", str, "", "Where ddtop watch posts events.", "DDTOP_WEBHOOK", "--webhook"),
    Setting("source", bool, True, "Show lines of source.", "DDTOP_SOURCE", "--no-source"),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}
TEMPLATE_HEAD = """\
# Your preferences, for every ddtop that you start. Remove the # in front of a line to change it.
# A flag overrides a variable, and a variable overrides this file: `ddtop config show`.
"""


@dataclass(frozen=True)
class Config:
    """The contents of the file. `limits`: name to value, for those that it sets."""

    path: Path
    values: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def policy(self) -> Policy:
        """Our policy with these limits."""
        return POLICY.with_limits(self.limits)

    @property
    def dashboard(self) -> dict[str, Any]:
        """The dashboard's settings in the file."""
        names = ("theme", "interval_s", "keys")
        found = {name: self.values[name] for name in names if name in self.values}
        return found | ({"hidden": tuple(self.values["hidden"])} if "hidden" in self.values else {})

    def origin(self, setting: Setting, environ: Mapping[str, str]) -> tuple[Any, str]:
        """(the effective value, where it comes from)."""
        if setting.variable and environ.get(setting.variable):
            return environ[setting.variable], setting.variable
        if setting.name in self.values:
            return self.values[setting.name], "file"
        return setting.default, "default"


def path_of(environ: Mapping[str, str]) -> Path:
    """`$DDTOP_CONFIG`, else `ddtop/config.toml` below `$XDG_CONFIG_HOME` or `~/.config`."""
    if environ.get("DDTOP_CONFIG"):
        return Path(environ["DDTOP_CONFIG"]).expanduser()
    base = environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path("~/.config").expanduser()
    return folder / "ddtop" / "config.toml"


def read(environ: Mapping[str, str]) -> Config:
    """The contents of the file; empty if there is no file.

    Raises: CommandError: 2, it cannot be read or understood.
    """
    path = path_of(environ)
    try:
        data = call_patiently(lambda: _bytes(path), lambda: str(path))
    except (FileNotFoundError, NotADirectoryError):
        if environ.get("DDTOP_CONFIG"):
            raise CommandError(f"ddtop: DDTOP_CONFIG: there is no file {path}", USAGE) from None
        return Config(path)
    except OSError as error:
        raise CommandError(f"ddtop: {path}: {error.strerror}", USAGE) from None
    if len(data) > BYTES_MAX:
        raise _config_error(path, f"it is larger than {BYTES_MAX >> 10} KiB")
    return parse(path, data)


def _bytes(path: Path) -> bytes:
    """Not more than the largest file. A pipe has no end."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is not a file")
        return file.read(BYTES_MAX + 1)


def parse(path: Path, data: bytes) -> Config:
    """The settings in these bytes.

    Raises:
        CommandError: 2, with the setting and what it may be.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise _config_error(path, f"it is not TOML: {error}") from None
    limits = table.pop(LIMITS, None)
    found = Config(path, {name: _value(path, name, given) for name, given in table.items()})
    return _with_limits(found, limits) if limits is not None else found


def _with_limits(config: Config, table: Any) -> Config:
    """The config with the limits of this table."""
    import ddtop.diagnosis.limits  # noqa: F401 - it knows them all

    path = config.path
    given: dict[str, Any] = {}
    if not isinstance(table, dict):
        raise _config_error(path, f"[{LIMITS}] must be a table")
    for name, value in table.items():
        inner = value if isinstance(value, dict) else {}
        given |= {f"{name}.{one}": it for one, it in inner.items()} or {name: value}
    defaults = POLICY.values()
    limits = {name: _limit(path, name, value, defaults) for name, value in given.items()}
    found = dataclasses.replace(config, limits=limits)
    still_s = found.policy.still_limit_s
    if found.policy.values()[LATER] < still_s:
        raise _config_error(path, f"{_place(LATER)} must be at least still_limit_s, {still_s:g}")
    return found


def apply(config: Config, environ: Any) -> None:
    """Put each setting that has a variable into `environ`, unless the variable is set."""
    for name, value in config.values.items():
        variable = BY_NAME[name].variable
        if variable and not environ.get(variable):
            environ[variable] = str(int(value)) if isinstance(value, bool) else str(value)


def range_of(name: str, default: float) -> tuple[float, float]:
    """(smallest, largest) value of a limit, in the unit that its name ends with."""
    if f"_{name.rpartition('.')[2]}".endswith("_ratio"):
        return max(default / SPREAD, 0.0), min(default * SPREAD, 1.0)
    return default / SPREAD, default * SPREAD


def template() -> str:
    """The text of a new file: every setting with its meaning, commented out."""
    lines = [TEMPLATE_HEAD]
    for setting in SETTINGS:
        overriding = " and ".join(filter(None, (setting.flag, setting.variable)))
        lines += [f"# {setting.meaning}" + (f" Overridden by {overriding}." if overriding else "")]
        lines += [f"# {setting.name} = {_toml(setting.default)}", ""]
    lines += ["# When a number is too large: `ddtop config show --all` lists all of them."]
    return "\n".join([*lines, f"# [{LIMITS}]", "# still_limit_s = 5.0", ""])


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _value(path: Path, name: str, given: Any) -> Any:
    setting = BY_NAME.get(name)
    if setting is None:
        raise _config_error(path, f"there is no setting {name!r}{_names_text(name, BY_NAME)}")
    if setting.form is float and isinstance(given, int) and not isinstance(given, bool):
        given = float(given)
    wrong = not isinstance(given, setting.form) or (
        isinstance(given, list) and not all(isinstance(text, str) for text in given)
    )
    forms = {
        str: "a string",
        float: "a number",
        bool: "true or false",
        list: "a list of strings",
        dict: "a table",
    }
    if wrong:
        raise _config_error(path, f"{name} must be {forms[setting.form]}, not {given!r}"[:200])
    if name == "interval_s" and not 0.1 <= given <= 60:
        raise _config_error(path, f"interval_s must be 0.1 to 60 s, not {given}")
    return _keys(path, given) if name == "keys" else given


def _keys(path: Path, given: Mapping[str, Any]) -> dict[str, str]:
    """The keys by the names of their actions."""
    from ddtop.present.help_text import ACTIONS, KEY_NAMES, MOVES

    defaults = {action.name: action.keys for action in ACTIONS}
    for name, key in given.items():
        if name not in defaults:
            raise _config_error(path, f"[keys]: no action {name!r}{_names_text(name, defaults)}")
        if not isinstance(key, str) or not KEY.fullmatch(key):
            why = f"[keys] {name} must be a key such as x, f5 or ctrl+g, not {key!r}"
            raise _config_error(path, why[:200])
    taken = {key: "the lists" for keys, _ in MOVES for key in keys.split()}
    for name, keys in (defaults | dict(given)).items():
        for key in keys.split(",") if name not in given else (keys,):
            if (other := taken.setdefault(KEY_NAMES.get(key, key), name)) != name:
                why = f"[keys]: {key} would be the key of {other} and of {name}"
                raise _config_error(path, why)
    return dict(given)


def _limit(path: Path, name: str, given: Any, defaults: Mapping[str, float]) -> float:
    if name not in defaults:
        of, _, one = name.rpartition(".")
        names = [other.rpartition(".")[2] for other in defaults if other.rpartition(".")[0] == of]
        meant = _names_text(one, names) if names else _names_text(of, sorted(BLOCKS))
        raise _config_error(path, f"there is no limit {_place(name)}{meant}")
    default = defaults[name]
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise _config_error(path, f"{_place(name)} must be a number, not {given!r}"[:200])
    low, high = range_of(name, default)
    if not low <= given <= high:
        raise _config_error(path, f"{_place(name)} must be {low:g} to {high:g}, not {given}")
    if isinstance(default, int) and given != int(given):
        raise _config_error(path, f"{_place(name)} must be a whole number, not {given}")
    return int(given) if isinstance(default, int) else float(given)


def _place(name: str) -> str:
    """`[limits.straggler] ratio`."""
    of, dot, one = name.rpartition(".")
    return f"[{LIMITS}{dot}{of}] {one}"


def _names_text(name: str, names: Collection[str]) -> str:
    found = get_close_matches(name, names, 1)
    if found:
        return f"; did you mean {found[0]}?"
    return f"; there are {', '.join(names)}" if len(names) <= NAMED_MAX else ""


def _config_error(path: Path, why: str) -> CommandError:
    return CommandError(f"ddtop: {path}: {why} (ddtop config edit)", USAGE)
