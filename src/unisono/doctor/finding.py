"""One line of the report: how bad, what about, where, the fact and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from unisono.doctor.facts import Job

OK, WARN, FAIL = "ok", "warn", "FAIL"


@dataclass(frozen=True)
class Finding:
    """`remedy` is empty when all is well; `node` is empty when it concerns the whole job."""

    level: str
    check: str
    fact: str
    remedy: str = ""
    node: str = ""


Check = Callable[[Job], Iterator[Finding]]
"""Pure: what the facts say about one thing. At least one finding where there is anything to look at."""
