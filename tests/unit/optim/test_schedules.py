"""A schedule gives the settings of every group at a step, whatever it was made of."""

# ruff: noqa: ARG005 - what a function is given goes by the names of its arguments, used or not

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch._inductor.config  # the first optimiser loads it, and it sets a variable of the environment
from torch.optim import Optimizer, lr_scheduler

from unisono.errors import UsageError
from unisono.optim.schedules import Schedule, make_schedule
from unisono.optim.torch_schedulers import ROWS_AT_A_TIME, Stepped


def two_groups(cls: Any = torch.optim.SGD, **options: Any) -> Optimizer:
    groups = [
        {"params": [torch.nn.Parameter(torch.ones(2))], "lr": 0.1},
        {"params": [torch.nn.Parameter(torch.ones(3))], "lr": 0.01},
    ]
    made: Optimizer = cls(groups, **options)
    return made


def make(spec: Any, options: dict[str, Any] | None = None, optimizer: Optimizer | None = None, num_steps: int = 20) -> Schedule:
    return make_schedule(spec, options or {}, num_steps=num_steps, steps_per_epoch=5, optimizer=optimizer or two_groups())


def lrs(schedule: Schedule, step: int) -> list[float]:
    return [settings["lr"] for settings in schedule(step)]


def test_none_leaves_each_group_its_rate() -> None:
    assert lrs(make(None), 7) == [0.1, 0.01]


def test_a_name_scales_each_group() -> None:
    assert lrs(make("cosine"), 10) == pytest.approx([0.05, 0.005])


def test_a_function_of_the_step_scales_each_group() -> None:
    assert lrs(make(lambda step: 1 / (step + 1)), 3) == pytest.approx([0.025, 0.0025])
    assert lrs(make(lambda step, num_steps, slope: 1 - slope * step / num_steps, {"slope": 0.5}), 10) == pytest.approx(
        [0.075, 0.0075]
    )
    assert lrs(make(lambda step: torch.tensor(0.5)), 1) == pytest.approx([0.05, 0.005])


MAKERS: tuple[Any, ...] = (
    lambda optimizer: lr_scheduler.StepLR(optimizer, 3, gamma=0.5),
    lambda optimizer: lr_scheduler.LambdaLR(optimizer, [lambda step: 1 / (step + 1), lambda step: 2.0]),
    lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=[1.0, 0.5], total_steps=20),
    lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.1, 1.0, step_size_up=4),
    lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 6),
    lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), lr_scheduler.ExponentialLR(optimizer, 0.9)], [4]
    ),
    lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(optimizer, 0.9), lr_scheduler.ConstantLR(optimizer)]
    ),
    functools.partial(lr_scheduler.MultiStepLR, milestones=[2, 5]),
)


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("make_scheduler", MAKERS)
@pytest.mark.parametrize("cls", [functools.partial(torch.optim.SGD, momentum=0.9), torch.optim.AdamW])
def test_a_torch_scheduler_gives_what_it_would_give_itself(make_scheduler: Any, cls: Any) -> None:
    real, shadow = two_groups(cls), two_groups(cls)
    schedule = make(make_scheduler, {"interval": "step"}, optimizer=shadow)
    scheduler = make_scheduler(real)
    for step in range(20):
        for settings, wanted, got in zip(schedule(step), real.param_groups, shadow.param_groups, strict=True):
            got.update(settings)
            for name in ("lr", "momentum", "betas", "weight_decay"):
                assert got.get(name) == wanted.get(name), (step, name)
        real.step()
        if step < 19:
            scheduler.step()


def test_a_torch_scheduler_does_not_touch_the_real_optimizer() -> None:
    optimizer = two_groups(momentum=0.9)
    before = [dict(group) for group in optimizer.param_groups]
    make(lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=20), optimizer=optimizer)(10)
    assert [dict(group) for group in optimizer.param_groups] == before


def test_the_order_of_questions_does_not_matter() -> None:
    num_steps = 3 * ROWS_AT_A_TIME
    spec: Any = lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=3 * ROWS_AT_A_TIME)  # noqa: E731
    forward, jumping = (make(spec, optimizer=two_groups(momentum=0.9), num_steps=num_steps) for _ in range(2))
    steps = list(range(0, num_steps, 97))
    assert [forward(step) for step in steps] == [jumping(step) for step in reversed(steps)][::-1]
    assert forward(num_steps - 1) == jumping(num_steps - 1)


def test_a_class_with_options_counted_in_epochs() -> None:
    schedule = make(lr_scheduler.ExponentialLR, {"gamma": 0.5, "interval": "epoch"})
    assert [lrs(schedule, step)[0] for step in (0, 4, 5, 19)] == [0.1, 0.1, 0.05, 0.0125]


EPOCHS: dict[str, Any] = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, gamma=0.1),
    "MultiStepLR": functools.partial(lr_scheduler.MultiStepLR, milestones=[1, 3]),
    "ExponentialLR": lambda optimizer, gamma=0.5: lr_scheduler.ExponentialLR(optimizer, gamma),
}


