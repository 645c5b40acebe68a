"""The picture of all settings and objectives of a study beside each other, a line for each trial. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.observe.pages.axes import Places, Scale
from unisono.observe.pages.drawings import path_through
from unisono.observe.pages.svg import element, label, line, number_text, picture, title
from unisono.tuning.report.findings import Measure, Setting, value_of
from unisono.tuning.report.pictures import WIDE, hint, scale_of
from unisono.tuning.study.study import COMPLETE, RUNNING, WAITING, Trial

RAMP = ((213, 94, 0), (230, 159, 0), (86, 180, 233), (0, 114, 178))
"""From the worst to the best, of the Okabe-Ito colours: vermilion, orange, sky blue, blue."""
GAP = 128
"""Between two axes, at least."""
BOLD = 7.0
"""The width of a letter of a name, about."""
LEFT, RIGHT, TOP, BOTTOM = 92, 70, 46, 330

Axis = Scale | Places


def parallel(trials: Sequence[Trial], settings: Sequence[Setting], objectives: Sequence[Measure]) -> str:
    """Draws every trial as a line over one axis for each setting and objective, coloured by its rank in the first objective. The
    line is broken where a trial has no such setting, and grey where it has no comparable result. Pure."""
    complete = [trial for trial in trials if trial.state == COMPLETE and value_of(trial, objectives[0].place) is not None]
    done = {trial.number for trial in complete}
    others = [trial for trial in trials if trial.number not in done and trial.state not in (RUNNING, WAITING)]
    names = [*(one.name for one in settings), *(one.metric for one in objectives)]
    width = max(WIDE, LEFT + GAP * (len(names) - 1) + RIGHT)
    xs = [LEFT + place * (width - LEFT - RIGHT) / max(1, len(names) - 1) for place in range(len(names))]
    axes = [*(_axis_of(one) for one in settings), *(scale_of(complete, one, BOTTOM, TOP) for one in objectives)]
    worst_first = sorted(
        complete, key=lambda trial: (objectives[0].gain(value_of(trial, objectives[0].place) or 0.0), -trial.number)
    )
    lines = list[str]()
    for rank, trial in enumerate((*others, *worst_first), start=-len(others)):
        places = _places(trial, settings, objectives, axes, has_result=rank >= 0)
        style = f"stroke:{_ramp(rank / (len(complete) - 1) if len(complete) > 1 else 1.0)}" if rank >= 0 else None
        said = [
            f"{one.name} = {number_text(trial.values[one.name])}" for one in settings if trial.values and one.name in trial.values
        ]
        about, cls = (
            title(hint(trial, objectives, *said)),
            "way grey" if rank < 0 else "way first" if rank + 1 == len(complete) else "way",
        )
        lines.append(element("path", about, d=path_through(xs, places), cls=cls, style=style, data_t=trial.number))
    about = f"The settings and results of {len(trials)} trials, one line for each over {', '.join(names)}"
    most = int((width - LEFT - RIGHT) / max(1, len(names) - 1) / BOLD)
    drawn = [_drawn_axis(x, name, axis, most) for x, name, axis in zip(xs, names, axes, strict=True)]
    return picture(width, BOTTOM + 18, about, *lines, *drawn)


def _axis_of(setting: Setting) -> Axis:
    """Returns the axis of a setting: one place for each choice, or a scale."""
    if setting.choices is not None:
        return Places(setting.choices, BOTTOM, TOP)
    return Scale(setting.low, setting.high, BOTTOM, TOP, setting.log)


def _drawn_axis(x: float, name: str, axis: Axis, most: int) -> str:
    """Draws one axis at `x`, with ticks and name."""
    ticks = (line(x - 3, y, x + 3, y, "axis") + label(x - 7, y + 4, text, 13, cls="tick end halo") for y, text in axis.ticks(6))
    return label(x, TOP - 22, name, most, cls="name middle") + line(x, TOP, x, BOTTOM, "axis") + "".join(ticks)


def _places(
    trial: Trial, settings: Sequence[Setting], objectives: Sequence[Measure], axes: Sequence[Axis], has_result: bool
) -> list[float | None]:
    """Returns the place of a trial on each axis; None where it has no value."""
    given = trial.values or {}
    results = [value_of(trial, one.place) if has_result else None for one in objectives]
    found = [axis.place(given[one.name]) if one.name in given else None for axis, one in zip(axes, settings, strict=False)]
    more = zip(axes[len(settings) :], results, strict=True)
    return [*found, *(None if value is None else axis.place(value) for axis, value in more)]


def _ramp(share: float) -> str:
    """Returns the colour of a rank between 0 and 1, as '#rrggbb'."""
    place = min(1.0, max(0.0, share)) * (len(RAMP) - 1)
    below = min(int(place), len(RAMP) - 2)
    red, green, blue = (round(a + (b - a) * (place - below)) for a, b in zip(RAMP[below], RAMP[below + 1], strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"
