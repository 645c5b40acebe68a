"""Reads the tables of a results page."""

from __future__ import annotations


def rows_of(text: str) -> list[list[str]]:
    """Pure: the cells of every row of every table, headers too."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]


def verdicts_of(text: str) -> list[str]:
    """Pure: of the table of bounds, in its order."""
    return [row[-1].strip("*") for row in rows_of(text) if row[-1].startswith("**")]
