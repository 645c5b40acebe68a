"""The events of a run that never happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unisono.events import EpochDone, Observer, RunEnded, RunStarted, StepDone

START = RunStarted(
    name="digits",
    out="runs/digits",
    num_workers=2,
    rank=0,
    engine="shm",
    device="cpu",
    global_batch=100,
    num_epochs=3,
    steps_per_epoch=10,
    num_samples=1000,
    num_parameters=4810,
    monitor="val_accuracy",
)
STEP = StepDone(0, 0, 0, loss=0.5, lr=0.1, num_samples=100, wall_s=0.0, data_wait_s=0.0)


def step(number: int, loss: float = 0.5) -> StepDone:
    epoch, inside = divmod(number, START.steps_per_epoch)
    return STEP._replace(
        step=number, epoch=epoch, step_in_epoch=inside, loss=loss, wall_s=number / 10, so_far=lambda: {"accuracy": 0.75}
    )


def epoch(number: int, is_best: bool = False, **metrics: float) -> EpochDone:
    done = (number + 1) * START.steps_per_epoch
    told = metrics or {"loss": 0.5, "val_loss": 0.25, "val_accuracy": 0.9 + number / 100}
    return EpochDone(number, done, told, 0.1, 812.0, wall_s=done / 10, data_wait_s=0.0, is_best=is_best)


END = RunEnded({"steps": 30, "wall_s": 3.0, "metrics": {"val_accuracy": 0.92}, "versions": {"torch": "2"}}, "finished")


def replay_run(watchers: Sequence[Observer], between: Callable[[], None] = lambda: None) -> None:
    """A run of three epochs; `between` is called before each step."""
    for watcher in watchers:
        watcher.started(START)
    for number in range(30):
        between()
        for watcher in watchers:
            watcher.step(step(number))
        if number % 10 == 9:
            for watcher in watchers:
                watcher.evaluating(1, 2)
                watcher.epoch(epoch(number // 10, is_best=number < 20))
    for watcher in watchers:
        watcher.ended(END)
        watcher.close()
