"""The page of `bench.tune`, of the parts that were measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench import tune_blocks_page, tune_overhead_page, tune_quality_page
from bench.figure import Panel, Picture
from bench.page import Page, Result

PAGES: Mapping[str, Callable[[Result], Page]] = {
    "overhead": tune_overhead_page.overhead,
    "ahead": tune_overhead_page.ahead,
    "blocks": tune_blocks_page.page_of,
    "quality": tune_quality_page.page_of,
}
PARTS = tuple(PAGES)
"""Each may be measured by a command of its own; a result has some of them."""
TOP: Mapping[str, Callable[[Result], Panel]] = {"overhead": tune_overhead_page.panel, "blocks": tune_blocks_page.panel}


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    parts = [page(result[name]) for name, page in PAGES.items() if name in result]
    rows = [[panel(result[name]) for name, panel in TOP.items() if name in result]]
    rows.append(tune_quality_page.panels(result["quality"]) if "quality" in result else [])
    shown = [row for row in rows if row]
    return Page(
        question="How long is a block of a search without a trial, how many does one coordinator keep busy, and what do they find?",
        answer=" ".join(part.answer for part in parts),
        picture=Picture("Searching with many blocks", shown) if shown else None,
        parts=parts,
        raw="`overhead.runs[].waits[worker]` and `ahead.runs[].waits[worker]`, when each trial began and ended, in seconds since "
        "the start of its program; `blocks.runs[]`; `quality.runs[].unisono` and `.optuna`, when each trial ended in virtual "
        "seconds, and what it was worth",
    )
