"""The report of a study: one page that needs nothing beside itself, to look at while it runs and to keep when it is over."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unisono.training.atomic import replacing
from unisono.tuning.report.findings import (
    Measure,
    Setting,
    drawn_settings,
    front_of,
    measures_of,
    parts_of,
    ranked,
    spread_over_parts,
    value_of,
)
from unisono.tuning.report.frame import framed, legend, table, wide
from unisono.tuning.report.gantt import duration, gantt
from unisono.tuning.report.importance import FEWEST_TRIALS, importances
from unisono.tuning.report.parallel import parallel
from unisono.tuning.report.pictures import bars, fold_colour, folds, history, pareto, scale_of, slice_of
from unisono.tuning.report.spending import ENDS, Block, Span, blocks_of, spans_of, wall_s
from unisono.tuning.report.svg import number_text, safe
from unisono.tuning.report.variance import cells_of, components
from unisono.tuning.result import command_of
from unisono.tuning.study import COMPLETE, FAILED, PRUNED, RUNNING, WAITING, Study, Trial

MOST_FOLD_ROWS = 10
MOST_COMMANDS = 8
"""Trials of a front whose command is given; the others are in the table."""
LONG_REASON = 120
TOLD_APART = 2.8
"""Standard errors of a mean by which two means differ by chance in one of twenty pairs."""
DASH = "\N{EN DASH}"


def write_report(study: Study, about: Mapping[str, Any], path: Path, now_s: float | None = None) -> None:
    """Local, blocking: the report as a file. `about` is what study.json holds; `now_s` is until when trials at work are counted."""
    page = html_of(study, about, time.time() if now_s is None else now_s)
    with replacing(path) as draft:
        draft.write_text(page, encoding="utf-8")


def html_of(study: Study, about: Mapping[str, Any], now_s: float) -> str:
    """Pure: the report as a text."""
    objectives, settings = measures_of(about), drawn_settings(study, about)
    trials = [study.trials[number] for number in sorted(study.trials)]
    spans = spans_of(study, about, now_s)
    blocks = blocks_of(study, spans)
    name = str(about.get("task") or about.get("task_file") or "a task")
    parts = [_head(study, about, objectives, name, spans, blocks)]
    if not trials:
        parts.append("<p>This study has no trial yet: none was proposed. Look again once a job is at work.</p>")
    else:
        parts.append(_history(study, trials, objectives))
        parts.append(_parallel(trials, settings, objectives))
        parts.append(_importance(study, settings, objectives))
        parts.extend(_slices(study, trials, settings, one) for one in objectives)
        parts.extend(_folds(study, one) for one in objectives)
        parts.append(_blocks(blocks, spans))
        parts.append(_cost(spans, blocks))
        parts.append(_table(trials, settings, objectives, spans))
    parts.append(_foot(about, now_s))
    return framed(f"Study of {name}", "\n".join(part for part in parts if part))


def _head(
    study: Study,
    about: Mapping[str, Any],
    objectives: Sequence[Measure],
    name: str,
    spans: Sequence[Span],
    blocks: Sequence[Block],
) -> str:
    states = Counter(trial.state for trial in study.trials.values())
    said = [f"{states[state]} {state}" for state in (COMPLETE, PRUNED, FAILED, RUNNING, WAITING) if states[state]]
    wanted = study.num_wanted(about.get("trials") or 0)
    tiles = [(f"{len(study.trials)}{f' of {wanted}' if wanted else ''} trials", ", ".join(said) or "none yet")]
    best = ranked(study, objectives[0])[:1] if len(objectives) == 1 else front_of(study, objectives)
    if len(objectives) > 1:
        tiles.append((_num(len(best), "trial"), "on the front: none is better in all objectives"))
    elif best:
        over = "" if spread_over_parts(best[0]) is None else "; ± is the standard deviation over its trainings"
        tiles.append((_with_spread(best[0]), f"best {objectives[0].metric}, trial {best[0].number}{over}"))
    else:
        tiles.append((DASH, "no complete trial has a value yet"))
    whole_s, there_s = wall_s(blocks)
    tiles.append(
        (duration(whole_s), "wall time" + ("" if there_s > 0.95 * whole_s else f"; a job was there for {duration(there_s)}"))
    )
    tiles.append((_hours(sum(span.worker_s for span in spans)), "worker-hours spent"))
    shown = "".join(f"<li><b>{safe(big)}</b><small>{safe(small)}</small></li>" for big, small in tiles)
    objective = "; ".join((f"Objective: {' and '.join(map(str, objectives))}", *_way(about)))
    head = f'<h1>Study of {safe(name)}</h1>\n<p class="pale">{safe(objective)}.</p>'
    return f'{head}\n<ul class="tiles">{shown}</ul>\n{_commands(about, best, objectives)}'


def _way(about: Mapping[str, Any]) -> list[str]:
    """How the study was made, as far as it is known."""
    words = (("search", "search"), ("prune", "pruning"), ("seed", "seed"))
    found = [f"{word} {about[key]}" for key, word in words if about.get(key) is not None]
    if (num := about.get("folds") or 1) > 1:
        found.append(f"{num} folds" + (f" ({about['fold_by']})" if about.get("fold_by") else ""))
    if (num := about.get("repeats") or 1) > 1:
        found.append(f"{num} random starts each")
    if num := about.get("workers"):
        found.append(f"{_num(num, 'worker')} a model")
    if num := len(about.get("accepted") or ()):
        found.append(f"files of the task were changed {_num(num, 'time')} meanwhile (--accept-changes)")
    return found


def _commands(about: Mapping[str, Any], best: Sequence[Trial], objectives: Sequence[Measure]) -> str:
    if not best:
        return ""
    words = "The best settings, to train with them:" if len(objectives) == 1 else "The settings of the front, to train with them:"
    lines = []
    for trial in best[:MOST_COMMANDS]:
        if len(objectives) > 1:
            values = ", ".join(f"{one.metric} {number_text(value_of(trial, one.place))}" for one in objectives)
            lines.append(f"<p>Trial {trial.number}: {safe(values)}</p>")
        pre = f'<pre tabindex="0">{safe(command_of(about, trial))}</pre>'
        lines.append(f'<div class="command">{pre}<button type="button" class="copy" hidden>Copy</button></div>')
    return f"<p>{words}</p>\n" + "\n".join(lines)


def _history(study: Study, trials: Sequence[Trial], objectives: Sequence[Measure]) -> str:
    keys = legend((COMPLETE, "complete"), (PRUNED, "pruned, with its last value"), (FAILED, "failed, or no number"))
    if all(trial.result is None for trial in trials):
        return "<h2>History</h2>\n<p>No trial has ended yet.</p>"
    if len(objectives) > 1:
        front = front_of(study, objectives)
        keys = legend((COMPLETE, "complete"), (PRUNED, "pruned, with its last values"), ("line", "front"))
        more = f" The first two of {len(objectives)} objectives are drawn; the front is that of all." if len(objectives) > 2 else ""
        words = f"<p>On the front are the trials than which no other is better in all objectives.{more}</p>"
        return f"<h2>Objectives against each other</h2>\n{words}\n{keys}\n{wide(pareto(trials, objectives, front))}"
    has_spread = any(spread_over_parts(trial) is not None for trial in trials)
    keys = legend(
        (COMPLETE, "complete" + (", with the spread over its trainings" if has_spread else "")),
        (PRUNED, "pruned, with its last value"),
        (FAILED, "failed, or no number"),
        ("line", "best so far"),
    )
    return f"<h2>History</h2>\n{keys}\n{wide(history(trials, objectives[0]))}{_off(trials, objectives[0])}"


def _off(trials: Sequence[Trial], objective: Measure) -> str:
    num = len(trials) - len(_comparable(trials, objective)) - sum(value_of(trial, objective.place) is None for trial in trials)
    words = f"{_num(num, 'much worse trial')} {'are' if num > 1 else 'is'} drawn hollow at the edge; hover for the value."
    return f'\n<p class="pale">{words}</p>' if num else ""


def _comparable(trials: Sequence[Trial], objective: Measure) -> list[Trial]:
    """Without those that are drawn at the edge."""
    scale = scale_of(trials, objective, 0, 1)
    return [trial for trial in trials if (value := value_of(trial, objective.place)) is not None and scale.holds(value)]


def _parallel(trials: Sequence[Trial], settings: Sequence[Setting], objectives: Sequence[Measure]) -> str:
    if not settings or all(trial.result is None for trial in trials):
        return ""
    notes = ("grey, dashed: pruned or failed", "broken: the trial has no such setting")
    items = "".join(f'<li class="pale">{note}</li>' for note in notes)
    keys = f'<ul class="legend"><li>worst<span class="ramp"></span>best</li>{items}</ul>'
    words = f"<p>One line a trial, coloured by the rank of its {safe(objectives[0].metric)}.</p>"
    return f"<h2>Settings together</h2>\n{words}\n{keys}\n{wide(parallel(trials, settings, objectives))}"


def _importance(study: Study, settings: Sequence[Setting], objectives: Sequence[Measure]) -> str:
    if not settings:
        return ""
    head, num = "<h2>Importance of the settings</h2>", min(len(ranked(study, one)) for one in objectives)
    if num < FEWEST_TRIALS:
        return f"{head}\n<p>This needs at least {FEWEST_TRIALS} complete trials; there {_are(num)}.</p>"
    words = (
        "<p>The share of the variance of the objective (of its ranks) that a smooth curve over this setting alone explains, every "
        "trial predicted from the others, so that a setting without effect has about 0. These are main effects only: settings that "
        f"matter together are not seen, and with {num} trials the shares are rough.</p>"
    )
    drawn = list[str]()
    for one in objectives:
        shares = importances(ranked(study, one), settings, one.place)
        drawn.append((f"<h3>{safe(one.metric)}</h3>" if len(objectives) > 1 else "") + wide(bars(shares, one.metric)))
    return "\n".join((head, words, *drawn))


def _slices(study: Study, trials: Sequence[Trial], settings: Sequence[Setting], objective: Measure) -> str:
    best = next((trial.number for trial in ranked(study, objective)), None)
    if not settings or all(value_of(trial, objective.place) is None for trial in trials):
        return ""
    had = {name for trial in trials for name in trial.values or ()}
    pictures = "\n".join(f"<div>{slice_of(trials, one, objective, best)}</div>" for one in settings if one.name in had)
    keys = legend((COMPLETE, "complete"), (PRUNED, "pruned"))
    return f'<h2>{safe(objective)} over each setting</h2>\n{keys}\n<div class="slices">{pictures}</div>'


def _folds(study: Study, objective: Measure) -> str:
    trials = [trial for trial in ranked(study, objective) if len(parts_of(trial, objective.place)) > 1]
    if not trials:
        return ""
    shown = trials[:MOST_FOLD_ROWS]
    numbers = sorted({part.fold for trial in shown for part in parts_of(trial, objective.place)})
    named = {colour: [str(fold) for fold in numbers if fold_colour(fold) == colour] for colour in map(fold_colour, numbers)}
    items = "".join(
        f'<li><span class="key" style="background:{colour}"></span>fold {", ".join(some)}</li>' for colour, some in named.items()
    )
    drawn = wide(folds(shown, objective))
    head = f"<h2>Spread of {safe(objective.metric)} over folds</h2>\n<p>The best {len(shown)} trials; the stroke is the mean.</p>"
    return f'{head}\n<ul class="legend">{items}</ul>\n{drawn}\n{_variance(trials, objective)}'


def _variance(trials: Sequence[Trial], objective: Measure) -> str:
    used = _comparable(trials, objective)
    cells = cells_of(used, objective.place)
    if cells is None:
        return ""
    found = components(cells)
    error = found.error_of_mean
    mixed = "trial on fold: settings that suit one fold more" + ("" if found.starts is not None else ", and the random start")
    rows = [
        ("trials: what the search is after", found.trials),
        ("folds: easier or harder for all trials alike", found.folds),
        (mixed, found.trials_on_folds),
        ("random starts within a fold", found.starts),
    ]
    known = [(name, variance) for name, variance in rows if variance is not None]
    total = sum(variance for _, variance in known) or 1.0
    cells_text = [[name, f"{variance:.3g}", number_text(variance**0.5, 3), f"{variance / total:.0%}"] for name, variance in known]
    heads = [("source", False), ("variance", True), ("standard deviation", True), ("share", True)]
    left_out = "; much worse trials are left out" if len(used) < len(trials) else ""
    grid = f"{_num(found.num_trials, 'trial')}, {_num(found.num_folds, 'fold')}, {_num(found.num_repeats, 'random start')}"
    return (
        f"<h3>Where the differences come from</h3>\n<p>Components of variance, of {grid}{left_out}.</p>\n"
        f"{table(heads, cells_text)}\n"
        f"<p>The mean of a trial is uncertain by about ±{number_text(error, 2)} (one standard error), so two trials that "
        f"differ by less than about {number_text(TOLD_APART * error, 2)} may be equally good.</p>"
    )


def _blocks(blocks: Sequence[Block], spans: Sequence[Span]) -> str:
    if not blocks:
        return ""
    seen = {span.end for span in spans}
    keys = legend(*((end, end) for end in ENDS if end in seen), cls="legend spans")
    length = sum(block.ended_s - block.began_s for block in blocks)
    busy = sum(block.busy_share * (block.ended_s - block.began_s) for block in blocks) / length if length else 0.0
    words = f"<p>All blocks together were busy {busy:.0%} of the time for which their jobs were there.</p>"
    return f"<h2>Who was at what when</h2>\n{words}\n{keys}\n{wide(gantt(blocks))}"


def _cost(spans: Sequence[Span], blocks: Sequence[Block]) -> str:
    total = sum(span.worker_s for span in spans)
    rows = list[list[str]]()
    for end in ENDS:
        some = [span.worker_s for span in spans if span.end == end]
        if some:
            rows.append([end, str(len(some)), _hours(sum(some)), f"{sum(some) / total:.1%}" if total else DASH])
    heads = [("attempts that were", False), ("number", True), ("worker-hours", True), ("share", True)]
    words = f"<p>Seconds of every attempt times the workers of its block. Wall time: {duration(wall_s(blocks)[0])}.</p>"
    return f"<h2>Cost</h2>\n{words}\n{table(heads, rows, ('all', str(len(spans)), _hours(total), ''))}"


def _table(trials: Sequence[Trial], settings: Sequence[Setting], objectives: Sequence[Measure], spans: Sequence[Span]) -> str:
    took: dict[int, float] = {}
    for span in spans:
        took[span.trial] = took.get(span.trial, 0.0) + span.took_s
    heads = [("trial", True), ("state", False)]
    for one in objectives:
        heads += [(one.metric, True), ("spread", True)]
    heads += [("time", True), *((one.name, one.choices is None) for one in settings), ("reason", False)]
    head = "".join(f'<th class="{"n" if right else "text"}">{_breakable(name)}</th>' for name, right in heads)
    body = "\n".join(_row(trial, settings, objectives, took.get(trial.number, 0.0)) for trial in trials)
    return (
        f'<h2>All trials</h2>\n<div class="wide"><table class="sortable"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _row(trial: Trial, settings: Sequence[Setting], objectives: Sequence[Measure], took_s: float) -> str:
    cells = [_cell(str(trial.number), trial.number), f"<td>{safe(trial.state)}</td>"]
    for one in objectives:
        values = trial.result.values if trial.result is not None else ()
        value, spread = value_of(trial, one.place), spread_over_parts(trial, one.place)
        shown = number_text(values[one.place]) if one.place < len(values) else DASH  # a value that is no number is shown as it is
        cells.append(_cell(shown, value))
        cells.append(_cell(DASH if spread is None else number_text(spread, 2), spread))
    cells.append(_cell(duration(took_s) if took_s else DASH, took_s or None))
    for setting in settings:
        given = (trial.values or {}).get(setting.name, DASH)
        key = "" if given == DASH else given
        cells.append(
            _cell(number_text(given), key)
            if setting.choices is None
            else f'<td data-v="{safe(key)}">{safe(number_text(given))}</td>'
        )
    whole = "" if trial.result is None else trial.result.reason.strip()
    reason = safe(whole)
    if len(whole) > LONG_REASON:
        reason = f"<details><summary>{safe(whole.splitlines()[0][:LONG_REASON])}</summary>{reason}</details>"
    cells.append(f'<td class="reason">{reason}</td>')
    return f'<tr id="t{trial.number}" data-t="{trial.number}">{"".join(cells)}</tr>'


def _cell(shown: str, key: object) -> str:
    return f'<td class="n" data-v="{"" if key is None else safe(key)}">{safe(shown)}</td>'


def _breakable(name: str) -> str:
    """So that a long name does not make its column wide."""
    return safe(name).replace(".", ".<wbr>").replace("_", "_<wbr>")


def _foot(about: Mapping[str, Any], now_s: float) -> str:
    made_by = about.get("made_by") or {}
    versions = ", ".join(f"{name} {version}" for name, version in made_by.items()) if isinstance(made_by, Mapping) else str(made_by)
    at = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"<footer>As of {at}.{f' Made by {safe(versions)}.' if versions else ''}</footer>"


def _with_spread(trial: Trial) -> str:
    spread = spread_over_parts(trial)
    return number_text(value_of(trial)) + ("" if spread is None else f" ± {number_text(spread, 2)}")


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.0f}" if hours >= 100 else f"{hours:.3g}"


def _are(num: int) -> str:
    return "is 1" if num == 1 else f"are {num or 'none'}"


def _num(num: int, what: str) -> str:
    return f"{num} {what}{'' if num == 1 else 's'}"
