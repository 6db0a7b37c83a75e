"""What one viewer shows: the facts, whether they are frozen, and how they are drawn.

Screens and widgets share one `Session`. It does not use the terminal library, so it can be tested
alone.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from ddtop import private
from ddtop.diagnosis.finding import Verdict
from ddtop.follow.history import JobHistory, SeriesHistory
from ddtop.follow.log_tail import tails
from ddtop.follow.look import Look, Source
from ddtop.follow.source_lines import Excerpts
from ddtop.follow.tape import SHOWN
from ddtop.model.facts import Snapshot
from ddtop.present.events import EventLog
from ddtop.present.findings import ContactShown
from ddtop.present.help_text import ACTIONS, KEY_NAMES, RANKS
from ddtop.present.jobs import Row
from ddtop.present.numbers import REPLACED
from ddtop.present.text import UNICODE, Glyphs
from ddtop.registry import JobEntry
from ddtop.thresholds import chosen
from ddtop.ui.style import DARK, PALETTES, Palette
from ddtop.words import units

# -- The user's settings of the dashboard, kept between sessions in a small file in the config
#    folder
#
# They are a convenience: no problem with the file is an error. A file that cannot be read is left
# as it is, and the screen says so once; if it cannot be written, nothing happens.


SCHEMA = "ddtop.setup/1"
ROWS, SHARED, PANELS = ROOMS = ("rows", "shared", "panels")
"""What has most of the screen: the rows of the ranks alone, the panels, or both share it. The page
beside them is shown only where it is shared."""
FILE_BYTES_MAX = 1 << 16


class Setup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings.

    `theme`: None for the one that suits the terminal. `hidden`: the keys of hidden columns.
    `room`: what has most of the screen, one of `ROOMS`. `view`: the one in front. `filtered`: a
    job, and the filter of its ranks. `keys`: the user's own, by the names of actions. The sort
    order is not kept: it was for one job, and in the next one the rank at fault would not be on
    top.
    """

    schema: str = SCHEMA
    theme: str | None = None
    hidden: tuple[str, ...] = REPLACED
    interval_s: float = 0.5
    follow: bool = False
    room: str = SHARED
    view: str = RANKS
    filtered: tuple[str, str] = ("", "")
    keys: dict[str, str] = {}


class Kept:
    """The file, and the settings last read from it or written to it. `problem`: why it is not used;
    shown on the screen once."""

    def __init__(self, path: Path | None, chosen: Mapping[str, Any] | None = None) -> None:
        """`path`: None to keep nothing. `chosen`: the settings in the user's own config file: they
        apply at the start of each session and are not written here.
        """
        self._path, self._chosen = path, dict(chosen or {})
        self._own, self.problem = (Setup(), None) if path is None else _read(path)
        self.setup = msgspec.structs.replace(self._own, **self._chosen)
        self._one_at_a_time = threading.Lock()

    def save(self, setup: Setup) -> None:
        """Write the settings atomically if they have changed. A file that could not be read is not
        overwritten."""
        with self._one_at_a_time, contextlib.suppress(OSError):
            if setup == self.setup:
                return
            self.setup = setup
            if self._path is None or self.problem is not None:
                return
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            own = {name: getattr(self._own, name) for name in self._chosen}
            data = msgspec.json.encode(msgspec.structs.replace(setup, **own))
            _write(self._path, msgspec.json.format(data, indent=1) + b"\n")


