"""The report as a page: what it has, and that nothing in it runs or asks anybody."""

from __future__ import annotations

import json
from html.parser import HTMLParser

from ddtop.follow.history import Numbers, Point, empty_memory
from ddtop.follow.lanes import ASLEEP, COLLECTIVE, WORK, cell_of
from ddtop.model.stacks import merge
from ddtop.present.html import report_html
from ddtop.wire.records import StackFrame, Stacks, ThreadStack
from tests.hostile.names import BAD
from tests.jobs import FakeJob
from tests.present.materials import hang, material
from tests.ui.builders import NOW, SECOND
from tests.ui.changed import replace

TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "h1",
    "h2",
    "p",
    "section",
    "ul",
    "li",
    "pre",
    "details",
    "summary",
    "div",
    "span",
    "svg",
    "path",
    "i",
    "b",
}
ATTRIBUTES = {
    "lang",
    "charset",
    "http-equiv",
    "content",
    "name",
    "class",
    "open",
    "id",
    "viewbox",
    "preserveaspectratio",
    "d",
}
EVIL = f"<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{BAD}</pre><b onload=1>"


class Parsed(HTMLParser):
    """The tags, attributes and texts of a page; `opened`: the summaries that are unfolded."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.texts, self.opened = set(), set(), [], []
        self._path, self._open = [], False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self._path.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append((self._path[-1] if self._path else ("", {}), data))

    @property
    def text(self):
        return "\n".join(text for (tag, _), text in self.texts if tag != "style")


def stacks(rank, function, file="/home/ada/train.py"):
    frame = StackFrame(function, file, 40)
    return Stacks(
        "r1", rank, 4800 + rank, NOW, "agent", (ThreadStack((frame,), "MainThread", main=True),)
    )


def with_stacks(found):
    parted = [stacks(rank, "fetch" if rank == 2 else "all_reduce") for rank in range(4)]
    return replace(found, merged=merge(parted, [2]))


def with_lanes(found):
    """A minute of two ranks, of which rank 2 sleeps and rank 0 waits since 20 seconds."""
    now = found.snapshot.time_unix_ns
    lanes = {}
    for rank, kind in ((2, ASLEEP), (0, COLLECTIVE)):
        memory = lanes[rank] = empty_memory()
        for second in range(60):
            memory.seconds.append(now // SECOND - 59 + second)
            memory.lane.append(cell_of(WORK, 1.0) if second < 40 else cell_of(kind, 0.0))
    points = tuple(
        Point(now - back * SECOND, Numbers(iterations_per_s=8.0)) for back in range(60, 0, -2)
    )
    return replace(found, lanes=lanes, points=points, until_unix_ns=now)


def test_the_page_says_what_is_wrong_what_to_do_and_has_all_parts_of_the_report():
    found = with_stacks(material(hang(), happened=((NOW, "something happened"),)))
    page = Parsed(report_html(found))

    finding = found.verdict.findings[0]
    for text in (
        finding.summary,
        finding.advice,
        finding.evidence[0],
        "something happened",
        "default_pg (gloo)",
    ):
        assert text[:60] in page.text
    assert "Verdict" not in page.text.splitlines()
    assert page.tags <= TAGS
    assert page.attributes <= ATTRIBUTES


def test_the_stack_that_differs_is_unfolded_and_the_others_are_not():
    page = report_html(with_stacks(material(hang())))

    opened = [part.partition("</summary>")[0] for part in page.split("<details open><summary>")[1:]]
    assert "1 rank [2]" in opened[0]
    assert not any("3 ranks [0,1,3]" in title for title in opened)
    assert "3 ranks [0,1,3]" in page


def test_the_lanes_have_the_moment_of_the_finding_and_name_the_culprit():
    page = report_html(with_lanes(material(hang())))

    assert '<div class="row culprit"><span>rank 2</span>' in page
    assert page.count('class="began"') == 3
    assert "speed 8.0 it/s, from 0 to 8.0 it/s" in page
    assert page.count("<svg") == 3


def test_a_lane_has_work_below_and_the_wait_above():
    page = report_html(with_lanes(material(hang())))

    assert 'class="still" d="M40 0h1v8h-1zM41 0h1v8h-1z' in page
    assert 'class="wait" d="M40 0h1v8h-1zM41 0h1v8h-1z' in page
    assert page.count("M39 0h1V8h-1z") == 2


def test_without_a_recording_there_are_no_pictures():
    assert "<svg" not in report_html(material(hang()))


def test_the_facts_are_in_it_for_programs():
    found = material(hang())
    page = Parsed(report_html(found))

    inside = next(text for (tag, given), text in page.texts if given.get("id") == "json")
    assert json.loads(inside)["findings"][0]["kind"] == "not-in-collective"


def test_the_browser_is_told_to_run_and_fetch_nothing_before_it_reads_anything_else():
    page = report_html(material(FakeJob(4)))
    head = page.partition("<head>")[2]

    assert head.startswith(
        '<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy"'
        " content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    )
    for word in ("<script", "javascript:", "http://", "https://", "@import", "url("):
        assert word not in page


def test_a_hostile_job_gets_no_mark_up_into_the_page():
    """Names of functions, files, hosts and errors are what the job says."""
    job = FakeJob(4).trains(10)
    job.ranks[2].stands_at(EVIL, f"/home/{EVIL}.py", 40)
    job.others_wait(2)
    job.passes(12)
    found = with_lanes(material(job, happened=((NOW, EVIL),), stacks_note=EVIL))
    verdict = replace(found.verdict, calm=EVIL, unheard=EVIL)
    snapshot = replace(found.snapshot, job=EVIL, notes=(EVIL,))
    text = report_html(
        replace(
            found,
            verdict=verdict,
            snapshot=snapshot,
            merged=merge([stacks(0, EVIL, EVIL), stacks(1, "b")]),
            seen=EVIL,
        )
    )
    page = Parsed(text)

    assert page.tags <= TAGS
    assert page.attributes <= ATTRIBUTES
    assert "<script>alert(1)</script>" in page.text
    assert not any(ord(one) < 32 and one != "\n" for one in text)
    assert "\u202e" not in text


def test_a_secret_and_the_home_folder_are_not_in_it():
    secret = "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"
    found = material(hang(), home="/home/ada", happened=((NOW, f"{secret} /home/ada/x"),))
    finding = replace(found.verdict.findings[0], advice=f"look at {secret} in /home/ada/x")
    page = report_html(replace(found, verdict=replace(found.verdict, findings=(finding,))))

    assert "wJalrXUtnFEMI" not in page
    assert "/home/ada/x" not in page
    assert "~/x" in page
