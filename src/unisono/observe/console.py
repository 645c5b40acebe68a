"""The progress of a run on the console: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TextIO

from unisono.events import EpochDone, Observer, RunEnded, RunStarted, StepDone
from unisono.observe.bar import DRAW_EVERY_S, Bar
from unisono.observe.monitor import describe_gpus
from unisono.observe.quantities import duration, rate, value

LINE_EVERY_S = 30.0
"""Interval of lines about a long epoch in a log file."""
NOTABLE_WAIT = 0.05
"""Share of an epoch spent waiting for data from which on a user should know of it."""
SMOOTHING_S = 2.0
SPARE = ("step", "rate", "metric", "left", "loss")
"""Fields that are left out first on a narrow terminal."""

BOLD, FAINT, GREEN, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[0m"


class Console(Observer):
    """Shows the progress of a run. Local; `step` costs next to nothing when there is nothing to draw."""

    def __init__(
        self,
        stream: TextIO,
        columns: int | None = None,
        colour: bool = False,
        line_every_s: float = LINE_EVERY_S,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`columns`: width of the terminal that shows `stream`; None where it is no terminal. `colour`: may be used there."""
        self._bar = Bar(stream, columns, colour, line_every_s if columns is None else DRAW_EVERY_S)
        self._colour = colour and columns is not None
        self._clock = clock
        self._progress: _Progress | None = None
        self._run: RunStarted | None = None
        self._began_s = 0.0
        self._epoch_began_s = 0.0
        self._best: EpochDone | None = None

    def started(self, event: RunStarted) -> None:
        """Prints one line on what is trained, where and how."""
        self._run = event
        self._progress = _Progress(event)
        self._began_s = self._epoch_began_s = self._clock()
        plural = "" if event.num_workers == 1 else "s"
        servers = f"{event.num_servers} server{'s' * (event.num_servers > 1)} and " if event.num_servers else ""
        parts = (
            f"{servers}{event.num_workers} worker{plural} ({event.engine}, {event.device})",
            f"global batch {event.global_batch}",
            f"{event.num_samples:,} samples",
            f"{event.num_parameters:,} parameters",
        )
        self._bar.say(f"{self._strong(event.name or 'run')}: {', '.join(parts)}; results in {event.out}")
        if event.first_step:
            self._bar.say(f"resumed from step {event.first_step}")

    def step(self, event: StepDone) -> None:
        """Draws the progress bar or, without a terminal, prints a line now and then."""
        now = self._clock()
        if not self._bar.is_due(now):
            return
        assert self._progress is not None, "told of a step before the start"
        first = self._progress.note(event, now)
        if self._bar.is_shown:
            self._bar.draw(self._progress.epoch_text, self._progress.fraction, self._progress.fields(event), SPARE)
        elif not first:  # the first of an epoch says nothing that the line before has not said
            self._bar.say("  ".join((self._progress.epoch_text, *self._progress.fields(event).values())))

    def evaluating(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress.pause()
        if self._bar.is_shown and self._bar.is_due(self._clock()):
            epoch = "" if self._progress is None else self._progress.epoch_text
            self._bar.draw(epoch, done / max(total, 1), {"step": f"validation {done}/{total}"}, SPARE)

    def epoch(self, event: EpochDone) -> None:
        """Prints the line of an epoch: metrics, speed, time, waits for data, whether it is the best."""
        assert self._progress is not None, "told of an epoch before the start"
        now = self._clock()
        took_s, self._epoch_began_s = now - self._epoch_began_s, now
        parts = [
            self._progress.name_of(event.epoch),
            *_metrics_text(event.metrics),
            f"{rate(event.samples_per_s)} samples/s",
            duration(took_s),
        ]
        if event.data_wait_s > NOTABLE_WAIT * took_s > 0:
            parts.append(f"waited {event.data_wait_s / took_s:.0%} of it for data")
        if event.is_best:
            self._best = event
            parts.append(self._colour_text("best", GREEN))
        if event.weights:
            parts.append(self._colour_text(f"weights {event.weights}", FAINT))
        self._bar.say("  ".join(parts))
        self._progress.pause()
        self._bar.draw_soon()  # the first step of an epoch is always seen: there its time begins

    def say(self, text: str) -> None:
        self._bar.say(text)

    def ended(self, event: RunEnded) -> None:
        """Prints how the run ended: reason, steps, time, best epoch, test metrics, the weights that count, and where the results
        are."""
        steps = event.summary.get("steps")
        wall_s = event.summary.get("wall_s", self._clock() - self._began_s)
        text = f"{event.reason}: {'' if steps is None else f'{steps} steps in '}{duration(wall_s)}"
        if self._best is not None:
            monitored = None if self._run is None else self._run.monitor
            shown = _metrics_text({name: number for name, number in self._best.metrics.items() if monitored in (None, name)})
            text += f"; best epoch {self._best.epoch + 1} ({', '.join(shown)})"
        tested = {name: number for name, number in event.summary.get("metrics", {}).items() if name.startswith("test_")}
        which = event.summary.get("weights", "final")
        if tested:
            text += f"; {'  '.join(_metrics_text(tested))} ({which} weights)"
        elif which == "best":
            text += "; the best weights count"
        self._bar.say(self._strong(text))
        if busy := describe_gpus(event.summary.get("monitor", ())):
            self._bar.say(busy)
        file = "best.safetensors" if which == "best" else "weights.safetensors"
        if self._run is not None:
            self._bar.say(f"results in {self._run.out}: curves.png (a picture), summary.json, metrics.jsonl, {file}")

    def close(self) -> None:
        """Leaves the cursor at the beginning of an empty line."""
        self._bar.close()

    def _strong(self, text: str) -> str:
        """Returns the text in bold."""
        return self._colour_text(text, BOLD)

    def _colour_text(self, text: str, colour: str) -> str:
        """Returns the text in a colour, if colours may be used."""
        return f"{colour}{text}{PLAIN}" if self._colour and text else text


class _Progress:
    """The progress of a run, its speed and the time left."""

    def __init__(self, run: RunStarted) -> None:
        self._run = run
        self._began: tuple[float, int] | None = None
        """When the first step that was seen had ended, and its number: what comes before is warming up."""
        self._mark: tuple[float, int] | None = None
        self._samples_per_s = 0.0
        self._left_s: float | None = None
        self.fraction = 0.0
        """The share of the epoch that is done."""
        self.epoch_text = self.name_of(run.first_step // max(run.steps_per_epoch, 1))

    def name_of(self, epoch: int) -> str:
        """Returns the name of an epoch, counted from 1: 'epoch  3/20'."""
        total = str(self._run.num_epochs)
        return f"epoch {epoch + 1:>{len(total)}}/{total}"

    def pause(self) -> None:
        """Pauses the measurement of speed: what comes now is no training, so the next step begins a new one."""
        self._mark = None

    def note(self, event: StepDone, now: float) -> bool:
        """Measures a step; returns whether it is the first since a pause."""
        first = self._mark is None
        if self._mark is not None and now > self._mark[0] and event.step > self._mark[1]:
            elapsed_s = now - self._mark[0]
            speed = (event.step - self._mark[1]) * self._run.global_batch / elapsed_s
            weight = min(1.0, elapsed_s / SMOOTHING_S) if self._samples_per_s else 1.0
            self._samples_per_s += weight * (speed - self._samples_per_s)
        self._mark = (now, event.step)
        if self._began is None:
            self._began = self._mark
        elif event.step > self._began[1]:
            a_step_s = (now - self._began[0]) / (event.step - self._began[1])  # validations included, as they will come again
            self._left_s = a_step_s * max(0, self._run.num_epochs * self._run.steps_per_epoch - event.step - 1)
        self.fraction = (event.step_in_epoch + 1) / max(self._run.steps_per_epoch, 1)
        self.epoch_text = self.name_of(event.epoch)
        return first

    def fields(self, event: StepDone) -> dict[str, str]:
        """The fields of a line about a step, in the order in which they are shown, after the epoch."""
        found = {
            "step": f"step {event.step_in_epoch + 1}/{self._run.steps_per_epoch}",
            "loss": f"loss {value(event.loss)}",
        }
        metric = next(((name, number) for name, number in event.sums.items() if name != "loss"), None)
        if metric is not None:
            found["metric"] = f"{metric[0]} {value(metric[1])}"
        if self._samples_per_s:
            found["rate"] = f"{rate(self._samples_per_s)} samples/s"
        if self._left_s is not None:
            found["left"] = f"{duration(self._left_s)} left"
        return found


def _metrics_text(metrics: Mapping[str, float]) -> list[str]:
    """Returns each metric with its value as text."""
    return [f"{name} {value(number)}" for name, number in metrics.items()]
