"""The documents: names in the text exist, links lead somewhere, and every page can be reached."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generate import DOCS, PAGES, decisions, environment, json_schema, offline, results
from tests import shell_blocks

ROOT = DOCS.parent
PACKAGE = ROOT / "ddtop"
NAMES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "tools/README.md",
    "zoo/README.md",
)
TEXTS = [ROOT / name for name in NAMES]
TEXTS += sorted(DOCS.rglob("*.md"))
WITH_LINKS = [*TEXTS, ROOT / "CHANGELOG.md", *sorted((ROOT / "contrib").rglob("*.md"))]
PAGES_WITH_SHELL = [
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "contrib").rglob("*.md"), *sorted(DOCS.rglob("*.md")))
    if any(shell_blocks.blocks(path))
]
ARCHITECTURE_LINES_MAX, COLUMNS_MAX = 250, 100
DECISION_WORDS_MAX, EXPLANATION_WORDS_MAX = 120, 1500
_VARIABLE = re.compile(r"\bDDTOP(?:_[A-Z]+)*\b")
_PICTURE = re.compile(r"!\[[^]]*\]\(([^)]+)\)")
_LINK = re.compile(r"(?<![`\w])\[[^]]+\]\(([^)#\s]+)")
_FILE = re.compile(r"`((?:ddtop|tests|tools|docs)/[\w/.-]+\.\w+)(?::\d+)?`")


@pytest.mark.parametrize("path", WITH_LINKS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_somewhere(path):
    """The site has the generated pages; a reader of the repository has not, so no page beside
    docs/ leads to one.
    """
    found = _LINK.findall(path.read_text(encoding="utf-8"))
    ends = {name: (path.parent / name).resolve() for name in found if ":" not in name}
    made = {DOCS / name for name in PAGES} if DOCS in path.parents else set()

    assert [name for name, end in ends.items() if not end.exists() and end not in made] == []


def test_a_generated_page_lies_in_no_file():
    """The site would have it twice, and one of the two would soon be old."""
    assert [name for name in PAGES if (DOCS / name).exists()] == []


@pytest.mark.parametrize("name", results.PAGES_WITH_TABLE)
def test_the_table_of_a_page_is_that_of_its_data(name):
    """After a new measurement `python -m docs.generate` writes it."""
    page = (DOCS / "explanation" / f"{name}.md").read_text(encoding="utf-8")

    assert page == results.with_table(name, page)
    assert f"| {results.read(name)[0].rows[0][0]} |" in page


@pytest.mark.parametrize("name", results.PAGES_WITH_TABLE)
def test_every_measurement_has_a_day_and_cells_for_its_columns(name):
    measured = results.read(name)

    assert [
        one.what for one in measured if not re.fullmatch(r"20\d\d-\d\d(-\d\d)?", one.date)
    ] == []
    assert [one.what for one in measured for row in one.rows if len(row) != len(one.columns)] == []
    assert [one.what for one in measured if not one.rows and not one.notes] == []


@pytest.mark.parametrize("name", [*results.PAGES_WITH_TABLE, "audit", "hostile", "security"])
def test_an_explanation_is_read_in_ten_minutes(name):
    """The rest stands in the data, in the tests or in git."""
    text = (DOCS / "explanation" / f"{name}.md").read_text(encoding="utf-8")

    assert len(text.split()) <= EXPLANATION_WORDS_MAX


def test_the_generator_needs_neither_torch_nor_the_screen():
    """The documents are built on machines without a training and without a screen."""
    code = (
        "import sys, docs.generate as g; [made() for made in g.PAGES.values()]; print({'torch',"
        " 'textual'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "set()"


def test_every_variable_that_the_code_names_is_in_the_table():
    """A new variable is easily added without a line in the table."""
    named = {name for path in PACKAGE.rglob("*.py") for name in _VARIABLE.findall(path.read_text())}
    named |= set(_VARIABLE.findall((PACKAGE / "agent" / "ddtop.pth").read_text()))

    assert {one.name for one in environment.VARIABLES} == named


def test_json_has_the_described_keys_and_types():
    """Scripts rely on the table: a key that is missing there is not promised, and a key that is
    there must exist.
    """
    seen, found = set(), set()
    for schema, document in json_schema.documents():
        seen.add(schema)
        found |= {(schema, text) for text in json_schema.complaints(schema, document)}

    assert found == set()
    assert seen == set(json_schema.KEYS) - {json_schema.JOBS_SCHEMA, json_schema.ATTEMPTS_SCHEMA}


def test_a_list_of_jobs_has_the_described_keys_and_types():
    """The document is made from job files, which simulated jobs do not have."""
    from ddtop import registry
    from ddtop.cli.job_list import json_of, rows_of

    entry = registry.JobEntry(
        registry.SCHEMA, "train", "r1", "node0", "feed", 1, 1, "", 1, "", "train.py", 8, 8, 1, 1
    )
    document = json_of(rows_of([entry]))

    assert json_schema.complaints(json_schema.JOBS_SCHEMA, document) == []
    assert len(document["jobs"]) == 1


def test_a_key_that_nobody_describes_is_a_complaint():
    document = {"schema": json_schema.JOBS_SCHEMA, "jobs": [], "colour": "red"}

    assert json_schema.complaints(json_schema.JOBS_SCHEMA, document) == ["colour is not described"]


def test_a_value_of_another_type_is_a_complaint():
    assert json_schema.complaints(json_schema.JOBS_SCHEMA, {"schema": 1, "jobs": []}) == [
        "schema is 1, described as string"
    ]


def test_every_decision_page_is_in_the_index_and_has_a_room_and_a_number_of_its_own():
    pages = decisions.read(DOCS / "decisions")
    index = PAGES["decisions/index.md"]()

    assert [one.file for one in pages if f"({one.file})" not in index or not one.room] == []
    assert len({one.number for one in pages}) == len(pages)


@pytest.mark.parametrize(
    "path", sorted((DOCS / "decisions").glob("[0-9]*.md")), ids=lambda path: path.stem
)
def test_a_decision_page_is_short_and_has_the_known_sections(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    sections = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    text = [line for line in lines if not line.startswith(("#", "Room:"))]

    assert sections == [name for name in decisions.SECTIONS if name in sections]
    assert {"Decision", "Why"} <= set(sections)
    assert sum(len(line.removeprefix("- ").split()) for line in text) <= DECISION_WORDS_MAX
    assert [line for line in lines if len(line) > COLUMNS_MAX] == []


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_file_that_a_page_names_exists(path):
    """A link to a file that was moved leads its reader nowhere."""
    named = {
        found for found in _FILE.findall(path.read_text(encoding="utf-8")) if "NNN" not in found
    }

    assert {name for name in named if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_picture_that_a_page_shows_exists(path):
    """A reader on GitHub gets the path as it stands in the page; the site has the same paths."""
    shown = _PICTURE.findall(path.read_text(encoding="utf-8"))

    assert [name for name in shown if not (path.parent / name).is_file()] == []


@pytest.mark.parametrize(
    "path", PAGES_WITH_SHELL, ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_every_shell_block_of_a_page_can_be_typed(path):
    """Readers copy it, and a line break that is lost makes one command of four."""
    wrong = [
        f"{path.name}:{line}: {text}"
        for line, block in shell_blocks.blocks(path)
        for text in shell_blocks.complaints(block)
    ]

    assert wrong == []


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("ddtop status --jsn\n", "--jsn"),
        ("ddtop stauts\n", "stauts"),
        ("DDTOP=1 ddtop watch JOB --for\n", "--for"),
        ("srun -N 2 ddtop check -- torchrun --ranks 4 train.py\n", "--ranks"),
        ("wait $job && pip instal ddtop\n", "instal"),
        ("cd docs\n", "cd: no command"),
        ("pip install -c constraints.txt pre-commit .venv/bin/pre-commit install\n", ".venv/bin"),
        ("pip install -e '.[tests]'\n", "tests"),
        ("python -m zoo --suffle-names 7\n", "--suffle-names"),
        ("python -m tools.zo\n", "no such module"),
        ("pytest -q tests/modle\n", "tests/modle"),
        ("bash .ci/runn\n", ".ci/runn"),
        ("sh -c 'ddtop stauts'\n", "stauts"),
        ("kubectl create --from=$(opnssl rand)\n", "opnssl"),
        ("ddtop status 'JOB\n", "unexpected EOF"),
        ("ddtop jobs # a comment\nddtop jbs  # of the next line\n", "jbs"),
    ],
)
def test_what_could_not_be_typed_is_found(block, said):
    (text,) = shell_blocks.complaints(block)

    assert said in text


def test_what_can_be_typed_is_taken():
    block = """\
