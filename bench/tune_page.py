"""The page and the raw data of `bench.tune`, all from one result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.curves import can_draw
from bench.record import write_json
from bench.report import page, provenance, section, warnings
from bench.rounds import Estimate, Floats, estimate, judged, markdown_table
from bench.tune_blocks import ENOUGH
from bench.tune_overhead import answered_at_once, begins_after, busy_shares, gaps_of
from bench.tune_quality import DEFAULT, TPE, Found, difference

PARTS = ("overhead", "ahead", "blocks", "quality")
"""Each may be measured by a command of its own; a result has some of them."""
LEAST_BUSY = 0.95
"""Share of its time in which a block must have a trial, with four blocks."""
MOST_GAP = 0.5
"""What our gap may be, as a multiple of the best peer's."""
MANY_BLOCKS = 1000

Result = Mapping[str, Any]


def publish(result: Result, out: Path) -> str:
    """Local: write all files; returns tables and bounds as text. Without matplotlib the picture is left out."""
    write_json(out / "tune.json", result)
    (out / "tune.md").write_text(_page(result))
    no_picture = ""
    if can_draw():
        from bench.tune_figure import draw

        draw(result, out / "tune.png")
    else:
        no_picture = "No picture, as matplotlib is not installed here; --figure draws it later from the raw data."
    shown = [page(TABLES[name](part), "\n".join(bounds_of(name, part))).rstrip() for name, part in result.items()]
    return page(*shown, no_picture)


def bounds_of(name: str, part: Result) -> list[str]:
    """Pure: each bound of a part in words, with whether it holds."""
    return [] if part["quick"] else VERDICTS[name](part)


# ---- overhead ------------------------------------------------------------------------------------------------------


def by_contender(part: Result) -> dict[str, list[Result]]:
    """Pure: the runs of those who took part in all rounds, by round."""
    runs = [run for run in part["runs"].values() if "contender" in run]
    found = {name: [run for run in runs if run["contender"] == name] for name in part["contenders"]}
    return {
        name: sorted(mine, key=lambda run: int(run["round"]))
        for name, mine in found.items()
        if len(mine) == part["settings"]["rounds"]
    }


def of_rounds(runs: Sequence[Result], value: Callable[[Any], float]) -> Floats:
    """Pure: one number for each run."""
    return np.asarray([value(run["waits"]) for run in runs], dtype=np.float64)


def mean_gap(waits: Any) -> float:
    """Pure: seconds without a trial between two trials."""
    return float(gaps_of(waits).mean())


def median_gap(waits: Any) -> float:
    """Pure: the same of the one in the middle."""
    return float(np.median(gaps_of(waits)))


def _overhead_table(part: Result) -> str:
    found = by_contender(part)
    ours = of_rounds(found["unisono"], mean_gap)
    rows = []
    for name, runs in found.items():
        means, medians = of_rounds(runs, mean_gap), of_rounds(runs, median_gap)
        rows.append(
            [
                name,
                f"{1e3 * np.median(medians):.1f}",
                f"{1e3 * np.median(means):.1f}",
                "1" if name == "unisono" else str(estimate(means / ours)),
                f"{100 * np.median(of_rounds(runs, lambda waits: float(busy_shares(waits).mean()))):.1f}",
                f"{100 * min(of_rounds(runs, lambda waits: float(busy_shares(waits).min()))):.1f}",
                f"{np.median(of_rounds(runs, begins_after)):.1f}",
            ]
        )
    header = ["4 at a time", "median gap, ms", "mean gap, ms", "mean gap, times unisono", "busy, %", "least block, %", "start, s"]
    return markdown_table(header, rows)


def _overhead_verdicts(part: Result) -> list[str]:
    found, kinds = by_contender(part), {name: one["kind"] for name, one in part["contenders"].items()}
    busy = estimate(100 * of_rounds(found["unisono"], lambda waits: float(busy_shares(waits).mean())))
    verdict = judged(busy, 100 * LEAST_BUSY, at_least=True)
    lines = [f"**{verdict}**: four blocks have a trial in {busy} % of their time, at least {100 * LEAST_BUSY:g} % asked"]
    peers = [name for name in found if kinds[name] not in ("ours", "noise")]
    groups = {"best peer": peers, "best peer that searches with TPE": [name for name in peers if kinds[name] == "tpe"]}
    for what, value in (("mean", mean_gap), ("median", median_gap)):
        ours = of_rounds(found["unisono"], value)
        for of_whom, names in groups.items():
            if not names:
                lines.append(f"not judged: {what} gap: there is no {of_whom}")
                continue
            best = min(names, key=lambda name: float(np.median(of_rounds(found[name], value))))
            ratio = estimate(ours / of_rounds(found[best], value))
            verdict = judged(ratio, MOST_GAP, at_least=False)
            lines.append(f"**{verdict}**: {what} gap {ratio} times that of the {of_whom} ({best}), at most {MOST_GAP:g} asked")
    return lines


# ---- ahead ---------------------------------------------------------------------------------------------------------