@pytest.mark.parametrize("name", EPOCHS)
def test_classes_that_count_in_epochs_make_their_steps_as_in_the_loop_of_torchs_documentation(name: str) -> None:
    real = two_groups()
    schedule, scheduler = make(EPOCHS[name]), EPOCHS[name](real)
    for epoch in range(4):
        for step in range(5):
            assert lrs(schedule, epoch * 5 + step) == [group["lr"] for group in real.param_groups], (epoch, step)
            real.step()
        scheduler.step()
    assert isinstance(schedule, Stepped)
    expected = f"learning rate: {name} makes a step after every epoch of the training (--set schedule.interval=step, or epoch)"
    assert schedule.describe(5) == expected


BY_STEP: dict[str, tuple[Any, dict[str, Any], str]] = {
    "told so": (lr_scheduler.StepLR, {"step_size": 4, "interval": "step"}, "step of the training"),
    "as in earlier versions": (lr_scheduler.StepLR, {"step_size": 4, "interval": None}, "step of the training"),
    "it knows the steps": (lambda optimizer, num_steps: lr_scheduler.StepLR(optimizer, num_steps // 5), {}, "step of the "),
    "used for both": (lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.1 ** (step // 4)), {}, "step of the "),
}


@pytest.mark.parametrize("name", BY_STEP)
def test_other_schedulers_make_a_step_after_every_step(name: str) -> None:
    spec, options, text = BY_STEP[name]
    schedule = make(spec, options)
    assert [round(lrs(schedule, step)[0], 9) for step in (0, 3, 4, 8, 19)] == [0.1, 0.1, 0.01, 0.001, 0.00001]
    assert isinstance(schedule, Stepped)
    assert f"makes a step after every {text}" in schedule.describe(5)
    assert ("--set schedule.interval" in schedule.describe(5)) == ("interval" not in options)


def test_the_interval_of_earlier_versions_has_no_effect_without_a_torch_scheduler() -> None:
    assert lrs(make("cosine", {"interval": None}), 10) == pytest.approx([0.05, 0.005])
    assert lrs(make(lambda step: 0.5, {"interval": None}), 10) == pytest.approx([0.05, 0.005])
    assert lrs(make(None, {"interval": None}), 10) == [0.1, 0.01]


def test_a_function_learns_the_length_of_the_run() -> None:
    def schedule(optimizer: Optimizer, num_steps: int, steps_per_epoch: int) -> lr_scheduler.LRScheduler:
        assert (num_steps, steps_per_epoch) == (20, 5)
        return lr_scheduler.CosineAnnealingLR(optimizer, num_steps)

    assert lrs(make(schedule), 10) == pytest.approx([0.05, 0.005])


class NoRate(Optimizer):
    def __init__(self) -> None:
        super().__init__([torch.nn.Parameter(torch.ones(1))], {"speed": 1.0})


def test_an_optimizer_without_a_rate_goes_without_a_schedule() -> None:
    assert make(None, optimizer=NoRate())(0) == ({},)
    with pytest.raises(UsageError, match="NoRate has no learning rate"):
        make("cosine", optimizer=NoRate())


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer), {}, "ReduceLROnPlateau depends on a metric"),
        (lr_scheduler.ReduceLROnPlateau, {}, "ReduceLROnPlateau depends on a metric"),
        (lambda opt: lr_scheduler.ExponentialLR(opt, 0.9), {}, "first argument .* must be called `optimizer`"),
        (lambda optimizer: 0.5, {}, "must return a torch LRScheduler"),
        (lambda optimizer: lr_scheduler.ExponentialLR(two_groups(), 0.9), {}, "made with another optimizer"),
        (lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=9), {}, "ends after 9 steps and the run has 20"),
        (lr_scheduler.ExponentialLR, {}, "the schedule needs gamma"),
        (lr_scheduler.ExponentialLR, {"gama": 0.9}, "unknown option 'gama' of the schedule; did you mean 'gamma'"),
        (lr_scheduler.ExponentialLR, {"gamma": "x"}, "the scheduler ExponentialLR failed at step 1"),
        (lr_scheduler.ExponentialLR, {"gamma": 0.9, "interval": "hour"}, "must be 'step' or 'epoch'"),
        (lr_scheduler.ExponentialLR(two_groups(), 0.9), {}, "is a ExponentialLR of another optimizer"),
        (lambda step: "fast", {}, "returned 'fast' for step 0"),
        (lambda step: -1.0, {}, "returned -1.0 for step 0"),
        (lambda step: float("nan"), {}, "returned nan for step 0"),
        (lambda: 1.0, {}, "takes no argument"),
        (None, {"warmup_steps": 3}, "no effect without a schedule; name one"),
        (3, {}, "must be a name or a function"),
    ],
)
def test_mistakes_are_named(spec: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(spec, options)
