"""Findings: the lines of the report, each with level, check, node, fact and remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from unisono.doctor.facts import Job

OK, WARN, FAIL = "ok", "warn", "FAIL"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `remedy` is empty when all is well; `node` is empty when it concerns the whole job."""

    level: str
    check: str
    fact: str
    remedy: str = ""
    node: str = ""


def finding_from_error(level: str, check: str, text: str, remedy: str) -> Finding:
    """Makes a finding from an error: our errors give the remedy after a semicolon, and what was received after another one;
    `remedy` is for errors that have none."""
    fact, *rest = text.splitlines()[0].split("; ")
    if rest and rest[0].startswith("received "):
        fact = f"{fact}; {rest.pop(0)}"
    return Finding(level, check, fact, "; ".join(rest) or remedy)


Check = Callable[[Job], Iterator[Finding]]
"""A check: a pure function from the facts to findings about one thing; at least one finding where the check applies."""