def _ahead_table(part: Result) -> str:
    rows = []
    for name in part["rows"]:
        runs = [run for run in part["runs"].values() if run["row"] == name]
        gaps = 1e3 * np.concatenate([gaps_of(run["waits"]) for run in runs])
        made = [1e3 * (end - begin) for run in runs for begin, end in run.get("made", ())]
        at_once = [answered_at_once(run) for run in runs if "asked" in run]
        rows.append(
            [
                name,
                f"{runs[0]['seconds']:g} s",
                f"{np.median(made):.1f} / {np.max(made):.0f}" if made else "-",
                f"{100 * float(np.mean(at_once)):.0f}" if at_once else "-",
                f"{np.median(gaps):.1f}",
                f"{gaps.mean():.1f}",
                f"{gaps.max():.0f}",
                f"{100 * float(np.mean([busy_shares(run['waits']).mean() for run in runs])):.1f}",
            ]
        )
    header = [
        "4 at a time",
        "a trial",
        "a proposal, median / longest, ms",
        "answered at once, %",
        "median gap, ms",
        "mean",
        "longest",
    ]
    return markdown_table([*header, "busy, %"], rows)


# ---- blocks --------------------------------------------------------------------------------------------------------


def _blocks_table(part: Result) -> str:
    rows = []
    for run in part["runs"].values():
        if "series" in run:
            rows.append([run["series"], f"{run['blocks']:,}", *_blocks_row(run)])
    header = ["search, mean trial, proposals", "blocks", *BLOCKS_HEADER]
    check = next(run for run in part["runs"].values() if "how" in run)
    checks = [[run["how"], f"{run['blocks']:,}", *_blocks_row(run)] for run in part["runs"].values() if "how" in run]
    return page(
        markdown_table(header, rows),
        f"The same study simulated in both ways and with real waiting; it has as many trials a second as {_as_many(check):,.0f} "
        "blocks\nwith trials of 60 s:",
        markdown_table([f"trials of {check['mean_s']:g} s", "blocks", *BLOCKS_HEADER], checks),
    ).rstrip()


BLOCKS_HEADER = (
    "busy, %",
    "after the first, %",
    "median gap, ms",
    "mean gap, ms",
    "trials/s",
    "coordinator could, /s",
    "first / last proposals, ms",
)


def _blocks_row(run: Result) -> list[str]:
    if "error" in run:
        return [run["error"], *["-"] * (len(BLOCKS_HEADER) - 1)]
    made_ms = [1e3 * mean_s for mean_s in run["proposal_means_s"]]
    return [
        f"{100 * run['busy_share']:.1f}",
        f"{100 * run['busy_share_after_first']:.1f}",
        f"{1e3 * run['gap_quantiles_s'][2]:.1f}",
        f"{1e3 * run['gap_mean_s']:.1f}",
        f"{run['trials'] / run['took_s']:.2f}",
        f"{run['coordinator_trials_per_s']:.0f}",
        f"{made_ms[0]:.1f} / {made_ms[-1]:.1f}",
    ]


def _as_many(run: Result) -> float:
    """Blocks that would end as many trials of a minute."""
    return 60.0 * float(run["blocks"]) / float(run["mean_s"])


def _blocks_verdicts(part: Result) -> list[str]:
    lines = []
    for name in dict.fromkeys(run["series"] for run in part["runs"].values() if "series" in run):
        runs = [run for run in part["runs"].values() if run.get("series") == name]
        many = [run for run in runs if run["blocks"] == MANY_BLOCKS]
        if many and "error" not in many[0]:
            share = 100 * many[0]["busy_share"]
            verdict = "holds" if share >= 100 * ENOUGH else "MISSED"
            lines.append(
                f"**{verdict}**: {name}: {MANY_BLOCKS:,} blocks are busy {share:.1f} % of their time, {100 * ENOUGH:g} asked"
            )
        elif runs[-1]["blocks"] < MANY_BLOCKS or many:
            lines.append(f"**MISSED**: {name}: {runs[-1]['blocks']:,} blocks are too many already")
    return lines


def limits(part: Result) -> list[str]:
    """Pure: for each series the largest number of blocks that was kept busy, and why there is no larger one."""
    lines = []
    for name in dict.fromkeys(run["series"] for run in part["runs"].values() if "series" in run):
        runs = [run for run in part["runs"].values() if run.get("series") == name]
        good = [run["blocks"] for run in runs if "error" not in run and run["busy_share"] >= ENOUGH]
        last = runs[-1]
        kept = (
            f"{max(good):,} blocks were kept busy {100 * ENOUGH:g} % of their time" if good else "no number of blocks was kept busy"
        )
        if last["blocks"] not in good:
            why = f"{last['blocks']:,} were not"
        else:
            why = f"more were not simulated (this one took {last['real_s']:.0f} s)"
        lines.append(f"{name}: {kept}; {why}.")
    return lines


# ---- quality -------------------------------------------------------------------------------------------------------


def by_problem(part: Result) -> dict[str, list[Result]]:
    """Pure: the simulated runs of each problem, by seed."""
    runs = [run for run in part["runs"].values() if "unisono" in run]
    return {name: [run for run in runs if run["problem"] == name] for name in part["problems"]}


