"""The text of a report: complete, bounded, and without secrets."""

from ddtop.diagnosis.finding import CRITICAL, Finding, Verdict
from ddtop.model.stacks import merge
from ddtop.present.report import BYTES_MAX, file_name, redacted, report_text
from ddtop.wire.records import HostState, StackFrame, Stacks, ThreadStack, TrainingProgress
from tests.jobs import FakeJob
from tests.present.materials import hang, material
from tests.ui.builders import NOW, SECOND, hello
from tests.ui.changed import replace


def with_environment(snapshot, **different):
    """All ranks with the environment of the builders, rank 1 with something else."""
    ranks = []
    for rank in snapshot.ranks:
        one = hello(rank.rank)
        environment = {**one.environment, "RANK": str(rank.rank)} | (
            different if rank.rank == 1 else {}
        )
        ranks.append(replace(rank, hello=replace_hello(one, environment)))
    return replace(snapshot, ranks=tuple(ranks))


def replace_hello(one, environment):
    import msgspec

    return msgspec.structs.replace(one, environment=environment)


def section(text, title):
    return text.partition(f"## {title}\n\n````text\n")[2].partition("\n````")[0]


def test_a_report_has_the_verdict_first_and_every_section():
    text = report_text(material(hang(), happened=((NOW, "something happened"),)))

    titles = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert titles == [
        "Verdict",
        "Ranks",
        "Stacks",
        "What happened",
        "Environment",
        "Process groups",
        "ddtop itself",
    ]
    assert text.startswith("# ddtop report: train-47\n")
    assert "critical: not-in-collective" in section(text, "Verdict")
    assert "fetch_labels" in section(text, "Verdict")
    assert section(text, "What happened").endswith("something happened")
    assert "default_pg (gloo): ranks 0-3" in section(text, "Process groups")
    assert text.count("````") % 2 == 0


def test_what_differs_between_ranks_stands_before_what_they_share():
    """One node with a different NCCL_SOCKET_IFNAME is the whole answer, if a person notices it."""
    found = material(FakeJob(4))
    snapshot = with_environment(found.snapshot, NCCL_SOCKET_IFNAME="eth7")

    shown = section(report_text(replace(found, snapshot=snapshot)), "Environment")

    differing, _, common = shown.partition("common to all ranks:")
    assert "NCCL_SOCKET_IFNAME" in differing
    assert "eth7 (rank 1)" in differing
    assert "(not set) (ranks 0,2,3)" in differing
    assert "each rank has its own RANK" in differing
    assert "MASTER_PORT=29500" in common


def test_stacks_are_merged_and_say_how_they_are_less():
    frames = (StackFrame("fetch_labels", "/home/ada/data.py", 40, True),)
    stacks = [
        Stacks("r", rank, 4800 + rank, NOW, "agent", (ThreadStack(frames, main=True),))
        for rank in range(4)
    ]
    found = material(hang(), merged=merge(stacks), stacks_note="one answer did not come within 8 s")

    shown = section(report_text(found), "Stacks")

    assert "note: one answer did not come within 8 s" in shown
    assert "4 ranks asked, 4 answered (4 by agent)" in shown
    assert "data.py:40 fetch_labels" in shown


def test_without_stacks_or_journal_the_report_says_why():
    text = report_text(
        material(
            hang(), stacks_note="no stacks have been taken", timeline_note="no journal: none there"
        )
    )

    assert section(text, "Stacks") == "no stacks have been taken"
    assert section(text, "What happened") == "note: no journal: none there"


def test_what_ddtop_lost_is_reported():
    """A report that hides its own gaps would be trusted too much."""
    found = material(hang(), garbled=3)
    host = HostState("node0", 4, dropped=7, refused=1, relay_pid=99, relay_rss_bytes=1 << 25)
    ranks = tuple(
        replace(rank, agent={"probes_off": ("loader: TypeError",)}) for rank in found.snapshot.ranks
    )

    shown = section(
        report_text(replace(found, snapshot=replace(found.snapshot, hosts=(host,), ranks=ranks))),
        "ddtop itself",
    )

    assert "3 records could not be read" in shown
    assert "7 frames dropped" in shown
    assert "probes off: loader: TypeError (ranks 0-3)" in shown


def test_a_secret_in_a_finding_is_redacted_before_its_line_is_wrapped():
    secret = "hunter2-and-more"
    filler = "word " * 20
    finding = Finding(
        "rank-crashed",
        CRITICAL,
        (1,),
        (),
        NOW - SECOND,
        f"{filler} password = {secret}",
        (f"token: {secret}",),
    )
    found = replace(material(hang()), verdict=Verdict("critical", (finding,), ""), home="/home/ada")

    text = report_text(found)

    assert secret not in text
    assert "hunter2" not in text
    assert "/home/ada" not in text


def test_a_report_on_many_ranks_is_bounded_and_says_what_was_cut():
    job = FakeJob(2).trains(3)
    found = material(job)
    ranks = tuple(replace(found.snapshot.ranks[0], rank=number) for number in range(12_000))
    many = replace(found, snapshot=replace(found.snapshot, ranks=ranks, world_size=12_000))
    happened = tuple((NOW + number, "x" * 400) for number in range(4000))

    text = report_text(replace(many, happened=happened))

    assert len(text.encode()) <= BYTES_MAX
    assert text.count("bytes more)") >= 2
    assert "## ddtop itself" in text


def test_text_that_looks_like_our_fence_does_not_end_it():
    text = report_text(material(hang(), stacks_note="a ```` b"))

    assert text.count("````") == 14


def test_the_file_is_named_by_job_and_time():
    assert file_name("train-47", NOW).startswith("ddtop-report-train-47-2023")
    assert file_name("train-47", NOW).endswith(".md")


def test_how_far_the_training_was_stands_in_the_head():
    job = FakeJob(2)
    job.ranks[0].says["progress"] = TrainingProgress("hf-trainer", 1200, 10_000, loss=2.31)
    job.trains(5)
    text = report_text(material(job))

    assert "- progress: step 1,200 of 10,000, loss 2.31 (source: hf-trainer)" in text


def test_the_home_folder_becomes_a_tilde():
    shown = redacted(
        "/home/ada/train.py /home/adams/x '/home/ada' /data/home/ada.bak", "/home/ada/"
    )

    assert shown == "~/train.py /home/adams/x '~' /data/home/ada.bak"
    assert redacted("/usr/bin", "/") == "/usr/bin"
    assert redacted(shown, "/home/ada") == shown
