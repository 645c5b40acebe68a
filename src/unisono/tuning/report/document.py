"""The report of a study: one page that needs nothing beside itself, to look at while it runs and to keep when it is over.

This file works out what the page shows; study.html has its words.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unisono.files.atomic import atomic_replacement
from unisono.observe.pages.drawings import bars
from unisono.observe.pages.frame import page
from unisono.observe.pages.svg import number_text
from unisono.tuning.report.findings import (
    Measure,
    Setting,
    measures_of,
    pareto_front,
    parts_of,
    ranked_trials,
    settings_of_study,
    spread_over_parts,
    value_of,
)
from unisono.tuning.report.gantt import duration, gantt
from unisono.tuning.report.importance import FEWEST_TRIALS, importances
from unisono.tuning.report.parallel import parallel
from unisono.tuning.report.pictures import fold_colour, folds, history, pareto, scale_of, slice_of
from unisono.tuning.report.spending import ENDS, Block, Span, blocks_of, spans_of, wall_s
from unisono.tuning.report.variance import Components, cells_of, components
from unisono.tuning.study.result import command_from_study, command_of
from unisono.tuning.study.study import COMPLETE, FAILED, PRUNED, RUNNING, WAITING, Study, Trial

TEMPLATE = Path(__file__).with_name("study.html")
MOST_FOLD_ROWS = 10
MOST_COMMANDS = 8
"""Trials of a front whose command is given; the others are in the table."""
LONG_REASON = 120
SIGNIFICANT_ERRORS = 2.8
"""Two means that are fewer standard errors apart than this differ by chance in more than one of twenty pairs."""
DASH = "\N{EN DASH}"

Cell = tuple[str, object, bool]
"""A text, the value by which its column is sorted (None: the text), and whether it is a number."""


def write_report(study: Study, about: Mapping[str, Any], path: Path, now_s: float | None = None) -> None:
    """Writes the report as an HTML file. `about` is the content of study.json; running trials are counted until `now_s`. Local,
    blocking."""
    text = html_of(study, about, time.time() if now_s is None else now_s, path.parent)
    with atomic_replacement(path) as draft:
        draft.write_text(text, encoding="utf-8")


def html_of(study: Study, about: Mapping[str, Any], now_s: float, folder: Path | None = None) -> str:
    """Returns the report as an HTML text; `folder`, where the study lies, is for the command that uses its result. Local."""
    objectives, settings = measures_of(about), settings_of_study(study, about)
    trials = [study.trials[number] for number in sorted(study.trials)]
    spans = spans_of(study, about, now_s)
    blocks = blocks_of(study, spans)
    best = ranked_trials(study, objectives[0])[:1] if len(objectives) == 1 else pareto_front(study, objectives)
    made_by = about.get("made_by") or {}
    values: dict[str, Any] = {
        "name": str(about.get("task") or about.get("task_file") or "a task"),
        "objectives": objectives,
        "several": len(objectives) > 1,
        "way": _method_rows(about),
        "tiles": _tiles(study, about, objectives, best, spans, blocks),
        "commands": [(trial, command_of(about, trial)) for trial in best[:MOST_COMMANDS]],
        "from_study": command_from_study(folder, about) if best and folder is not None and about.get("task_file") else "",
        "trials": trials,
        "as_of": datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "made_by": ", ".join(f"{name} {version}" for name, version in made_by.items()) if isinstance(made_by, Mapping) else made_by,
        "number_text": number_text,
        "value_of": value_of,
        "counted": _with_plural,
    }
    if trials:
        values |= _result_rows(study, trials, settings, objectives)
        values |= _cost_rows(spans, blocks)
        values |= _table(trials, settings, objectives, spans)
    return page(TEMPLATE, **values)


def _method_rows(about: Mapping[str, Any]) -> list[str]:
    """Words on how the study was made (search, pruning, seed, folds, ...), as far as that is known."""
    words = (("search", "search"), ("prune", "pruning"), ("seed", "seed"))
    found = [f"{word} {about[key]}" for key, word in words if about.get(key) is not None]
    if (num := about.get("folds") or 1) > 1:
        found.append(f"{num} folds" + (f" ({about['fold_by']})" if about.get("fold_by") else ""))
    if (num := about.get("repeats") or 1) > 1:
        found.append(f"{num} random starts each")
    if num := about.get("workers"):
        found.append(f"{_with_plural(num, 'worker')} per model")
    if num := len(about.get("accepted") or ()):
        found.append(f"files of the task changed {_with_plural(num, 'time')} during the study (--accept-changes)")
    return found


def _tiles(
    study: Study,
    about: Mapping[str, Any],
    objectives: Sequence[Measure],
    best: Sequence[Trial],
    spans: Sequence[Span],
    blocks: Sequence[Block],
) -> list[tuple[str, str]]:
    """Returns (value, label) of the tiles at the top: trials, best value or size of the front, wall time, worker-hours."""
    states = Counter(trial.state for trial in study.trials.values())
    said = [f"{states[state]} {state}" for state in (COMPLETE, PRUNED, FAILED, RUNNING, WAITING) if states[state]]
    wanted = study.num_wanted(about.get("trials") or 0)
    tiles = [(f"{len(study.trials)}{f' of {wanted}' if wanted else ''} trials", ", ".join(said) or "none yet")]
    if len(objectives) > 1:
        tiles.append((_with_plural(len(best), "trial"), "on the front: no other trial is better in all objectives"))
    elif best:
        over = "" if spread_over_parts(best[0]) is None else "; ± is the standard deviation over its trainings"
        tiles.append((_with_spread(best[0]), f"best {objectives[0].metric}, trial {best[0].number}{over}"))
    else:
        tiles.append((DASH, "no complete trial has a value yet"))
    whole_s, there_s = wall_s(blocks)
    away = "" if there_s > 0.95 * whole_s else f", with a job running for {duration(there_s)} of it"
    return [*tiles, (duration(whole_s), f"wall time{away}"), (_hours(sum(span.worker_s for span in spans)), "worker-hours spent")]


def _result_rows(
    study: Study, trials: Sequence[Trial], settings: Sequence[Setting], objectives: Sequence[Measure]
) -> Mapping[str, Any]:
    """Values for the page: which settings were tried and what they gave."""
    first, has_ended = objectives[0], any(trial.result is not None for trial in trials)
    drawn = ""
    if has_ended:
        drawn = history(trials, first) if len(objectives) == 1 else pareto(trials, objectives, pareto_front(study, objectives))
    num_ranked = min(len(ranked_trials(study, one)) for one in objectives)
    is_enough = bool(settings) and num_ranked >= FEWEST_TRIALS
    return {
        "has_ended": has_ended,
        "history": drawn,
        "has_spread": any(spread_over_parts(trial) is not None for trial in trials),
        "num_off": len(trials)
        - len(_without_outliers(trials, first))
        - sum(value_of(trial, first.place) is None for trial in trials),
        "settings": settings,
        "together": parallel(trials, settings, objectives) if settings and has_ended else "",
        "num_ranked": num_ranked,
        "fewest_trials": FEWEST_TRIALS,
        "importance": [(one, _importance(study, settings, one)) for one in objectives] if is_enough else (),
        "slices": [(one, drawings) for one in objectives if (drawings := _slices(study, trials, settings, one))],
        "folds": [found for one in objectives if (found := _folds(study, one))],
        "told_apart": SIGNIFICANT_ERRORS,
    }


def _without_outliers(trials: Sequence[Trial], objective: Measure) -> list[Trial]:
    """The trials that lie inside the axis, without those that are drawn at its edge."""
    scale = scale_of(trials, objective, 0, 1)
    return [trial for trial in trials if (value := value_of(trial, objective.place)) is not None and scale.holds(value)]


def _importance(study: Study, settings: Sequence[Setting], objective: Measure) -> str:
    """Returns the drawing of how much each setting explains of the variance of an objective."""
    shares = importances(ranked_trials(study, objective), settings, objective.place)
    return bars(
        shares,
        f"Share of the variance of {objective.metric} explained",
        "too few trials have this setting, or all have the same value",
    )


def _slices(study: Study, trials: Sequence[Trial], settings: Sequence[Setting], objective: Measure) -> list[str]:
    """Returns one drawing of the objective over each setting; none where no trial has a value."""
    if all(value_of(trial, objective.place) is None for trial in trials):
        return []
    best = next((trial.number for trial in ranked_trials(study, objective)), None)
    had = {name for trial in trials for name in trial.values or ()}
    return [slice_of(trials, one, objective, best) for one in settings if one.name in had]


def _folds(study: Study, objective: Measure) -> Mapping[str, Any] | None:
    """Returns the values for the section on folds and repeats; None where every trial is a single training."""
    trials = [trial for trial in ranked_trials(study, objective) if len(parts_of(trial, objective.place)) > 1]
    if not trials:
        return None
    shown = trials[:MOST_FOLD_ROWS]
    numbers = sorted({part.fold for trial in shown for part in parts_of(trial, objective.place)})
    used = _without_outliers(trials, objective)
    cells = cells_of(used, objective.place)
    found = None if cells is None else components(cells)
    return {
        "objective": objective,
        "num_shown": len(shown),
        "colours": {colour: [fold for fold in numbers if fold_colour(fold) == colour] for colour in map(fold_colour, numbers)},
        "drawing": folds(shown, objective),
        "components": found,
        "leaves_out": len(used) < len(trials),
        "sources": () if found is None else list(_sources(found)),
    }


def _sources(found: Components) -> Iterator[tuple[str, ...]]:
    """Rows of the table that says where the variance comes from."""
    mixed = "trials on folds: settings that suit some folds better" + ("" if found.starts is not None else ", and the random start")
    rows = [
        ("trials: the differences that a search looks for", found.trials),
        ("folds: easier or harder for all trials alike", found.folds),
        (mixed, found.trials_on_folds),
        ("random starts within a fold", found.starts),
    ]
    known = [(name, variance) for name, variance in rows if variance is not None]
    total = sum(variance for _, variance in known) or 1.0
    for name, variance in known:
        yield name, f"{variance:.3g}", number_text(variance**0.5, 3), f"{variance / total:.0%}"


def _cost_rows(spans: Sequence[Span], blocks: Sequence[Block]) -> Mapping[str, Any]:
    """Values for the page: which block ran what when, and what each kind of end cost."""
    seen = {span.end for span in spans}
    length = sum(block.ended_s - block.began_s for block in blocks)
    total = sum(span.worker_s for span in spans)
    costs = list[tuple[str, ...]]()
    for end in ENDS:
        some = [span.worker_s for span in spans if span.end == end]
        if some:
            costs.append((end, str(len(some)), _hours(sum(some)), f"{sum(some) / total:.1%}" if total else DASH))
    return {
        "blocks": blocks,
        "busy_share": sum(block.busy_share * (block.ended_s - block.began_s) for block in blocks) / length if length else 0.0,
        "ends": [(end, end) for end in ENDS if end in seen],
        "gantt": gantt(blocks) if blocks else "",
        "wall": duration(wall_s(blocks)[0]),
        "costs": costs,
        "total_cost": ("all", str(len(spans)), _hours(total), ""),
    }


def _table(
    trials: Sequence[Trial], settings: Sequence[Setting], objectives: Sequence[Measure], spans: Sequence[Span]
) -> Mapping[str, Any]:
    """Returns heads and rows of the table of all trials."""
    took: dict[int, float] = {}
    for span in spans:
        took[span.trial] = took.get(span.trial, 0.0) + span.took_s
    results = [head for one in objectives for head in ((one.metric, True), ("spread", True))]
    names = [(one.name, one.choices is None) for one in settings]
    rows = [
        {
            "number": trial.number,
            "cells": list(_cells(trial, settings, objectives, took.get(trial.number, 0.0))),
            "reason": "" if trial.result is None else trial.result.reason.strip(),
        }
        for trial in trials
    ]
    heads = [("trial", True), ("state", False), *results, ("time", True), *names, ("reason", False)]
    return {"heads": heads, "rows": rows, "long_reason": LONG_REASON}


def _cells(trial: Trial, settings: Sequence[Setting], objectives: Sequence[Measure], took_s: float) -> Iterator[Cell]:
    """Yields the cells of a trial's row: its text, the value to sort by, and whether it is a number."""
    yield str(trial.number), trial.number, True
    yield trial.state, None, False
    for one in objectives:
        values = trial.result.values if trial.result is not None else ()
        value, spread = value_of(trial, one.place), spread_over_parts(trial, one.place)
        shown = number_text(values[one.place]) if one.place < len(values) else DASH  # a value that is no number is shown as it is
        yield shown, "" if value is None else value, True
        yield DASH if spread is None else number_text(spread, 2), "" if spread is None else spread, True
    yield duration(took_s) if took_s else DASH, took_s or "", True
    for setting in settings:
        given = (trial.values or {}).get(setting.name, DASH)
        yield number_text(given), "" if given == DASH else given, setting.choices is None


def _with_spread(trial: Trial) -> str:
    """Returns the first objective of a trial as text, with ± its spread over parts if it has one."""
    spread = spread_over_parts(trial)
    return number_text(value_of(trial)) + ("" if spread is None else f" ± {number_text(spread, 2)}")


def _hours(seconds: float) -> str:
    """Returns seconds as a number of hours, in text."""
    hours = seconds / 3600
    return f"{hours:.0f}" if hours >= 100 else f"{hours:.3g}"


def _with_plural(num: int, what: str) -> str:
    """Returns a number with its noun: '1 trial' or '2 trials'."""
    return f"{num} {what}{'' if num == 1 else 's'}"
