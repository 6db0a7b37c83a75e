"""The page of all environment variables that ddtop reads. This table is their one home: a test
searches the code for others.
"""

from __future__ import annotations

from dataclasses import dataclass

from docs.generate.markdown import code, head, table

JOB, VIEWER, BOTH, INTERNAL = "the job", "the viewer", "the job and the viewer", "ddtop itself"


@dataclass(frozen=True)
class Variable:
    """One variable. `where`: in whose environment a person sets it. `default`: what holds while
    it is not set.
    """

    name: str
    where: str
    default: str
    meaning: str


_FOLDER = (
    "An absolute path. If the folder is yours and others can enter it, ddtop uses `ddtop-UID` in"
    " it, which only you can enter. A folder of another user, or one in which everybody may write,"
    " is refused."
)
_EVENT = "commands that `ddtop watch` runs; it sets them"
VARIABLES = (
    Variable(
        "DDTOP_WEBHOOK",
        VIEWER,
        "none",
        "The URL to which `ddtop watch` posts critical findings, where it is a secret.",
    ),
    Variable("DDTOP_EVENT", _EVENT, "", "The event: appeared."),
    Variable("DDTOP_EVENT_JOB", _EVENT, "", "The name of the job."),
    Variable("DDTOP_EVENT_KIND", _EVENT, "", "The kind of the finding."),
    Variable("DDTOP_EVENT_SEVERITY", _EVENT, "", "Its severity."),
    Variable("DDTOP_EVENT_RANKS", _EVENT, "", "The ranks at fault, with commas between."),
    Variable("DDTOP_EVENT_TEXT", _EVENT, "", "The event as `ddtop watch` prints it."),
    Variable("DDTOP_EVENT_REPORT", _EVENT, "", "The file of the report; empty without --report."),
    Variable(
        "DDTOP",
        JOB,
        "0",
        "`1` switches ddtop on in every Python process that is started below. Empty and `0` leave"
        " it off.",
    ),
    Variable(
        "DDTOP_JOB",
        JOB,
        "a name from the script and the launcher",
        "The name of the job. `ddtop run --job` sets it.",
    ),
    Variable(
        "DDTOP_QUIET",
        JOB,
        "0",
        "`1` suppresses the one line that rank 0 prints on stderr at the start.",
    ),
    Variable(
        "DDTOP_REDACT",
        BOTH,
        "1",
        "`0` shows secrets: in a job they leave the rank, in a viewer they stay in source lines and"
        " reports.",
    ),
    Variable(
        "DDTOP_EXCEPTIONS",
        JOB,
        "0",
        "`1` also observes caught exceptions, a quarter of a second in every five"
        " (`exception-swallowed`). Needs Python 3.12 or later.",
    ),
    Variable(
        "DDTOP_AUTODUMP",
        JOB,
        "1",
        "`0` stops the relay from taking stacks by itself when the job makes no progress.",
    ),
    Variable(
        "DDTOP_FRAMES",
        JOB,
        "on",
        "`off`: the agent does not read the frames of the program's threads. Then no"
        " rank has a place, and stacks come from py-spy.",
    ),
    Variable(
        "DDTOP_SIGNAL",
        JOB,
        "on",
        "The signal that makes a frozen process write its stacks when a person asks for them by"
        " signal: `on` (SIGRTMIN+5), a number, a name, `RTMIN+N`, or `off`.",
    ),
    Variable(
        "DDTOP_JOURNAL_MIB",
        JOB,
        "64",
        "The largest size of the recording of a run, in MiB. `0` switches the recording off.",
    ),
    Variable(
        "DDTOP_LINGER_S",
        JOB,
        "300; 10 under a scheduler",
        "The relay stays this many seconds after the job has ended, so that its end can be read.",
    ),
    Variable(
        "DDTOP_HUB",
        BOTH,
        "one of eight ports that follow from the job's name",
        "`HOST:PORT` of the relay that all others connect to. HOST is the host of rank 0. A viewer"
        " asks there too.",
    ),
    Variable(
        "DDTOP_KEY",
        BOTH,
        "`key` in the state folder, made once",
        "The secret from which all keys are derived, 16 characters or more. It must be the same on"
        " all hosts.",
    ),
    Variable(
        "DDTOP_STATE",
        BOTH,
        "$XDG_STATE_HOME/ddtop, else ~/.local/state/ddtop",
        f"The folder of job files, recordings and the key. {_FOLDER}",
    ),
    Variable(
        "DDTOP_RUNTIME",
        BOTH,
        "/tmp/ddtop-UID",
        f"The folder of the unix sockets. {_FOLDER}",
    ),
    Variable(
        "DDTOP_CONFIG",
        VIEWER,
        "ddtop/config.toml below XDG_CONFIG_HOME, else below ~/.config",
        "Your config file: `ddtop config show`.",
    ),
    Variable(
        "DDTOP_SOURCE",
        VIEWER,
        "1",
        "`0` reads and shows no lines of source, as `--no-source` does.",
    ),
    Variable(
        "DDTOP_REMOTE",
        VIEWER,
        "ddtop",
        "How `--ssh` calls ddtop on the other host, as `--remote` does.",
    ),
    Variable("DDTOP_SSH", VIEWER, "ssh", "The ssh command that `--ssh` uses, with its options."),
    Variable(
        "DDTOP_SSH_MIB",
        VIEWER,
        "128",
        "The memory, in MiB, that a view through `--ssh` may use. At least 64. Raise it for a job"
        " of more than 500 ranks.",
    ),
    Variable(
        "DDTOP_DIFFER",
        VIEWER,
        "1",
        "`0` lets Textual write whole lines instead of changed cells only.",
    ),
    Variable(
        "DDTOP_CLAIM",
        INTERNAL,
        "",
        "A rank marks its environment, so that its children are not taken for it.",
    ),
    Variable(
        "DDTOP_PYTHONPATH",
        INTERNAL,
        "",
        "The program's PYTHONPATH, which its relay puts behind the standard library.",
    ),
    Variable("DDTOP_TREE", INTERNAL, "", "A launcher names its run for the processes below it."),
)
STANDARD = (
    ("NO_COLOR", "The dashboard uses no colours."),
    ("COLORTERM", "`truecolor` allows all colours; Textual reads it."),
    ("XDG_STATE_HOME", "The parent of the state folder where `DDTOP_STATE` is not set."),
    (
        "XDG_CONFIG_HOME",
        (
            "The parent of `ddtop/setup.json`, which keeps the columns and the theme. Else"
            " `~/.config`."
        ),
    ),
)


def page() -> str:
    """`reference/environment.md`."""
    lines = head(
        "Environment variables",
        "docs/generate/environment.py",
        "Variables of *the job* are set where the job is started, on every host. Variables of *the"
        " viewer* are set where you type `ddtop`.",
    )
    for where in (JOB, BOTH, VIEWER, _EVENT, INTERNAL):
        rows = (
            (code(one.name), one.default, one.meaning) for one in VARIABLES if one.where == where
        )
        title = "Internal: never set by hand" if where == INTERNAL else f"For {where}"
        lines += [f"## {title}", "", *table(("variable", "default", "meaning"), rows)]
    lines += [
        "## Variables of others",
        "",
        *table(("variable", "meaning"), ((code(name), text) for name, text in STANDARD)),
    ]
    text = (
        "The variables that each launcher sets, and that ddtop reads, are in"
        " `ddtop/launch/launchers.py`, one class per launcher."
    )
    return "\n".join([*lines, text, ""])
