"""Where a rank that is gone was seen last: in the program's own code, before it began to exit."""

import pytest

from tests.diagnosis.last_seen import TORCH
from tests.jobs import trained


@pytest.mark.parametrize(
    ("function", "file", "line", "raised", "seen"),
    [
        ("save", "/home/ada/save.py", 7, False, "save.py:7 save"),
        ("_del_library", f"{TORCH}/library.py", 665, False, "train.py:40 load"),
        ("destroy", f"{TORCH}/distributed/distributed_c10d.py", 2200, True, "train.py:40 load"),
        ("destroy", "/home/ada/utils.py", 32, True, "train.py:40 load"),
    ],
)
def test_a_rank_was_seen_last_in_the_programs_own_code(function, file, line, raised, seen):
    """Beside an exception stood "last seen at distributed_c10d.py", or at a handler of its exit."""
    job = trained()
    rank = job.ranks[1]
    rank.stands_at("load")
    job.passes(2)
    if raised:
        rank.raises("ValueError", "bad shard")
    rank.stands_at(function, file, line)
    job.passes(2)
    rank.ends(1)
    job.passes(2)

    assert f"last seen at {seen}, iteration" in job.finding().evidence[1]
