"""Reads README.md, docs/ and the docstrings of examples/: their code, and the commands in it."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = ("srun", "mpirun", "torchrun", "jsrun", "sbatch")
PROMPT = re.compile(r"^(\$|[\w-]+\$) ")
ASSIGNMENT = re.compile(r"^[A-Z_]+=")
BLOCK = re.compile(r" {4,}\S")
SPAN = re.compile(r"``(.+?)``|`([^`]+)`")
END_OF_COMMAND = ("|", "||", "&&", ";", ">", "<", "&")


@dataclass(frozen=True)
class Page:
    """A text that people read."""

    path: Path
    text: str
    is_markdown: bool = True

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT)) if self.path.is_relative_to(ROOT) else str(self.path)


@dataclass(frozen=True)
class Code:
    """A line of a block of code, or a span between backticks in a sentence."""

    line: int
    text: str
    in_block: bool


@dataclass(frozen=True)
class Command:
    """A command line with `unisono` in it."""

    line: int
    text: str
    launcher: tuple[str, ...]
    """The words before `unisono`: srun, mpirun, ..."""
    environment: tuple[str, ...]
    words: tuple[str, ...]
    """The verb, and the words after it."""
    in_block: bool
    """A whole command to type; else a mention in a sentence or a table."""

    @property
    def verb(self) -> str:
        return self.words[0]


def pages() -> list[Page]:
    """Local: README.md, CONTRIBUTING.md, docs/ but for the results, and the docstrings of examples."""
    docs = ROOT / "docs"
    texts = [file for file in sorted(docs.rglob("*.md")) if not file.is_relative_to(docs / "results")]
    found = [Page(file, file.read_text()) for file in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *texts)]
    for file in sorted((ROOT / "examples").rglob("*.py")):
        if docstring := ast.get_docstring(ast.parse(file.read_text())):
            found.append(Page(file, docstring, is_markdown=False))
    return found


def how_tos() -> list[Page]:
    """Local: the pages whose commands a reader types: README, how-tos, concepts and algorithms."""
    folders = ("docs/how-to", "docs/algorithms")
    chosen = ("README.md", "docs/concepts-asynchronous.md", "docs/concepts-invariance.md")
    return [page for page in pages() if page.name in chosen or page.name.startswith(folders)]


def code(page: Page) -> Iterator[Code]:
    """Pure: every line of every block, lines that end with a backslash joined, and every span between backticks."""
    fenced, paragraph, begin, joined = False, "", 0, ""
    for line, text in enumerate([*page.text.splitlines(), ""], 1):
        is_fence = text.lstrip().startswith("```")
        in_block = not is_fence and (fenced or bool(BLOCK.match(text)) or (not page.is_markdown and bool(_command_words(text))))
        if is_fence:
            fenced = not fenced
        elif in_block:
            joined += text.strip()
            if joined.endswith("\\"):
                joined = joined.removesuffix("\\")
            else:
                yield Code(line, joined, True)
                joined = ""
        elif text.strip() and not text.startswith("|"):
            paragraph, begin = f"{paragraph} {text.strip()}", begin or line
            continue
        yield from _spans(begin, paragraph)
        paragraph, begin = "", 0
        if not in_block and text.startswith("|"):
            yield from _spans(line, text)


def _spans(line: int, text: str) -> Iterator[Code]:
    for double, single in SPAN.findall(text):
        yield Code(line, (double or single).strip(), False)


def commands(page: Page) -> Iterator[Command]:
    """Pure: the commands that call `unisono`, and those that it starts itself (`unisono run -m unisono ...`)."""
    for piece in code(page):
        words = _command_words(piece.text)
        if words is None:
            continue
        environment, launcher, ours = words
        yield Command(piece.line, piece.text, tuple(launcher), tuple(environment), tuple(ours), piece.in_block)
        if "-m" in ours[1:] and ours[ours.index("-m") + 1 :][:1] == ["unisono"]:
            inner = ours[ours.index("-m") + 2 :]
            yield Command(
                piece.line, piece.text, (*launcher, "unisono", *ours[: ours.index("-m")]), (), tuple(inner), piece.in_block
            )


def _command_words(text: str) -> tuple[list[str], list[str], list[str]] | None:
    """Pure: the variables, the launcher and the words after `unisono` of a command; None for any other text."""
    text = re.sub(r"(^|\s+)#.*$", "", PROMPT.sub("", text.strip()))
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:  # a sentence with an apostrophe
        return None
    words = words[: next((place for place, word in enumerate(words) if word in END_OF_COMMAND), len(words))]
    environment = [word for word in words if ASSIGNMENT.match(word)] if words and ASSIGNMENT.match(words[0]) else []
    words = words[len(environment) :]
    if not words or "unisono" not in words or not (words[0] == "unisono" or words[0] in LAUNCHERS):
        return None
    place = words.index("unisono")
    ours = words[place + 1 :]
    if not ours or not re.fullmatch(r"[a-z]+", ours[0]) or re.search(r"unisono {2,}", text):  # a column of a table that is printed
        return None
    return environment, words[:place], ours


def given(words: Sequence[str], option: str) -> str | None:
    """Pure: the value of an option of a command."""
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        if word == option:
            return after
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None
