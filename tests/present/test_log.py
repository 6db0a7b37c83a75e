"""What a rank wrote last, as a page and as a panel."""

from ddtop.follow.log_tail import Tail
from ddtop.present.culprit import log_panel
from ddtop.present.log import log_lines
from ddtop.present.scene import Scene
from ddtop.present.text import plain
from tests.ui import builders, lived
from tests.ui.changed import replace

OUT, ERR = "/logs/0/stdout.log", "/logs/0/stderr.log"
TAILS = {
    OUT: Tail(("step 1", "step 2")),
    ERR: Tail(("WARNING: no license", "\x1b[31mred", "")),
}


def page(*outputs, tails=TAILS):
    rank = replace(builders.healthy().ranks[3], process={"outputs": outputs})
    return [plain(line) for line in log_lines(rank, lambda wanted: tails.get(wanted[0]), 80)]


def test_both_files_are_shown_with_what_they_are():
    lines = page(OUT, ERR)

    assert lines[:3] == [f"standard output of rank 3: {OUT}", "step 1", "step 2"]
    assert lines[4:6] == [f"standard error of rank 3: {ERR}", "WARNING: no license"]
    assert all(line.isprintable() for line in lines)


def test_one_file_of_both_is_shown_once():
    assert page(OUT, OUT)[0] == f"standard output and standard error of rank 3: {OUT}"
    assert len(page(OUT, OUT)) == 3


def test_what_is_no_file_says_what_it_is_and_how_to_make_it_one():
    assert "a pipe, which only one can read" in page("pipe:[4711]")[1]
    assert "--log-dir" in page("pipe:[4711]")[1]
    assert "a terminal" in page("/dev/pts/3")[1]
    assert "thrown away" in page("/dev/null")[1]
    assert page() == ["what rank 3 writes to is not known yet"]


def test_a_file_that_cannot_be_read_says_why_and_on_which_host_it_is():
    far = {OUT: Tail(problem="it is not on this host")}

    assert page(OUT, tails={})[1] == "  being read ..."
    assert page(OUT, tails=far)[1] == "  it is not on this host (host node000)"


def test_the_last_lines_of_the_culprit_are_evidence_and_a_pipe_takes_no_room():
    snapshot, verdict = builders.hang(8, 5)

    def panel(*outputs):
        ranks = [replace(rank, process={"outputs": outputs}) for rank in snapshot.ranks]
        scene = Scene(
            replace(snapshot, ranks=tuple(ranks)),
            lived.history_of(snapshot, slower=0.0),
            verdict,
            log=lambda wanted: TAILS.get(wanted[0]),
        )
        return [plain(line) for line in log_panel(scene, 60, 4)]

    head, *lines = panel(OUT, ERR)
    assert head.startswith("── rank 5 wrote last ─")
    assert lines[0] == "WARNING: no license"
    assert panel(OUT, "pipe:[1]")[1:] == ["step 1", "step 2"]
    assert panel("pipe:[1]", "pipe:[1]") == []