def _quality_table(part: Result) -> str:
    rows = []
    for name, runs in by_problem(part).items():
        for who in (DEFAULT, TPE):
            found = Found.of(runs, who)
            real = part["runs"][f"{name}, real"]["best"]
            rows.append(
                [
                    f"{name}, {part['settings']['default_search'] if who == DEFAULT else 'tpe'}",
                    _number(found.ours.mean()),
                    _number(found.theirs.mean()),
                    _signed(difference(found.ours, found.theirs)),
                    _number(found.theirs_parallel.mean()),
                    _signed(difference(found.ours, found.theirs_parallel)),
                    _number(found.theirs_in_time.mean()),
                    _signed(difference(found.ours, found.theirs_in_time)),
                    f"{_number(real)} ({_number(found.ours.min())} to {_number(found.ours.max())})" if who == DEFAULT else "",
                ]
            )
    trials = part["settings"]["trials"]
    in_time = f"{np.mean([Found.of(runs).num_in_time.mean() for runs in by_problem(part).values()]):.0f}"
    header = [
        f"mean best of {part['settings']['seeds']} seeds",
        f"unisono, 4 blocks, {trials} trials",
        f"optuna, tpe, {trials} one by one",
        "difference",
        f"optuna, tpe, {trials} with 4 at a time",
        "difference",
        f"optuna, tpe, one by one, in the same time ({in_time} trials)",
        "difference",
        "a real run (simulated: least to most)",
    ]
    return markdown_table(header, rows)


def _quality_verdicts(part: Result) -> list[str]:
    lines = []
    for name, runs in by_problem(part).items():
        found = Found.of(runs)
        equal = difference(found.ours, found.theirs)
        verdict = judged(equal, 0.0, at_least=False)
        alike = _signed(difference(Found.of(runs, TPE).ours, found.theirs))
        trials = part["settings"]["trials"]
        text = f"{name}: {trials} trials by 4 blocks find as much as one by one: {_signed(equal)}, at most 0 asked"
        lines.append(f"**{verdict}**: {text} (with tpe: {alike})")
        timed = difference(found.ours, found.theirs_in_time)
        verdict = "holds" if timed.high < 0 else "MISSED"
        lines.append(f"**{verdict}**: {name}: 4 blocks find more in the same time: {_signed(timed)}, wholly below 0 asked")
    return lines


def _number(value: float) -> str:
    return f"{value:.4g}"


def _signed(found: Estimate) -> str:
    return f"{found.median:+.3g} [{found.low:+.3g}, {found.high:+.3g}]"


# ---- the page ------------------------------------------------------------------------------------------------------

TABLES: Mapping[str, Callable[[Result], str]] = {
    "overhead": _overhead_table,
    "ahead": _ahead_table,
    "blocks": _blocks_table,
    "quality": _quality_table,
}
VERDICTS: Mapping[str, Callable[[Result], list[str]]] = {
    "overhead": _overhead_verdicts,
    "ahead": lambda _: [],
    "blocks": _blocks_verdicts,
    "quality": _quality_verdicts,
}
TITLES = {
    "overhead": "How long a block is without a trial",
    "ahead": "Proposals ahead of demand",
    "blocks": "How many blocks one coordinator keeps busy",
    "quality": "What parallel blocks find",
}


def _page(result: Result) -> str:
    return page(
        "# Searching with many blocks",
        "![gaps between trials, busy blocks, and what is found](tune.png)",
        *(_section(name, part) for name, part in result.items()),
        section("What was not measured", [point for part in result.values() for point in part["not_measured"]]),
        "Raw data: [tune.json](tune.json): `overhead.runs[].waits[worker]` and `ahead.runs[].waits[worker]`, when each trial "
        "began and\nended, in seconds since the start of its program; `blocks.runs[]`; `quality.runs[].unisono` and `.optuna`, "
        "when each trial\nended in virtual seconds, and what it was worth.",
    )


def _section(name: str, part: Result) -> str:
    from bench.tune_words import intro, reading

    versions = {"packages": part["versions"]}
    for run in part["runs"].values():
        if "versions" in run and run.get("contender") != "unisono A/A":
            versions[run.get("contender", run.get("row"))] = run["versions"]
    origin = provenance(part["command"], part["machine"], part["sittings"], versions)
    failed = part["runs"].get("failed", {})
    return page(
        f"## {TITLES[name]}",
        warnings(part),
        intro(name, part),
        TABLES[name](part),
        _lower(section("Bounds", bounds_of(name, part))),
        _lower(section("Where the limit lies", limits(part))) if name == "blocks" else "",
        _lower(section("Contenders", [f"`{one}`: {about['about']}" for one, about in part.get("contenders", {}).items()])),
        _lower(section("Took no part", [f"`{one}`: {why}" for one, why in failed.items()])),
        _lower(section("How to read it", reading(name, part))),
        _lower(origin),
    ).rstrip()


def _lower(text: str) -> str:
    """A section of a section."""
    return f"#{text}" if text.startswith("## ") else text
