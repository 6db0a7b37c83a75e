"""Journals to replay."""

from __future__ import annotations

from ddtop import journal
from tests.follow.taped import in_order


def written(job, path):
    journal.write(path, [data for _, data in in_order(job)])
    return path
