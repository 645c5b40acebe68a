"""Makes the parts of a training from a task: data, model, loss, optimiser, algorithm. Mistakes that can be seen before any work
starts are reported here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from unisono.algorithms.base import Algorithm, Settings
from unisono.algorithms.roles import LockStepRoles
from unisono.comm.base import Communicator
from unisono.data.checks import check_finite
from unisono.data.loader import Loader
from unisono.data.sharding_plan import Plan, Windows
from unisono.data.source import Source
from unisono.data.splits import Splits
from unisono.data.streamed_reads import splits_with_streams
from unisono.errors import UsageError
from unisono.model.torch.adapter import TorchAdapter
from unisono.model.torch.body import Body, LossBody
from unisono.optim.schedules import Schedule
from unisono.optim.torch_schedulers import EPOCH, Stepped
from unisono.task.overrides import ResolvedTask
from unisono.task.task import Task
from unisono.training.batch_norms import refuse_synchronised
from unisono.training.early_stopping import make_goals
from unisono.training.frontends.base import Extent, FrontEnd, frontend_of
from unisono.training.frontends.device import compute_device
from unisono.training.frontends.factories import make_model, make_splits
from unisono.training.parts_on_device import PartsOnDevice
from unisono.training.run_folder.weights import initialise
from unisono.training.train_metrics import TrainMetrics
from unisono.training.training_parts import AssemblyOptions, TrainingParts
from unisono.training.work_layout import AlgorithmSetup, set_up_algorithm

if TYPE_CHECKING:
    from unisono.model.torch.recorder import Recorder


def assemble(
    resolved: ResolvedTask,
    algorithm_name: str,
    comm: Communicator,
    options: AssemblyOptions = AssemblyOptions(),  # noqa: B008 - it cannot change
) -> TrainingParts:
    """Local, blocking: makes all parts of this rank's training."""
    task = resolved.task
    device = compute_device(options.device, comm, task.shards is not None)
    setup = set_up_algorithm(resolved, algorithm_name, comm.size, options.layout, options.replay)
    if task.step is not None and task.accumulate > 1:
        raise UsageError(
            f"accumulate {task.accumulate} (--accumulate) has no effect with the task's own step, which gets a worker's whole part "
            "of the batch; leave it out"
        )
    splits = splits_with_streams(make_splits(resolved))
    model = make_model(resolved, device)
    gpu_notes = _prepare_for_gpu(model, task.precision) if device.type == "cuda" else []
    refuse_synchronised(model, setup.roles.num_learning, task.shards is not None)
    task = frontend_of(task, model).with_defaults()
    front = frontend_of(task, model)
    front.build(splits.train, device)
    metrics = front.metrics(options.averages)
    plan = Plan(len(splits.train), task.global_batch, task.seed, windows=_windows_of(splits))
    body = front.body(Extent(plan.steps_per_epoch, comm.rank, comm.size), front.needs_outputs(metrics))
    comparable = front.comparable_metrics(metrics, front.try_out(body, splits, device))
    goals = make_goals(task, comparable, splits.validation is not None, options.on_nan)
    if options.init_from is not None:  # before the optimiser, which may keep a copy of the weights
        initialise(model, options.init_from)
    compiles, compile_note = _compiles(task, model, splits.train, plan.steps_per_epoch, options.compiled, body)
    train_metrics = front.train_metrics(metrics)
    empty = comm.empty if device == comm.device else partial(_empty_vector, device)
    adapter = TorchAdapter(
        model,
        body,
        front.parameters(),
        device,
        empty,
        measure=TrainMetrics(train_metrics) if train_metrics else None,
        precision=task.precision,
        clip_norm=task.clip_norm,
        own_step=task.step,
        aligns=task.shards is not None,
        leaves_out=options.on_nan == "skip",
        recorder=recorder_for(device, options),
    )
    if options.on_nan == "stop":
        for name, part in splits.parts().items():
            if name != "train" or task.augment is None:
                check_finite(name, part, with_targets=isinstance(task.loss, str))
    kept = {one.name: options.averages[one.name] for one in metrics if one.name in options.averages}
    averages = {**kept, **front.try_losses(adapter, splits, metrics)}
    front.share_metrics(comm)
    resident = _parts_on_device(splits, task, adapter, options) if makes_batches_on(device) else PartsOnDevice()
    schedules = front.schedules(adapter, plan)
    settings = _settings_by_part(schedules)
    stepped = next((one for one in schedules.values() if isinstance(one, Stepped)), None)
    if setup.kind.has_server:
        front.check_server(setup.name)
        algorithm = _make_server_algorithm(front, setup, adapter, comm, options)
        steps_of_workers = replace(plan, global_batch=setup.batch).steps_per_epoch
        settings = partial(_settings_of_worker, settings, setup.roles.num_workers, steps_of_workers, plan.steps_per_epoch)
    else:
        algorithm = setup.kind(comm, adapter, setup.options, options.spans, setup.roles.group)
    loader = _loader(task, splits.train, plan, setup, comm.rank, resident)
    if compiles == "on" and isinstance(body, LossBody):
        from unisono.model.torch.compiled_loss import CompiledLoss

        sizes, is_forced, tell = loader.usual_sizes(), task.compile == "on", adapter.notes.append
        body.compile_by(lambda compute: CompiledLoss(compute, sizes, is_forced, tell))
    return TrainingParts(
        task=replace(_with_interval(task, stepped), compile=compiles),
        splits=splits,
        adapter=adapter,
        algorithm=algorithm,
        loader=loader,
        resident=resident,
        notes=tuple(note for note in (*gpu_notes, compile_note, resident.note) if note),
        metrics=metrics,
        train_metrics=train_metrics,
        settings=settings,
        goals=goals,
        comparable_metrics=comparable if goals.monitor is None else {**comparable, goals.monitor: goals.higher_is_better},
        reading=front.reading_of_loss(),
        averages=averages,
        num_learning=setup.roles.num_learning,
        schedule_note="" if stepped is None else stepped.describe(plan.steps_per_epoch),
    )


