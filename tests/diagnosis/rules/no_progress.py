"""Jobs for the tests of `no_progress` and of the policy."""

from __future__ import annotations


def all_stand(job, function="main", **more):
    for rank in job.ranks:
        rank.stands_at(function, **more)
