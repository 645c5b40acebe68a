"""Code and sentences of others have no place here: no file holds a run of more than five lines of a lecture."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LECTURES = ROOT.parent / "shared" / "reference" / "lectures"
MOST_LINES = 5
"""That may follow each other in a file as they do in a lecture."""
FEWEST_LETTERS = 3
"""A line with fewer letters and digits, a bracket say, is not counted."""


def lines_of(text: str) -> list[tuple[int, str]]:
    """Pure: number and letters of each line that says something. Spaces, quotes, marks of lists and comments make no difference,
    nor do underscores, some of which the texts of the lectures have lost."""
    stripped = re.sub(r"[^\w\n]+|_+", "", text).lower().split("\n")
    return [(number, letters) for number, letters in enumerate(stripped, 1) if len(letters) >= FEWEST_LETTERS]


def windows(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Pure: the line at which each run of too many lines begins, and the run."""
    lines = lines_of(text)
    for start in range(len(lines) - MOST_LINES):
        part = lines[start : start + MOST_LINES + 1]
        yield part[0][0], tuple(letters for _, letters in part)


def known_runs(theirs: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    """Pure: each run of too many lines, and the text it is from."""
    return {run: name for name, text in theirs.items() for _, run in windows(text)}


def shared_runs(ours: str, known: Mapping[tuple[str, ...], str]) -> list[str]:
    """Pure: where our text repeats a known run."""
    return [f"line {number}: {known[run]}" for number, run in windows(ours) if run in known]


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Local: name and text of each file of the repository that is a text, also of those that are not committed yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    for name in filter(None, done.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            try:
                yield name, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # pictures, arrays


def test_no_file_repeats_a_lecture() -> None:
    theirs = {path.name: path.read_text() for path in sorted(LECTURES.glob("*.txt"))}
    if not theirs:
        pytest.skip(f"the lectures are not at hand; put their texts into {LECTURES} to compare them with every file")
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout, which would say what belongs to the repository; run it in a clone")
    texts, known = list(tracked_texts()), known_runs(theirs)
    assert len(texts) > 500
    found = {name: runs for name, text in texts if (runs := shared_runs(text, known))}
    assert found == {}, "write it in words and code of our own:\n" + "\n".join(f"{name}: {runs}" for name, runs in found.items())


POEM = "A first line\nand a second\n)\n\nwith a_third one\nthe fourth\nfifth 'quoted' line\nand the sixth\nthen the end\n"
KNOWN = known_runs({"poem": POEM})


def test_a_run_of_six_lines_is_found() -> None:
    quoted = '- A first   line\n    and a second\nwith a third one\n# the fourth\nfifth "quoted" line\n}\n\nand the sixth,\n'
    ours = f"# Before.\n{quoted}after\n"
    assert shared_runs(ours, known_runs({"other": "nothing of it\n" * 9, "poem": POEM})) == ["line 2: poem"]


def test_five_lines_and_lines_in_another_order_are_not_found() -> None:
    five = "\n".join(POEM.splitlines()[:7])
    assert len(lines_of(five)) == MOST_LINES
    assert shared_runs(five, KNOWN) == []
    assert shared_runs(f"{five}\na line between\nand the sixth\n", KNOWN) == []
    assert shared_runs("\n".join(reversed(POEM.splitlines())), KNOWN) == []


def test_a_text_repeats_itself() -> None:
    assert [found.split(":")[0] for found in shared_runs(POEM, KNOWN)] == ["line 1", "line 2"]
