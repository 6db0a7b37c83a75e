"""No code of the program runs because ddtop looks at it: what its objects count is the same watched
and unwatched."""

import shutil

import pytest

pytestmark = [pytest.mark.usefixtures("hook_is_installed"), pytest.mark.torch, pytest.mark.job]
RANK = {"RANK": 0, "WORLD_SIZE": 1, "DDTOP_QUIET": 0}


@pytest.mark.parametrize("case", ["objects", "finalisers", "raises", "stderr"])
def test_the_objects_of_a_program_count_no_call_more(world, case):
    pytest.importorskip("torch")
    found = []
    for ddtop in (True, False):
        process = world.start("touchy", case, ddtop=ddtop, **RANK)
        code = world.done(process, within_s=120)
        found.append((code, world.output(process)[0]))
        for path in world.folder.glob("ck*"):
            path.unlink() if path.is_file() else shutil.rmtree(path)

    watched, unwatched = found
    assert watched == unwatched
    assert "by another thread" not in watched[1]
