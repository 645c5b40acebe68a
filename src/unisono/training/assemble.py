"""From a task to the parts of a training: data, model, loss, optimiser, algorithm. Every mistake that can be seen is told here,
before any work starts."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from unisono.algorithms.base import Algorithm, Settings
from unisono.algorithms.sharded import shards_of_all
from unisono.comm.base import Communicator
from unisono.data.checks import check_finite
from unisono.data.folded import divided
from unisono.data.loader import Loader
from unisono.data.plan import Plan, Windows
from unisono.data.source import Source
from unisono.data.splits import Splits
from unisono.errors import UsageError, unknown_name
from unisono.events import Spans
from unisono.model.base import StreamKey
from unisono.model.keras.backends import prepare_backend
from unisono.model.keras.body import KerasBody
from unisono.model.keras.module import KerasModule
from unisono.model.keras.recognise import is_keras
from unisono.model.keras.take_over import take_over
from unisono.model.lightning import LightningBody, Surroundings, metric_name
from unisono.model.lightning_module import configured, set_up
from unisono.model.losses import resolve_loss
from unisono.model.torch import Body, LossBody, TorchAdapter, trainable
from unisono.optim.optimizers import make_optimizer, optimizer_class
from unisono.optim.schedules import Schedule, make_schedule, ready_schedule
from unisono.overrides import Changed
from unisono.task import Task
from unisono.training.agreement import agreement_of
from unisono.training.central.assemble import make_central, rule_of
from unisono.training.central.division import Asked
from unisono.training.defaults import DEFAULT_LR, brings_steps, with_defaults
from unisono.training.device import compute_device
from unisono.training.followed import Followed, in_training
from unisono.training.keras_task import beside_last, metrics_of, optimizer_of, settle
from unisono.training.metrics import Metric, resolve_metrics
from unisono.training.metrics.keras import KerasMetric
from unisono.training.progress import Goals
from unisono.training.shard_rules import refuse_synchronised
from unisono.training.shared_metrics import share_metrics
from unisono.training.try_out import try_out, try_parts, try_steps

INITIAL_STEP = -1
"""The step number of the random stream that makes the model."""


@dataclass(frozen=True)
class Assembled:
    """Everything a trainer needs that a task decides."""

    task: Task
    """With what it leaves open filled in."""
    splits: Splits
    adapter: TorchAdapter
    algorithm: Algorithm
    loader: Loader
    metrics: Sequence[Metric]
    followed: Sequence[Metric]
    """Those that are computed in every training step."""
    settings: Callable[[int], Settings]
    goals: Goals
    judged: Mapping[str, bool] = field(default_factory=dict)
    """What an epoch can be judged by -> whether more of it is better."""


def make_splits(changed: Changed) -> Splits:
    """Local, blocking: the data of the task."""
    found = changed.task.data(**changed.data)
    if not isinstance(found, Splits):
        raise UsageError(f"data of the task must give un.Splits(train=..., validation=..., test=...); it gave {_kind(found)}")
    return divided(found, changed.division)


def make_model(changed: Changed, device: torch.device) -> nn.Module:
    """Local: the model with its initial weights, a function of the seed alone."""
    if isinstance(changed.task.model, nn.Module) or is_keras(changed.task.model):
        raise UsageError(
            f"model of the task is a {type(changed.task.model).__name__} that is made already; give the function that makes it, "
            "e.g. model=lambda: Net(), so that the seed decides its weights"
        )
    prepare_backend()
    first = StreamKey(changed.task.seed, INITIAL_STEP, 0).value()
    torch.manual_seed(first)
    before = random.getstate()
    random.seed(first)  # from which Keras draws the seeds of its initialisers
    try:
        model = changed.task.model(**changed.model)
    finally:
        random.setstate(before)
    if is_keras(model):
        model = take_over(model)
    if isinstance(model, KerasModule) and device.type == "cuda" and not model.backend.takes_cuda:
        raise UsageError(
            "Keras on TensorFlow or JAX learns through the memory of the host here; give --engine shm (or gloo, mpi), or run Keras "
            "on torch (KERAS_BACKEND=torch) to keep the vectors on the GPU"
        )
    if not isinstance(model, nn.Module):
        raise UsageError(f"model of the task must give a torch.nn.Module or a Keras model; it gave {_kind(model)}")
    if brings_steps(changed.task, model):
        set_up(model)
    if not model.training:  # as some libraries give theirs
        model.train()
    return model.to(device)


def assemble(
    changed: Changed,
    algorithm_name: str,
    comm: Communicator,
    on_nan: str,
    spans: Spans | None = None,
    device_asked: str = "auto",
    asked: Asked = Asked(),  # noqa: B008 - it cannot change
    replay: Sequence[str] | None = None,
) -> Assembled:
    """Local, blocking: all parts of this rank's training."""
    task = changed.task
    device = compute_device(device_asked, comm, task.shards is not None)
    algorithm_name, kind, options, division, batch = agreement_of(changed, algorithm_name, comm.size, asked, replay)
    own_shards = None if task.shards is None else shards_of_all(task.shards, comm.size)[comm.rank]
    if task.step is not None and task.accumulate > 1:
        raise UsageError(f"accumulate {task.accumulate} is not read by a task's own step, which sees its whole part; leave it out")
    splits = make_splits(changed)
    model = make_model(changed, device)
    if task.shards is not None:
        refuse_synchronised(model)
    task = with_defaults(task, model)
    if isinstance(model, KerasModule):
        settle(model, task, splits.train, device)
    metrics = make_metrics(task, model)
    plan = Plan(len(splits.train), task.global_batch, task.seed, windows=_windows(splits.train))
    around = Surroundings(task.epochs, plan.steps_per_epoch, comm.rank, comm.size)
    body = make_body(task, model, around, with_outputs=any(not isinstance(metric, KerasMetric) for metric in metrics))
    judged = {f"val_{metric.name}": metric.higher_is_better for metric in metrics}
    if isinstance(body, LightningBody):
        judged |= try_steps(body, model, splits, device)
    else:
        judged |= {"val_loss": False} if task.loss is not None or isinstance(body, KerasBody) else {}
        if task.step is None:
            try_out(model, splits, task, device)
    followed = in_training(metrics) if task.step is None and not isinstance(body, LightningBody) else ()
    adapter = TorchAdapter(
        model,
        body,
        make_parts(task, model),
        device,
        comm.empty if device == comm.device else partial(_empty, device),
        Followed(followed) if followed else None,
        task.precision,
        task.clip_norm,
        task.step,
    )
    adapter.aligns = task.shards is not None
    if on_nan == "stop":
        for name, part in splits.parts().items():
            if name != "train" or task.augment is None:
                check_finite(name, part, with_targets=isinstance(task.loss, str))
    if isinstance(body, LossBody) and task.step is None:
        try_parts(adapter, splits, task, metrics)
    if isinstance(body, LightningBody):
        share_metrics(model, comm)
        schedules = {"": _schedule_of(body, adapter)}
    else:
        schedules = {name: _schedule(task, name, adapter, plan) for name in adapter.parts}
    settings = _settings(schedules)
    if division is None:
        algorithm: Algorithm = kind(comm, adapter, options, spans, asked.group or 1)
        shard, num_shards = comm.rank if own_shards is None else own_shards.start, task.shards or comm.size
    else:
        if isinstance(body, LightningBody):
            raise UsageError(f"--algorithm {algorithm_name} cannot train a LightningModule; use allreduce, or a plain module")
        algorithm = make_central(
            rule_of(kind, options), algorithm_name, comm, division, adapter, task,
            partial(make_body, task), partial(make_parts, task), changed.simulate, replay, spans,
        )  # fmt: skip
        shard, num_shards = division.place(comm.rank), division.group
        units_per_epoch = replace(plan, global_batch=batch).steps_per_epoch
        settings = partial(_settings_of_worker, settings, division.num_workers, units_per_epoch, plan.steps_per_epoch)
    # A CPU that computes has no time to prepare the next batch beside it; where a GPU does, it has.
    works_ahead = device.type == "cuda"
    return Assembled(
        task,
        splits,
        adapter,
        algorithm,
        Loader(
            splits.train,
            replace(plan, global_batch=batch),
            shard,
            num_shards,
            task.accumulate,
            task.augment,
            task.step is not None,
            own_shards,
            works_ahead,
        ),
        metrics,
        followed,
        settings,
        make_goals(task, beside_last(judged, metrics), splits, on_nan),
        beside_last(judged, metrics),
    )


