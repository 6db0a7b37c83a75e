"""`no-progress`: the job made steps, batches or collectives, now makes none, and no other rule
knows why.

This is the last rule. It reports where each rank is, and names the ranks that are not where most
ranks are. A rule that knows more replaces it. Where all ranks only wait for work from outside, the
job is idle, and the finding is an info.
"""

from __future__ import annotations


def all_stand(job, function="main", **more):
    for rank in job.ranks:
        rank.stands_at(function, **more)
