"""The pictures of a study: its history, its settings against its objectives, and what the folds gave. Pure; each function returns
SVG.

Trials that are much worse than the rest are put at the edge of the picture, as otherwise one diverged training would press all
others into a line.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from unisono.observe.pages.axes import Places, Scale, x_axis, y_axis
from unisono.observe.pages.svg import element, label, line, number_text, picture, safe, title
from unisono.tuning.report.findings import Measure, Setting, parts_of, spread_over_parts, value_of
from unisono.tuning.study.study import COMPLETE, FAILED, PRUNED, RUNNING, WAITING, Trial

WIDE = 1000
FOLD_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
MOST_OFF = 6.0
"""How many times as far from the best as the middle trial one may be before it is put at the edge."""
ENOUGH_FOR_EDGE = 5


def scale_of(trials: Sequence[Trial], objective: Measure, start: float, stop: float) -> Scale:
    """Returns the axis of an objective over all trials that have a value. Pure."""
    gains = sorted(objective.gain(value) for trial in trials if (value := value_of(trial, objective.place)) is not None)
    if not gains:
        return Scale(0.0, 1.0, start, stop)
    worst, best = gains[0], gains[-1]
    if len(gains) >= ENOUGH_FOR_EDGE and (middle := statistics.median(gains)) < best:
        worst = next(gain for gain in gains if gain >= best - MOST_OFF * (best - middle))
    room = (best - worst) * 0.06 or abs(best) * 0.05 or 0.5
    low, high = sorted((objective.gain(worst - room), objective.gain(best + room)))
    return Scale(low, high, start, stop)


def hint(trial: Trial, objectives: Sequence[Measure], *more: str) -> str:
    """Returns the text that appears when the pointer is over a trial. Pure."""
    said = [f"trial {trial.number}: {trial.state}"]
    for one in objectives:
        value, spread = value_of(trial, one.place), spread_over_parts(trial, one.place)
        if value is not None:
            said.append(f"{one.metric} {number_text(value)}{'' if spread is None else f' ± {number_text(spread, 2)}'}")
        elif trial.state == COMPLETE:
            said.append(f"{one.metric} is not a number")
    reason = trial.result.reason.strip().partition("\n")[0][:200] if trial.result is not None else ""
    return "\n".join((*said, *((reason,) if reason else ()), *more))


def mark(x: float, y: float, state: str, about: str, trial: int, extra: str = "") -> str:
    """Draws one trial as a point; states differ in shape as well as in colour. Pure."""
    cls = f"mark {state if state in (COMPLETE, PRUNED) else FAILED}{extra}"
    if state == COMPLETE:
        return element("circle", title(about), cx=x, cy=y, r=4, cls=cls, data_t=trial)
    shape = f"M{x:.1f} {y - 4.5:.1f}l4.5 8h-9z" if state == PRUNED else f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
    return element("path", title(about), d=shape, cls=cls, data_t=trial)


def history(trials: Sequence[Trial], objective: Measure) -> str:
    """Draws the objective of every trial over its number, and the best so far. Pure."""
    bottom, left = 270, 62
    y = scale_of(trials, objective, bottom - 8, 34)
    last = max(trial.number for trial in trials)
    x = Scale(-0.5, last + 0.5, left, WIDE - 14)
    whole = [step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if last / step <= 16]
    step = whole[0] if whole else last
    axis = "".join(
        line(x.place(n), bottom, x.place(n), bottom + 4, "axis") + label(x.place(n), bottom + 16, n, cls="tick middle")
        for n in range(0, last + 1, step)
    )
    drawn, best, steps = list[str](), None, list[str]()
    for trial in trials:
        value, place = value_of(trial, objective.place), x.place(trial.number)
        if trial.state in (RUNNING, WAITING):
            continue
        if value is None:
            drawn.append(mark(place, bottom - 6, FAILED, hint(trial, [objective]), trial.number))
            continue
        spread = spread_over_parts(trial, objective.place)
        if spread and trial.state == COMPLETE and y.holds(value):
            drawn.insert(
                0,
                element(
                    "path",
                    d=f"M{place:.1f} {y.place(value - spread):.1f}V{y.place(value + spread):.1f}",
                    cls="spread",
                    data_t=trial.number,
                ),
            )
        drawn.append(
            mark(place, y.place(value), trial.state, hint(trial, [objective]), trial.number, "" if y.holds(value) else " off")
        )
        if trial.state == COMPLETE and (best is None or objective.gain(value) > objective.gain(best)):
            best = value
            steps.append(f"{'H' if steps else 'M'}{place:.1f}{'V' if steps else ' '}{y.place(value):.1f}")
    path = element("path", d="".join((*steps, f"H{x.stop:.1f}")), cls="best") if steps else ""
    about = f"{objective.metric} of {len(trials)} trials over their numbers" + (
        "" if best is None else f"; the best is {number_text(best)}"
    )
    return picture(
        WIDE,
        bottom + 42,
        about,
        y_axis(y, left, x.stop, str(objective)),
        line(left, bottom, x.stop, bottom, "axis"),
        axis,
        label((left + x.stop) / 2, bottom + 34, "trial", cls="name middle"),
        path,
        *drawn,
    )


def pareto(trials: Sequence[Trial], objectives: Sequence[Measure], front: Sequence[Trial]) -> str:
    """Draws the first two objectives against each other; trials of the Pareto front are marked and joined by steps. Pure."""
    bottom, left, width = 340, 62, 760
    first, second = objectives[:2]
    x, y = scale_of(trials, first, left, width - 20), scale_of(trials, second, bottom, 34)
    is_front = {trial.number for trial in front}

    def at(trial: Trial) -> tuple[float, float] | None:
        one, other = value_of(trial, first.place), value_of(trial, second.place)
        return None if one is None or other is None else (x.place(one), y.place(other))

    ordered = sorted(place for trial in front if (place := at(trial)) is not None)
    # the corner between two of the front lies on the worse side of both: nobody has reached it
    corners = [
        f"V{there_y:.1f}H{there_x:.1f}" if first.higher_is_better else f"H{there_x:.1f}V{there_y:.1f}"
        for there_x, there_y in ordered[1:]
    ]
    path = f"M{ordered[0][0]:.1f} {ordered[0][1]:.1f}{''.join(corners)}" if ordered else ""
    marks = [
        mark(*place, trial.state, hint(trial, objectives), trial.number, " front" if trial.number in is_front else " behind")
        for trial in sorted(trials, key=lambda trial: trial.number in is_front)
        if (place := at(trial)) is not None
    ]
    return picture(
        width,
        bottom + 42,
        f"{first.metric} against {second.metric}: {len(front)} of {len(trials)} trials are on the front",
        y_axis(y, left, x.stop, str(second)),
        x_axis(x, bottom, str(first)),
        element("path", d=path, cls="best") if path else "",
        *marks,
    )


def slice_of(trials: Sequence[Trial], setting: Setting, objective: Measure, best: int | None) -> str:
    """Draws the objective over one setting; `best` is the number of the trial that is ringed. Pure."""
    width, bottom, left = 320, 190, 54
    y = scale_of(trials, objective, bottom - 6, 14)
    x: Scale | Places = (
        Scale(setting.low, setting.high, left + 8, width - 22, setting.log)
        if setting.choices is None
        else Places(setting.choices, left + 4, width - 10)
    )
    marks = list[str]()
    for trial in sorted(trials, key=lambda trial: (trial.number == best, trial.state == COMPLETE)):
        value = value_of(trial, objective.place)
        if value is None or trial.values is None or setting.name not in trial.values:
            continue
        given = trial.values[setting.name]
        aside = (
            ((trial.number * 0.618) % 1 - 0.5) * 0.5 * x.width if isinstance(x, Places) else 0.0
        )  # or equals would hide each other
        extra = "" if y.holds(value) else " off"
        where = x.place(given) + aside, y.place(value)
        marks.append(
            mark(*where, trial.state, hint(trial, [objective], f"{setting.name} = {number_text(given)}"), trial.number, extra)
        )
        if trial.number == best:
            marks.append(element("circle", cx=where[0], cy=where[1], r=7.5, cls="ring"))
    return picture(
        width,
        bottom + 40,
        f"{objective.metric} over {setting.name}",
        y_axis(y, left, width - 8, "", 5),
        x_axis(x, bottom, setting.name, 5),
        *marks,
    )


def fold_colour(fold: int) -> str:
    """Returns the colour of a fold; colours repeat when there are more folds than colours. Pure."""
    return FOLD_COLOURS[fold % len(FOLD_COLOURS)]


def folds(trials: Sequence[Trial], objective: Measure) -> str:
    """Draws what each training of these trials gave, in a row for each trial, with the mean. Pure."""
    left, right, height, top = 74, 800, 26, 8
    rows = [(trial, parts_of(trial, objective.place)) for trial in trials]
    values = [part.value for _, parts in rows for part in parts]
    num_repeats = min(3, len({part.repeat for _, parts in rows for part in parts}))
    low, high = min(values), max(values)
    room = (high - low) * 0.04 or abs(high) * 0.05 or 0.5
    x, bottom = Scale(low - room, high + room, left, right), top + height * len(rows)
    drawn = [line(place, top, place, bottom, "grid") for place, _ in x.ticks(8)]
    for place, (trial, parts) in enumerate(rows):
        y = top + (place + 0.5) * height
        drawn.append(element("text", f"trial {trial.number}", x=left - 8, y=y + 4, cls="tick end"))
        for part in parts:
            about = f"trial {trial.number}, fold {part.fold}, repeat {part.repeat}: {number_text(part.value)}"
            style = f"fill:{fold_colour(part.fold)}"
            aside = (part.repeat % 3 - (num_repeats - 1) / 2) * 6.0  # random starts of a fold often give nearly the same
            drawn.append(
                element(
                    "circle", title(about), cx=x.place(part.value), cy=y + aside, r=4, cls="part", style=style, data_t=trial.number
                )
            )
        mean = statistics.fmean(part.value for part in parts)
        drawn.append(
            element(
                "path",
                title(f"trial {trial.number}: mean {number_text(mean)}"),
                d=f"M{x.place(mean):.1f} {y - 10:.1f}v20",
                cls="mean",
            )
        )
        spread = spread_over_parts(trial, objective.place)
        drawn.append(
            element(
                "text",
                safe(number_text(mean) + ("" if spread is None else f" ± {number_text(spread, 2)}")),
                x=right + 12,
                y=y + 4,
                cls="tick",
            )
        )
    about = f"{objective.metric} of every fold and repeat of the best {len(rows)} trials"
    return picture(right + 170, bottom + 42, about, *drawn, x_axis(x, bottom, objective.metric))