def kept(chosen: Mapping[str, Any] | None = None) -> Kept:
    """This user's settings: `$XDG_CONFIG_HOME/ddtop/setup.json`, else in `~/.config`."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        # The XDG specification: a relative path is to be ignored.
        folder = Path(base) if os.path.isabs(base) else Path.home() / ".config"
    except RuntimeError:
        return Kept(None, chosen)
    return Kept(folder / "ddtop" / "setup.json", chosen)


def _read(path: Path) -> tuple[Setup, str | None]:
    left = f"your setup file is ignored and left unchanged: {path}"
    try:
        # A named pipe would block here until somebody writes into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return Setup(), None
    except OSError as error:
        return Setup(), f"{left}: {error.strerror}"
    try:
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return Setup(), f"{left} is not a file"
            setup = msgspec.json.decode(file.read(FILE_BYTES_MAX), type=Setup)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Setup(), f"{left}: {error}"
    if setup.schema != SCHEMA:
        return Setup(), f"{left} is {setup.schema[:40]!r}, but this ddtop reads {SCHEMA!r}"
    return setup, None


def _write(path: Path, data: bytes) -> None:
    # A dotfile is often a link into a repository: what it points to is written, the link stays.
    with private.written(Path(os.path.realpath(path))) as file:
        file.write(data)


class Programs:
    """The programs of the system to which the job belongs.

    `rows` gets what is shown of the job, and returns all programs with this one; none if the job
    stands alone. `chosen`, after the app has ended: the user wants to see that one.
    """

    def __init__(
        self, rows: Callable[[Verdict, Snapshot | None], Sequence[Row]] = lambda *_: ()
    ) -> None:
        self.rows = rows
        self.chosen: JobEntry | None = None


# -- The session of one viewer


NOTICE_S = 10
"""Long enough to be read, and gone before it looks like news."""
INTERVALS_S = (0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass
class Paint:
    """How everything is drawn; shared by all widgets, changed only by the session."""

    palette: Palette
    glyphs: Glyphs
    keys: dict[str, str] = field(default_factory=dict)
    """The user's own keys, by the names of those that they replace."""

    def keymap(self, own: Mapping[str, str]) -> dict[str, str]:
        """Take these keys, each for an action, from now on; as Textual names them."""
        found = {name: KEY_NAMES.get(key, key) for name, key in own.items()}
        for action in ACTIONS:
            if action.name in own:
                self.keys |= dict.fromkeys(action.keys.split(","), own[action.name])
        return found


