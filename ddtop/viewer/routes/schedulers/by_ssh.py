"""The route into a job whose scheduler admits its owner only by ssh."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from ddtop.viewer.routes.schedulers.scheduler import NoSuchJobError, SchedulerTarget
from ddtop.viewer.routes.ssh import SshTarget


def through_ssh(name: str, option: str, hosts: Sequence[str], ddtop: str | None) -> SchedulerTarget:
    """The first of the hosts.

    Raises:
        NoSuchJobError: the scheduler's answer is no name of a host.
        NoContactError: DDTOP_SSH cannot be read.
    """
    odd = next((one for one in hosts if not _is_host(one)), None)
    if odd is not None:
        raise NoSuchJobError(f"{name} runs on {odd!r}, which is no name of a host")
    each = tuple(
        SshJobTarget(
            host,
            option,
            tuple(SshTarget(host).command(asks=False)[:-1]),
            frozenset(hosts),
            ddtop=ddtop,
        )
        for host in dict.fromkeys(hosts)
    )
    return replace(each[0], name=f"{name} on {hosts[0]}", each=each)


def _is_host(name: str) -> bool:
    return name.isprintable() and not name.startswith("-") and " " not in name


class SshJobTarget(SchedulerTarget):
    """ssh gives one line to the shell there, so the words are quoted for it."""

    def words(self, *words: str, columns: int | None = None) -> list[str]:
        """The command that runs ddtop there with these words."""
        every = super().words(*words, columns=columns)
        count = len(self.before)
        return [*self.before, shlex.join(every[count:])]