def _prepare_for_gpu(model: nn.Module, precision: str) -> list[str]:
    """Local: puts a model in order for a GPU; returns what a user should know about how it computes there."""
    from unisono.training.gpu_precision import describe_precision, lay_out

    return [describe_precision(precision), lay_out(model, precision)]


def _compiles(
    task: Task, model: nn.Module, source: Source, steps_per_epoch: int, before: str | None, body: Body
) -> tuple[str, str]:
    """Local, blocking for two samples: whether model and loss are compiled, "on" or "off", and what a user should know about it.
    `before` is what was decided for the run that is resumed."""
    on_cpu = all(one.device.type == "cpu" for one in model.parameters())
    if task.compile == "off" or (task.compile == "auto" and on_cpu and before != "on"):
        return "off", ""
    from unisono.training.compiling import choose

    return choose(task, model, source, steps_per_epoch, before, body.prepares)


def recorder_for(device: torch.device, options: AssemblyOptions) -> Recorder | None:
    """Local: what records the steps of a training on this device; None where each runs as it is."""
    if device.type != "cuda" or options.capture == "off":
        return None
    from unisono.model.torch.recorder import CudaRecorder

    return CudaRecorder(device)


def makes_batches_on(device: torch.device) -> bool:
    """Pure: whether batches are made on this device, of samples that lie there or travel as they are stored."""
    return device.type == "cuda"


def _parts_on_device(splits: Splits, task: Task, adapter: TorchAdapter, options: AssemblyOptions) -> PartsOnDevice:
    """Local, blocking for one read of all samples: the parts of the data; those that fit are copied to the device."""
    from unisono.training.resident_data import put_on_device

    return put_on_device(splits, task.augment, adapter, keeps=options.resident == "auto")


def _empty_vector(device: torch.device, numel: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(numel, dtype=dtype, device=device)


def _loader(task: Task, source: Source, plan: Plan, setup: AlgorithmSetup, rank: int, resident: PartsOnDevice) -> Loader:
    """Local: the loader of the part of every batch that this rank computes."""
    roles = setup.roles
    own_shards = roles.shards[rank] if isinstance(roles, LockStepRoles) and roles.shards is not None else None
    return Loader(
        source,
        replace(plan, global_batch=setup.batch),
        roles.shard(rank),
        roles.num_shards,
        accumulate=task.accumulate,
        augment=task.augment,
        never_empty=task.step is not None,
        own_shards=own_shards,
        stored=None if resident.train is None else resident.train.samples.batch,
        reads=resident.train is None or resident.train.reads,
        prefetches=bool(resident.parts),  # a CPU that computes has no time to prepare the next batch beside it
    )


def _make_server_algorithm(
    front: FrontEnd, setup: AlgorithmSetup, adapter: TorchAdapter, comm: Communicator, options: AssemblyOptions
) -> Algorithm:
    """Returns the algorithm with a server, which evaluates on replicas of the model that are never trained."""
    from unisono.training.server.background_evaluation import copy_model
    from unisono.training.server.server_parts import make_server_algorithm

    def make_evaluator() -> TorchAdapter:
        """Makes a replica that is evaluated and never trained."""
        copied = replace(front, model=copy_model(adapter.model))
        empty = partial(_empty_vector, adapter.device)
        return TorchAdapter(copied.model, copied.body(), copied.parameters(), adapter.device, empty, precision=front.task.precision)

    return make_server_algorithm(setup, comm, adapter, front.task, make_evaluator, options.spans)


def _settings_by_part(schedules: Mapping[str, Schedule]) -> Callable[[int], Settings]:
    """Returns a function of the step that gives the optimizer's settings of each part of the model."""
    if len(schedules) == 1:
        ((name, only),) = schedules.items()
        return lambda step: {name: only(step)}
    return lambda step: {name: schedule(step) for name, schedule in schedules.items()}


def _settings_of_worker(
    settings: Callable[[int], Settings], num_workers: int, units_per_epoch: int, steps_per_epoch: int, step: int
) -> Settings:
    """The settings of a step that is one worker's batch: schedules advance with every global batch, so that they mean the same
    with every algorithm."""
    epoch, unit = divmod(step, units_per_epoch)
    return settings(epoch * steps_per_epoch + unit // num_workers)


def _with_interval(task: Task, stepped: Stepped | None) -> Task:
    """Pure: the task with the interval of its torch scheduler, as a run records it: "step" is left out, as in earlier versions,
    which took it for every class."""
    options = dict(task.schedule_options)
    if options.get("interval", "") is None:
        del options["interval"]
    elif task.schedule is not None and stepped is not None and stepped.steps_per_row > 1:
        options["interval"] = EPOCH
    return replace(task, schedule_options=options)


def _windows_of(splits: Splits) -> Windows | None:
    """Returns the windows in which chunked training data are shuffled; None if the data have no chunks."""
    return None if splits.train.chunk_samples is None else Windows(splits.train.chunk_samples)