DDTOP=1 timeout 900 torchrun --nproc-per-node 4 train.py &
job=$!
ddtop watch ci --json --on-critical "ddtop report ci" > events.jsonl   # the report
ddtop stacks --rank 0,3-5 && ddtop --sim 64; wait $job && code=0 || exit $code
sudo $(command -v ddtop) diagnose --pid 4711
"""

    assert shell_blocks.complaints(block) == []


def test_pictures_load_nothing_from_elsewhere():
    """A reader behind a firewall would wait for a font that never comes."""
    remote = re.compile(r"url\(\"?https?:|@import|<script")

    assert [
        path.name
        for path in (ROOT / "screenshots").glob("*.svg")
        if remote.search(path.read_text())
    ] == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "a.html",
            '<script src="https://cdn.example/a.js"></script>',
            ["https://cdn.example/a.js"],
        ),
        (
            "a.html",
            '<link rel="stylesheet" href="//fonts.example/a.css">',
            ["//fonts.example/a.css"],
        ),
        (
            "a.css",
            "@font-face { src: url(https://fonts.example/a.woff2) }",
            ["https://fonts.example/a.woff2"],
        ),
        ("a.html", '<a href="https://example.org">a link</a> <img src="../a.svg">', []),
        ("a.css", "body { background: url(../a.png) }", []),
    ],
)
def test_what_a_site_loads_from_elsewhere_is_found(name, text, expected):
    """A link that a person follows is not loaded with the page."""
    assert offline.remote_of(name, text) == expected


def test_the_architecture_is_read_in_ten_minutes():
    lines = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()

    assert len(lines) <= ARCHITECTURE_LINES_MAX
    assert [line for line in lines if len(line) > COLUMNS_MAX] == []


def test_each_trip_through_the_code_has_at_most_twelve_stations():
    """Each stage of the walk begins with its file."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    trips = {
        head: re.findall(r"^\d+\. `(ddtop/[\w/]+\.py)`", body, re.MULTILINE)
        for head, body in re.findall(r"^## (The trip of .+|From .+)\n([^#]+)", text, re.MULTILINE)
    }

    assert len(trips) == 4
    assert {head: len(files) for head, files in trips.items() if not 5 < len(files) <= 12} == {}
    assert [one for files in trips.values() for one in files if not (ROOT / one).is_file()] == []


def test_a_decision_page_of_an_unknown_room_is_refused(tmp_path: Path):
    (tmp_path / "001-a.md").write_text("# 001. A\n\nRoom: attic\n")

    with pytest.raises(decisions.PageError, match="attic"):
        decisions.read(tmp_path)


def test_the_readme_says_how_often_it_is_right_at_first_sight_as_the_data_does():
    rows = json.loads((ROOT / "docs/results/proof.json").read_text())[0]["rows"]
    (found,) = [row[1] for row in rows if row[0].endswith("faults at first sight")]
    numbers = re.findall(r"\d+", found)
    readme = " ".join((ROOT / "README.md").read_text().split())

    assert (
        f"Of {numbers[1]} faults in programs that it had not seen it named kind and ranks of"
        f" {numbers[0]}, and cause and cure of {numbers[2]}" in readme
    )
