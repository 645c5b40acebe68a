"""The results: one index table, and pages of one form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "docs" / "results"
INDEX = RESULTS / "README.md"
PAGES = sorted(file for file in RESULTS.glob("*.md") if file != INDEX)
SECTIONS = ("# How to repeat it\n", "# What was not measured\n")
WITHOUT_PICTURE = {"horovod_programs", "invariance", "invariance_gpu", "kill_fuzz", "programs_of_others", "slurm_chain"}
"""Their tables hold hashes, counts and exit codes."""
MOST_WORDS_OUTSIDE_THE_TABLE = 150


def rows() -> dict[str, list[str]]:
    """Page -> cells of its row: question, answer, bound, holds, date."""
    found = {}
    for line in INDEX.read_text().splitlines():
        if page := re.search(r"\]\((\w+)\.md\)", line):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 5, line
            assert page[1] not in found, f"{page[1]} has two rows"
            found[page[1]] = cells
    return found


def test_the_index_has_a_row_for_every_page() -> None:
    assert set(rows()) == {page.stem for page in PAGES}


def test_the_index_is_no_diary() -> None:
    prose = [line for line in INDEX.read_text().splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= MOST_WORDS_OUTSIDE_THE_TABLE


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_fixed_form(page: Path) -> None:
    """Question, answer, picture, table, how to repeat it, what was not measured, raw data; in this order."""
    text = page.read_text()
    first, answer, *_ = text.split("\n\n")
    assert first.startswith("# ") and first.endswith("?"), first
    assert answer.endswith(".") and "\n" not in answer and not answer.startswith(("|", "#", "!", "**", "-")), answer
    picture = f"]({page.stem}.png)"
    drawn = [] if page.stem in WITHOUT_PICTURE else [picture]
    places = [text.rfind(part) if part.startswith("# ") else text.find(part) for part in (*drawn, "\n| ", *SECTIONS, "Raw data: [")]
    assert -1 not in places and places == sorted(places), dict(zip((*drawn, "table", *SECTIONS, "raw data"), places, strict=True))
    assert (picture in text) == page.with_suffix(".png").exists()
    assert page.with_suffix(".json").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_index_agrees_with_the_page(page: Path) -> None:
    """On the newest date of a measurement, where the page has one, and on whether all bounds hold."""
    text, (_, _, _, holds, date) = page.read_text(), rows()[page.stem]
    dates = re.findall(r"(?:measured|sitting \w+): (\d{4}-\d\d-\d\d)", text)
    assert not dates or date == max(dates)
    counts = [(int(kept), int(asked)) for kept, asked in re.findall(r"(\d+) of (\d+) bounds hold", text)]
    if counts:
        assert holds.startswith("yes") == all(kept == asked for kept, asked in counts)