def _empty(device: torch.device, numel: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(numel, dtype=dtype, device=device)


def make_body(task: Task, model: nn.Module, around: Surroundings | None = None, with_outputs: bool = False) -> Body:
    """Local: how a batch becomes a loss. A task with its own step has a loss only where it is evaluated by one."""
    if brings_steps(task, model):
        return LightningBody(model, around or Surroundings(), with_outputs)
    if isinstance(model, KerasModule):
        return KerasBody(with_outputs)
    if task.loss is None and task.step is None:
        raise UsageError("the task has no loss; name one, e.g. loss='cross_entropy', or give a function of outputs and targets")
    return LossBody(None if task.loss is None else resolve_loss(task.loss, task.loss_options))


def make_parts(task: Task, model: nn.Module) -> dict[str, list[tuple[str, nn.Parameter]]]:
    """Local: the parameters of each optimiser: all of them, or of a task's own step those of the modules it names."""
    if not isinstance(task.optimizer, Mapping):
        return {"": trainable(model)}
    if task.step is None:
        raise UsageError("several optimizers need the task's own step (step=...), which says which of them learns from what")
    children = {name for name, _ in model.named_modules() if name}
    for name in task.optimizer:
        if name not in children:
            raise unknown_name("module of the model (optimizer of the task)", name, children)
    parts = {name: [one for one in trainable(model) if one[0].startswith(f"{name}.")] for name in task.optimizer}
    taken = [name for part in parts.values() for name, _ in part]
    if len(set(taken)) < len(taken):
        raise UsageError(f"the optimizers of the task ({', '.join(parts)}) share parameters; give each modules of its own")
    return parts


def _schedule(task: Task, name: str, adapter: TorchAdapter, plan: Plan) -> Schedule:
    """Local: the optimiser of one part, and its schedule."""
    part = adapter.parts[name]
    spec, options = task.optimizer, dict(task.optimizer_options)
    lr = DEFAULT_LR if task.lr is None else task.lr
    if isinstance(spec, Mapping):
        own = spec[name]
        spec, more = own if isinstance(own, tuple) else (own, {})
        options |= more
        lr = options.pop("lr", lr)
    optimizer: Optimizer | None = optimizer_of(task, adapter.model) if isinstance(adapter.model, KerasModule) else None
    if optimizer is None:
        optimizer = make_optimizer(spec, part.tensors, lr, with_fused(spec, options, adapter.device), adapter.model)
    part.learn_with(optimizer)
    num_steps = task.epochs * plan.steps_per_epoch
    return make_schedule(
        task.schedule, task.schedule_options, num_steps=num_steps, steps_per_epoch=plan.steps_per_epoch, optimizer=optimizer
    )


def _schedule_of(body: LightningBody, adapter: TorchAdapter) -> Schedule:
    """Local: the optimiser of a LightningModule, and its schedule."""
    part, model, num_steps = adapter.parts[""], adapter.model, body.surroundings.estimated_stepping_batches
    steps_per_epoch = body.surroundings.num_training_batches

    def configure_optimizers(parameters: Any) -> Any:  # noqa: ARG001 - it takes them from the module itself
        return configured(model).optimizer

    optimizer = make_optimizer(configure_optimizers, part.tensors, DEFAULT_LR, {}, model)
    part.learn_with(optimizer, as_one=False)  # the module may look at it, e.g. to log its learning rate
    again = configured(model)  # a scheduler moves the settings of its optimizer ahead of time, so it gets one of its own
    if again.scheduler is None:
        return make_schedule(None, {}, num_steps=num_steps, steps_per_epoch=steps_per_epoch, optimizer=optimizer)
    steps_per_row = again.frequency * (1 if again.interval == "step" else steps_per_epoch)
    return ready_schedule(again.scheduler, again.optimizer, num_steps=num_steps, steps_per_row=steps_per_row)


def _settings(schedules: Mapping[str, Schedule]) -> Callable[[int], Settings]:
    if len(schedules) == 1:
        ((name, only),) = schedules.items()
        return lambda step: {name: only(step)}
    return lambda step: {name: schedule(step) for name, schedule in schedules.items()}


def _settings_of_worker(
    settings: Callable[[int], Settings], num_workers: int, units_per_epoch: int, steps_per_epoch: int, step: int
) -> Settings:
    """Where a step is one worker's batch, schedules go on with every global batch, so that they mean the same everywhere."""
    epoch, unit = divmod(step, units_per_epoch)
    return settings(epoch * steps_per_epoch + unit // num_workers)


def with_fused(spec: object, options: Mapping[str, Any], device: torch.device) -> Mapping[str, Any]:
    """Pure: on a GPU torch's fused form of an optimiser by name, where it has one and nothing else was asked for: the same update
    in one pass, and one that leaves out a step that is not finite without asking the host."""
    asked = {"fused", "foreach", "differentiable", "capturable"} & set(options)
    if device.type != "cuda" or not isinstance(spec, str) or asked:
        return options
    takes = inspect.signature(optimizer_class(spec)).parameters
    return {**options, "fused": True} if "fused" in takes else options


def make_metrics(task: Task, model: nn.Module) -> tuple[Metric, ...]:
    """Local: the metrics of the task, which read targets as its loss does."""
    if isinstance(model, KerasModule):
        return metrics_of(model, task)
    if task.loss is None:
        return resolve_metrics(task.metrics)
    loss = resolve_loss(task.loss, task.loss_options)
    return resolve_metrics(task.metrics, ignore_label=loss.ignore_label, one_hot=loss.one_hot)


def make_goals(task: Task, known: Mapping[str, bool], splits: Splits, on_nan: str) -> Goals:
    """Pure: by what the epochs are judged: one of `known`, each with whether more of it is better; refuses another."""
    asked = task.monitor
    if asked is not None and asked not in known and metric_name("val_", asked) in known:
        asked = metric_name("val_", asked)
    if asked is not None and asked not in known:
        raise UsageError(f"monitor {asked!r} of the task is no metric of it; known: {', '.join(known)}")
    if splits.validation is None:
        wanted = [name for name in ("monitor", "target", "patience") if getattr(task, name) is not None]
        if wanted:
            raise UsageError(f"{wanted[0]} of the task needs validation data; give un.Splits(..., validation=...)")
        return Goals(task.epochs, None, on_nan=on_nan)
    if not known:
        wanted = [one for one in ("target", "patience") if getattr(task, one) is not None]
        if wanted:
            raise UsageError(f"{wanted[0]} of the task needs a metric or a loss to judge the epochs by; name metrics of the task")
        return Goals(task.epochs, None, on_nan=on_nan)
    name = asked or next(iter(known))
    return Goals(task.epochs, name, known[name], task.target, task.patience, on_nan)


def _windows(source: Source) -> Windows | None:
    return None if source.chunk_samples is None else Windows(source.chunk_samples)


def _kind(value: Any) -> str:
    return "nothing (did it forget to return?)" if value is None else f"a {type(value).__name__}"
