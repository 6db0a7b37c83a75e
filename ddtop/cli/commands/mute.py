"""`ddtop mute`: a known finding is silent for a while."""

from __future__ import annotations

import click

from ddtop.cli import completion
from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError, DdtopCommand, did_you_mean
from ddtop.cli.options import SECONDS
from ddtop.cli.output import echo, without_controls
from ddtop.cli.place import PLACE, place_of


@click.command(
    "mute", cls=DdtopCommand, exits="0; 2 no such kind or ranks; 3 no contact, or refused"
)
@click.argument("job", shell_complete=completion.jobs)
@click.argument("kind", required=False)
@click.option("--rank", "ranks", help="Findings that blame only these ranks: 0,3-5.")
@click.option("--for", "for_s", type=SECONDS, required=True, help="How long: 10m; 0s ends it.")
@click.option("--because", help="Why. Everyone who looks at the job sees it.")
@PLACE
def command(
    job: str, kind: str | None, ranks: str | None, for_s: float, because: str | None
) -> None:
    """Silence a known finding for a while: ddtop mute JOB KIND --for 10m --because WHY

    It is left out of the findings, of health and of events, for all who look at the job, and shown
    as muted. It ends by itself. Exit code 2: no such kind or ranks, 3: no contact, or refused.
    """
    from ddtop.cli.ranks import parse_ranks
    from ddtop.cli.sources import act_on
    from ddtop.diagnosis.explain import PAGES
    from ddtop.wire.records import Command
    from ddtop.words.sentences import rank_list

    if kind is None and ranks is None:
        raise CommandError("ddtop: mute needs a KIND, or --rank, or both", USAGE)
    if kind is not None and kind not in PAGES:
        hint = did_you_mean(kind, PAGES)
        raise CommandError(f"ddtop: there is no finding named {kind[:40]!r}{hint}", USAGE)
    if for_s and not because:
        raise CommandError(
            "ddtop: mute needs --because, so that others know why it is quiet", USAGE
        )
    if 0 < for_s < 1:
        raise CommandError("ddtop: --for takes whole seconds, at least one", USAGE)
    numbers = rank_list(parse_ranks(ranks)) if ranks is not None else ""
    arguments = kind or "", numbers, str(int(for_s)), because or ""
    answered = act_on(
        place_of(job, 0.0, "mute"),
        lambda source, _: source.order(Command("mute", arguments=arguments)),
        "nothing was muted",
    )
    if answered is None or not answered.ok:
        why = answered.text if answered is not None else "the relay did not answer"
        raise CommandError(without_controls(f"ddtop: nothing was muted: {why}"), UNREACHABLE)
    echo(f"muted: {answered.text}" if for_s else answered.text)