class Session:
    """The state of a viewer.

    `shown` is what the screens draw. While `frozen`, it does not change; the source is still asked,
    so that the feed and the sparklines go on. Travelling in time ends the freeze.
    """

    def __init__(
        self,
        source: Source,
        job: str,
        *,
        paint: Paint | None = None,
        clock: Callable[[], int] | None = None,
        readonly: bool = False,
        setup: Setup | None = None,
        programs: Programs | None = None,
    ) -> None:
        """`readonly`: this viewer may not act on the job. `setup`: the settings that the user had
        last. `programs`: of the system of the job."""
        self.programs = programs or Programs()
        self.setup = setup or Setup()
        self.readonly = readonly
        self.excerpts, self.tails = Excerpts(), tails()
        self._notice = ("", 0)
        self.source = source
        self.job = job
        self._history, self._no_history = SeriesHistory(), SeriesHistory()
        self._job_history = JobHistory(chosen())
        self.timeline, self.recalled = EventLog(chosen()), False
        self._at_unix_ns: int | None = None
        self.paint = paint or Paint(PALETTES[DARK], UNICODE)
        self.shown: Look = source.look()
        self.frozen = False
        self.interval_s = (
            self.setup.interval_s if self.setup.interval_s in INTERVALS_S else INTERVALS_S[0]
        )
        self._clock = clock or time.time_ns
        self._started_ns = self._clock()
        self.newest = self.shown
        """The newest facts, even while the picture is frozen: requested stacks are shown as soon as
        they arrive."""
        self.refresh()

    def refresh(self) -> None:
        """Ask the source once."""
        self.newest = self.source.look()
        if self.newest.snapshot is not None and not self.newest.travelled:
            self._history.record(self.newest.snapshot)
            self._job_history.record(self.newest.snapshot)
            self.timeline.take(self.newest)
        if not self.frozen:
            self.shown = self.newest

    def program_rows(self) -> Sequence[Row]:
        """The programs of the system, the worst first, with this job as it is shown."""
        return self.programs.rows(self.shown.verdict, self.shown.snapshot)

    def freeze(self) -> None:
        """Freeze the shown facts, or unfreeze them."""
        self.frozen = not self.frozen and self.shown.snapshot is not None
        if not self.frozen:
            self.shown = self.newest

    @property
    def history(self) -> SeriesHistory:
        """The numbers for the sparklines, up to the shown moment: in the past they must not show
        what came after it."""
        return self.shown.past or self._no_history if self.shown.travelled else self._history

    def remember(self, history: JobHistory, series: SeriesHistory) -> None:
        """Take over what was seen before this viewer came."""
        self._job_history.absorb(history)
        self._history.absorb(series)

    @property
    def job_history(self) -> JobHistory:
        """The numbers of the whole job. For a past moment the caller reads them only up to that
        moment."""
        return self.shown.job_past or self._job_history

    @property
    def per_s(self) -> float | None:
        """How fast the job is, from the same numbers as its strip."""
        snapshot = self.shown.snapshot
        until = snapshot.time_unix_ns if snapshot is not None else 0
        return self.job_history.now(until).iterations_per_s

    def travel(self, seconds: float) -> None:
        """Go forward in time (negative: back); the next look is of that moment. Beyond the end is
        the present."""
        span = self.newest.span
        if span is None:
            self.say(self.newest.untaped or "nothing has been recorded yet to go back to")
            return
        now = span[1] if self._at_unix_ns is None else self._at_unix_ns
        self.travel_to(now + int(seconds * units.SECOND_NS))

    def travel_to(self, unix_ns: int) -> None:
        """Go to that moment, as far as it is kept."""
        first, last = self.newest.span or (0, 0)
        self._go(max(unix_ns, first) if unix_ns < last else None)

    def travel_to_critical(self, steps: int) -> None:
        """Go to the next moment that shows a critical finding for the first time (`steps` < 0: the
        previous). At the moment at which it began, the screen still says that all is well."""
        first, last = self.newest.span or (0, 0)
        now = self._at_unix_ns or last
        begun = [at for at, what in self.newest.marks if what == SHOWN and at >= first]
        if later := [at - now for at in begun if (at - now) * steps > 0]:
            self._go(now + min(later, key=abs))
        else:
            self.say(f"no critical finding began {'after' if steps > 0 else 'before'} this moment")

    def travel_back(self) -> None:
        """Return to the present, or to the end of a recording."""
        self._go(None)

    def _go(self, at_unix_ns: int | None) -> None:
        self._at_unix_ns = at_unix_ns
        self.frozen = False
        self.source.travel(at_unix_ns)

    def contact(self) -> ContactShown:
        """Whether the shown facts are live, old or recorded."""
        newest_look = self.newest
        contact = ContactShown(
            newest_look.contact, newest_look.contact_age_s, behind_s=newest_look.behind_s
        )
        held, newest = self.shown.snapshot, self.newest.snapshot
        if not self.frozen or held is None or newest is None:
            return contact
        # The newest look may be of the past as well.
        now = max(newest.time_unix_ns, (self.newest.span or (0, 0))[1])
        return replace(contact, frozen_s=(now - held.time_unix_ns) / units.SECOND_NS)

    def say(self, text: str) -> None:
        """Show a sentence at the foot for some seconds."""
        self._notice = (text, self._clock())

    @property
    def notice(self) -> str:
        """The sentence to show at the foot now; empty for none."""
        text, began_ns = self._notice
        return text if self._clock() - began_ns < NOTICE_S * units.SECOND_NS else ""

    @property
    def old(self) -> bool:
        """Every shown value is from the past although the job is not known to have ended."""
        snapshot = self.shown.snapshot
        past = self.shown.contact is not None and not self.shown.recording
        return past and snapshot is not None and snapshot.live

    def waited_s(self) -> float:
        """Seconds since this viewer started, by its own clock."""
        return (self._clock() - self._started_ns) / units.SECOND_NS

    def change_interval(self, steps: int) -> None:
        """Refresh less often (`steps` > 0) or more often."""
        index = INTERVALS_S.index(self.interval_s) + steps
        self.interval_s = INTERVALS_S[min(max(index, 0), len(INTERVALS_S) - 1)]
        self.prefer(interval_s=self.interval_s)

    def prefer(self, **changed: Any) -> None:
        """Change these fields of the setup: the user's choice."""
        self.setup = msgspec.structs.replace(self.setup, **changed)
