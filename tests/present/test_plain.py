"""`ddtop status` and `ddtop diagnose` as they print into a pipe."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtop.diagnosis.finding import Said
from ddtop.follow.look import Look
from ddtop.model.facts import Axis, RankFacts, State
from ddtop.policy import POLICY
from ddtop.present.events import EventLog
from ddtop.present.filter import by_column
from ddtop.present.findings import ContactShown, banner_lines, header_line
from ddtop.present.numbers import absent, rank_table
from ddtop.present.plain import diagnose_text, status_text
from ddtop.present.text import ASCII, cell_width, line_width, plain
from ddtop.wire.records import TrainingProgress
from ddtop.words import units
from tests.ui import builders
from tests.ui.builders import NOW, SECOND
from tests.ui.changed import replace

WIDE_HOST = "計算機-東京-第三"


def lines_of(text):
    return text.rstrip("\n").split("\n")


def test_a_healthy_job_is_one_calm_sentence_and_its_ranks():
    snapshot = builders.healthy(3)

    assert lines_of(status_text(snapshot, builders.calm(snapshot), 80)) == [
        "train-4730  3/3 ranks  1 host  gloo              iter 12,482  5.1 it/s  22:13:20",
        "ok: 3/3 moving, watched 2 min",
        "─" * 80,
        "RANK STATE         ITER STEP ms NOW                    FOR COMM LOADER CPU HEARD",
        "   0 · running   12,482   196.0 backward                 -  30% ━╸ 7/8  99  0.2s",
        "   1 ◦ waiting   12,482   196.3 all_reduce #74892        -  31% ━╸ 6/8  98  0.3s",
        "   2 ◦ waiting   12,482   196.6 all_reduce #74892        -  32% ━╸ 7/8  99  0.4s",
    ]


def test_a_job_that_makes_no_progress_says_who_where_since_when_and_what_to_do():
    assert lines_of(status_text(*builders.hang(3, culprit=1), 80)) == [
        "train-4730  3/3 ranks  1 host  gloo      iter 12,482  NO PROGRESS 31 s  22:13:20",
        "✖ rank 1 has been in the DataLoader (data.py:40 load_image) for 31 s;",
        "  ranks 0,2 wait for it in all_reduce #74893 of default_pg",
        "  worker pid 4811 must deliver the next batch: state D, nfs_wait",
        "  → check the file server of /data; the process group times out in 29 min 29 s",
        "─" * 80,
        "RANK STATE         ITER STEP ms NOW                    FOR COMM LOADER CPU HEARD",
        "   1 ✖ culprit   12,482       - DataLoader data.py:40  31s   0%    0/8   2  0.4s",
        "   0 ■ blocked   12,482       - all_reduce #74893      31s  94% ━━ 8/8   1  0.2s",
        "   2 ■ blocked   12,482       - all_reduce #74893      31s  94% ━━ 8/8   1  0.4s",
    ]


def test_the_same_without_unicode():
    text = status_text(*builders.hang(3, culprit=1), 80, ASCII)

    assert text.isascii()
    assert lines_of(text)[5:8] == [
        "-" * 80,
        "RANK STATE         ITER STEP ms NOW                    FOR COMM LOADER CPU HEARD",
        "   1 X culprit   12,482       - DataLoader data.py:40  31s   0%    0/8   2  0.4s",
    ]


def test_a_start_up_names_the_rank_that_did_not_come():
    assert lines_of(status_text(*builders.starting_up(), 80)) == [
        "train-4730  3/4 ranks  1 host  gloo                      starting 14 s  22:13:20",
        "✖ rank 3 has not come: WORLD_SIZE is 4, ranks 0-2 wait in init_process_group",
        "  (store node000:29500), 12 s so far",
        "  no process with RANK=3 was seen on any host that reports",
        "  → start it, or fix --nproc-per-node / --nnodes of the launcher",
        "─" * 80,
        "RANK STATE         ITER STEP ms NOW                    FOR COMM LOADER CPU HEARD",
        "   3 ∅ missing        -       - never seen               -    - -        -     -",
        "   0 … joining        -       - init_process_group     12s    - -        -  0.3s",
        "   1 … joining        -       - init_process_group     12s    - -        -  0.3s",
        "   2 … joining        -       - init_process_group     12s    - -        -  0.3s",
    ]


def test_a_job_that_has_ended_says_how_and_who_went_first():
    assert lines_of(status_text(*builders.ended(), 80))[:8] == [
        "train-4730  0/4 ranks  1 host  gloo                  iter 12,482  ENDED 22:12:40",
        "ended 22:12:40: exit code 1 of rank 2",
        "✖ rank 2 died: ValueError: bad batch (train.py:31 forward);",
        "  the launcher ended ranks 0,1,3",
        "  → read the traceback of rank 2",
        "─" * 80,
        "RANK STATE         ITER STEP ms NOW                    FOR COMM LOADER CPU HEARD",
        "   2 ✝ exited    12,482       - exit code 1              -  32% ━╸ 7/8  99     -",
    ]


def test_a_pipe_gets_all_columns_and_a_terminal_what_fits():
    titles = {
        whole: lines_of(status_text(*builders.ended(), 80, whole=whole))[6].split()
        for whole in (False, True)
    }

    assert {"PID", "RSS", "PHASES"} <= set(titles[True])
    assert set(titles[False]) < set(titles[True])


def test_a_viewer_that_cannot_keep_up_shows_by_how_much_in_place_of_a_time():
    snapshot, _ = builders.hang(4)

    header = header_line(snapshot, 120, ContactShown(behind_s=50.0))

    assert header[-1] == ("BEHIND 50 s, at 22:13:20", "warning")


def test_forty_columns_still_tell_who_and_where():
    assert lines_of(status_text(*builders.hang(3, culprit=1), 40))[-4:] == [
        "RANK STATE       NOW            FOR COMM",
        "   1 ✖ culprit   DataLoader d…  31s   0%",
        "   0 ■ blocked   all_re… #…893  31s  94%",
        "   2 ■ blocked   all_re… #…893  31s  94%",
    ]


def test_wide_terminals_show_host_phases_memory_and_pid():
    unknown = absent(builders.healthy())
    titles = [column.key for column in rank_table(120, 8, 7, {*unknown, "lane"}).fields]

    assert titles == [
        "rank", "state", "host", "iteration", "step", "now", "for", "comm",
        "phases", "loader", "cpu", "rss", "pid", "heard",
    ]  # fmt: skip


def test_a_job_with_parallel_groups_and_a_trainer_shows_each_ranks_place_and_progress():
    snapshot, axes = builders.healthy(4), (Axis("pp", 2), Axis("tp", 2))
    training = TrainingProgress("hf-trainer", step=120, total_steps=1000, phase="train")
    saving = TrainingProgress("hf-trainer", step=120, total_steps=1000, phase="checkpoint")
    ranks = tuple(
        replace(
            rank,
            comm={"coordinates": (("pp", rank.rank // 2, 2), ("tp", rank.rank % 2, 2))},
            progress={"training": training if rank.rank else saving},
        )
        for rank in snapshot.ranks
    )
    known = replace(snapshot, ranks=ranks, axes=axes, progress=training)

    lines = lines_of(status_text(known, builders.calm(known), 150))

    assert "PLACE" in lines[-5]
    assert "PROGRESS" in lines[-5]
    alike = tuple(replace(rank, progress={"training": training}) for rank in ranks)
    # What all ranks share is said once.
    assert "PROGRESS" not in status_text(replace(known, ranks=alike), builders.calm(known), 150)
    assert "pp0 tp0" in lines[-4]
    assert "12% checkpoint" in lines[-4]
    assert "pp1 tp1" in lines[-1]
    assert "12% train" in lines[-1]
    assert by_column(known, "place", descending=True) == [3, 2, 1, 0]


def test_wide_characters_in_a_host_name_keep_the_columns_in_line():
    """A cluster whose nodes are named in Japanese."""
    snapshot = builders.healthy(2)
    ranks = (
        replace(snapshot.ranks[0], hello=builders.hello(0, 2, WIDE_HOST)),
        replace(snapshot.ranks[1], hello=builders.hello(1, 2, "node1")),
    )
    lines = lines_of(status_text(replace(snapshot, ranks=ranks), builders.calm(snapshot), 130))

    assert {cell_width(line) for line in lines[-2:]} == {cell_width(lines[-3])}
    assert WIDE_HOST in lines[-2]


def test_what_is_not_measured_is_a_dash_and_not_a_zero():
    bare = replace(builders.healthy(1), ranks=(RankFacts(0, State.RUNNING),), groups=(), hosts=())

    assert lines_of(status_text(bare, builders.calm(bare), 80))[-1] == (
        "   0 · running        -       - starting                 -    - -        -     -"
    )


PICTURES = st.sampled_from(
    [
        builders.hang(),
        builders.hang(512, 300),
        builders.starting_up(),
        builders.ended(),
        (builders.healthy(), builders.calm(builders.healthy())),
    ]
)


@settings(deadline=None, max_examples=60)
@given(PICTURES, st.integers(40, 250))
def test_nothing_is_wider_than_the_terminal(picture, width):
    texts = (status_text(*picture, width), diagnose_text(*picture, width))

    assert all(cell_width(line) <= width for text in texts for line in text.split("\n"))


@settings(deadline=None, max_examples=60)
@given(PICTURES, st.integers(40, 250), st.integers(1, 12), st.booleans())
def test_the_banner_keeps_to_its_lines_and_columns(picture, width, most, frozen):
    snapshot, verdict = picture
    contact = ContactShown("relay not heard for 8 s, trying again", 8.0, 12.0 if frozen else None)
    lines = banner_lines(
        replace(snapshot, notes=("3 records were lost", "1 garbled")),
        verdict,
        width,
        contact=contact,
        most=most,
        brief=True,
    )

    assert all(line_width(line) <= width for line in lines)
    # Header, contact and how the job ended are always printed.
    assert len(lines) <= max(most, 5)


@given(st.integers(20, 250), st.integers(0, 65_536), st.integers(0, 60))
def test_a_row_fits_any_terminal_that_has_room_for_the_least(width, world_size, host_width):
    shape = rank_table(width, world_size, host_width)

    assert shape.total <= max(width, 30)


def test_the_sentence_outlives_the_evidence_where_lines_are_few():
    snapshot, verdict = builders.hang()
    lines = [plain(line) for line in banner_lines(snapshot, verdict, 80, most=4)]

    assert lines[1:] == [
        "✖ rank 5 has been in the DataLoader (data.py:40 load_image) for 31 s;",
        "  ranks 0-4,6,7 wait for it in all_reduce #74893 of default_pg",
        "  → check the file server of /data; the process group times out in 29 min 29 s",
    ]


def test_on_a_small_terminal_the_sentence_stays_whole_and_the_advice_is_cut():
    snapshot, verdict = builders.hang()
    lines = [plain(line) for line in banner_lines(snapshot, verdict, 60, most=5)]

    assert lines[1:] == [
        "✖ rank 5 has been in the DataLoader (data.py:40 load_image)",
        "  for 31 s; ranks 0-4,6,7 wait for it in all_reduce #74893",
        "  of default_pg",
        "  → check the file server of /data; the process group time…",
    ]


def test_lost_contact_is_reported_with_the_age_of_what_is_shown():
    snapshot = builders.healthy()
    contact = ContactShown("relay not heard for 8 s, trying again", 8.0)
    lines = [
        plain(line) for line in banner_lines(snapshot, builders.calm(snapshot), 80, contact=contact)
    ]

    assert lines[0].endswith("silent for 8 s")
    assert lines[1] == "relay not heard for 8 s, trying again"


def test_a_diagnosis_is_the_findings_with_evidence_and_advice():
    assert diagnose_text(*builders.hang(), 80) == (
        "train-4730  8/8 ranks  1 host  gloo      iter 12,482  NO PROGRESS 31 s  22:13:20\n"
        "\n"
        "✖ critical: loader-stuck, for 31 s\n"
        "  rank 5 has been in the DataLoader (data.py:40 load_image) for 31 s;\n"
        "  ranks 0-4,6,7 wait for it in all_reduce #74893 of default_pg\n"
        "  ranks: 5\n"
        "  waiting: 0-4,6,7\n"
        "  · worker pid 4811 must deliver the next batch: state D, nfs_wait\n"
        "  · default_pg: ranks 0-4,6,7 at #74893, rank 5 at #74892\n"
        "  · rank 5: main.py:12 main, train.py:80 train_step, torch (4 frames),\n"
        "    data.py:40 load_image\n"
        "  → check the file server of /data; the process group times out in 29 min 29 s\n"
    )


def test_a_diagnosis_of_a_healthy_job_is_one_sentence():
    snapshot = builders.healthy()

    assert lines_of(diagnose_text(snapshot, builders.calm(snapshot), 80))[1:] == [
        "ok: 8/8 moving, watched 2 min"
    ]


def test_a_verdict_from_one_host_of_several_says_that_it_is_only_that():
    """A relay without its hub reports `ok` for its own ranks, not for the job."""
    snapshot = replace(
        builders.healthy(8), apart="this host only: hub not reached: looking for the hub"
    )

    assert lines_of(diagnose_text(snapshot, builders.calm(snapshot), 80))[1] == snapshot.apart


def test_a_healthy_job_remembers_what_stood_last_and_only_what_is_over():
    snapshot, verdict = builders.hang()
    timeline = EventLog(POLICY)
    timeline.take(Look(snapshot, verdict))
    stands = timeline.events
    later = replace(builders.healthy(), time_unix_ns=snapshot.time_unix_ns + 10 * SECOND)
    timeline.take(Look(later, builders.calm(later)))

    def calm(entries, shown=later, width=100):
        return [
            plain(line)
            for line in banner_lines(shown, builders.calm(shown), width, past=entries)[1:]
        ]

    began = units.clock(snapshot.time_unix_ns - 31 * SECOND)
    last = f"last: loader-stuck rank 5, {began}, stood 41 s; 6: events"
    assert calm(timeline.events) == [f"ok: 8/8 moving, watched 2 min · {last}"]
    assert calm(timeline.events, width=60) == [
        "ok: 8/8 moving, watched 2 min · last: loader-stuck rank 5,…"
    ]
    assert calm(stands) == ["ok: 8/8 moving, watched 2 min"]
    # A past moment knows nothing of what came later.
    assert calm(timeline.events, replace(later, time_unix_ns=NOW)) == calm(stands)


def test_plain_text_needs_no_terminal_library():
    """`ddtop status` in a cron job must start fast."""
    probe = (
        "import sys, ddtop.present.plain, ddtop.present.documents, ddtop.follow.look; "
        "print([name for name in ('textual', 'rich', 'zmq', 'torch') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "[]"


def two_causes():
    snapshot, verdict = builders.hang(3, culprit=1)
    stopped = replace(
        verdict.findings[0],
        kind="rank-stopped",
        ranks=(0,),
        victims=(),
        summary="rank 0 has been stopped (SIGSTOP or Ctrl-Z) for 12 s",
    )
    return snapshot, replace(verdict, findings=(*verdict.findings, stopped))


def test_the_banner_names_a_second_cause_in_one_line():
    lines = lines_of(status_text(*two_causes(), 80))

    assert "+1 more: ✖ rank 0 has been stopped (SIGSTOP or Ctrl-Z) for 12 s" in lines


@pytest.mark.parametrize("most", [3, 4, 6, 10])
@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_second_cause_is_told_of_in_every_size(most, width):
    lines = banner_lines(*two_causes(), width, most=most, brief=True)

    assert len(lines) <= most
    assert any("1 more" in plain(line) for line in lines) or most < 4


def test_on_the_screen_the_banner_leaves_evidence_and_rules_to_the_page_why():
    snapshot, verdict = builders.hang()
    worst = replace(
        verdict.findings[0],
        evidence=("rank 5 (pid 4805): state D, wchan nfs_wait, 2 children",),
        advice="look at train.py:7; every rank must make the same calls; the process group times"
        " out in 9 min",
        said=Said(
            verdict.findings[0].summary,
            advice="look at train.py:7",
            rule="every rank must make the same calls",
            countdown="the process group times out in 9 min",
        ),
    )
    verdict = replace(verdict, findings=(worst,))

    banner = " ".join(plain(line) for line in banner_lines(snapshot, verdict, 120, brief=True))
    assert "rank 5 has been in the DataLoader" in banner
    assert "→ look at train.py:7; times out in 9 min" in banner
    assert "wchan" not in banner
    status = " ".join(plain(line) for line in banner_lines(snapshot, verdict, 120))
    assert "wchan nfs_wait, 2 children" in status
    assert "every rank must make the same calls" in status


def test_an_advice_that_is_only_a_rule_stays_in_the_banner():
    snapshot, verdict = builders.hang()
    rule = "every rank must make the same collective calls"
    worst = replace(verdict.findings[0], advice=rule, said=Said("", rule=rule))
    verdict = replace(verdict, findings=(worst,))
    banner = [plain(line) for line in banner_lines(snapshot, verdict, 120, brief=True)]
    assert any("→ every rank must make the same collective calls" in line for line in banner)


LONG = "prefetch_and_augment_the_next_shard_of_the_interleaved_multimodal_dataset_from_storage"


def with_long_names():
    snapshot, verdict = builders.hang()
    sentence = (
        f"rank 5 has been reading a pipe in {LONG} (pretrain_{LONG}.py:57) for 41 s: no other"
        " process writes that pipe; ranks 0-4,6,7 wait for it in all_reduce #74893 of default_pg"
    )
    step = f"start the process that writes that pipe; ddtop stacks {LONG}"
    worst = replace(
        verdict.findings[0],
        summary=sentence,
        advice=step,
        said=Said(sentence, advice=step, countdown="times out in 29 min"),
    )
    return snapshot, replace(verdict, findings=(worst,))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_long_names_are_cut_in_their_middle_and_no_sentence_at_its_end(width):
    snapshot, verdict = with_long_names()
    lines = banner_lines(snapshot, verdict, width, most=15, usual=5, brief=True)
    told = " ".join(" ".join(plain(line) for line in lines[1:]).split())

    assert told.endswith("times out in 29 min") or "times out in 29 min e: why" in told
    assert "no other process writes that pipe" in told
    assert "wait for it in all_reduce #74893 of default_pg" in told
    assert LONG not in told
    assert "…" in told
    assert ".py:57)" in told


def test_the_evidence_and_the_notes_take_no_line_from_what_is_below():
    snapshot, verdict = with_long_names()
    snapshot = replace(snapshot, notes=("3 records were lost",))
    least = banner_lines(snapshot, verdict, 80, most=15, usual=5, brief=True)
    usual = banner_lines(snapshot, verdict, 80, most=15, usual=15, brief=True)

    assert "note:" not in "".join(map(plain, least))
    assert "note: 3 records were lost" in "".join(map(plain, usual))


def test_the_name_of_a_job_keeps_its_end():
    snapshot = replace(builders.healthy(), job="pretrain-7b-a-very-long-name-of-a-run-0042")

    assert plain(header_line(snapshot, 80)).startswith("pretrain-7b-…of-a-run-0042  8/8 ranks")
