"""Applies trained models to inputs: exact, in the order of the inputs whatever the number of workers, and resumable after a
stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from unisono.comm.base import Communicator
from unisono.comm.on_all_ranks import on_all_ranks
from unisono.data.loader import batches_in_order
from unisono.data.sharding_plan import cut
from unisono.data.splits import Splits
from unisono.data.streamed_reads import with_streams
from unisono.errors import UsageError
from unisono.model.torch.adapter import TorchAdapter
from unisono.model.torch.body import call
from unisono.predict.apply_inputs import Inputs, class_names, file_inputs, sample_names, split_inputs
from unisono.predict.evaluate_run import Tell
from unisono.predict.finished_run import FinishedRun, open_run, refuse_idle_workers
from unisono.predict.formats import Layout, choose_columns, is_table, writer
from unisono.predict.kinds import Kind, make_kind
from unisono.predict.predict_options import ApplyConfig
from unisono.predict.rebuild import batch_of, make_adapter, rebuild_model, rebuild_splits, rebuild_task
from unisono.predict.work_pieces import Pieces, make_pieces, num_samples_of
from unisono.task.overrides import ResolvedTask
from unisono.task.task import BEST, FINAL
from unisono.training.frontends.factories import make_splits
from unisono.training.same_data import expect_same_data


@dataclass(frozen=True)
class Applied:
    """The result of applying models: what was written, and how much of it."""

    out: Path
    kind: str
    num_samples: int
    num_runs: int
    weights: str
    num_workers: int
    wall_s: float


def apply_runs(
    config: ApplyConfig, comm: Communicator, tell: Tell | None = None, say: Callable[[str], None] | None = None
) -> Applied:
    """Collective, blocking: the predictions of one model, or the mean of several, in a file that rank 0 writes at the end.

    Finished pieces are kept beside it: after a stop the same command resumes, on any number of workers."""
    began = perf_counter()
    job = on_all_ranks(comm, lambda: _prepare(config, comm))
    expect_same_data(comm, {job.inputs.what: job.inputs.source})
    told = on_all_ranks(comm, lambda: job.pieces.open() if comm.rank == 0 else None)
    todo, num_removed = comm.broadcast_object(told)
    if say is not None:
        if num_removed:
            say(f"removed {num_removed} piece{'s' * (num_removed > 1)} of another command from {job.pieces.folder}")
        if 0 < len(todo) < len(job.pieces):
            say(f"resumed: {len(job.pieces) - len(todo)} of {len(job.pieces)} pieces are already done")
    mine = todo[cut(len(todo), comm.size, comm.rank)]
    total, done = num_samples_of(job.pieces, mine), 0
    for number in mine:
        where = job.pieces.samples(number)
        values = []
        for stretch, batch in batches_in_order(job.inputs.source, where, job.batch):
            values.append(job.kind(job.outputs(batch)))
            done += stretch.stop - stretch.start
            if tell is not None:
                tell(done, total)
        job.pieces.write(number, np.concatenate(values))
    comm.barrier()
    on_all_ranks(comm, lambda: _join(job) if comm.rank == 0 else None)
    return Applied(job.out, job.kind.name, job.pieces.num_samples, len(job.members), job.weights, comm.size, perf_counter() - began)


@dataclass(frozen=True)
class _Job:
    inputs: Inputs
    members: Sequence[TorchAdapter]
    kind: Kind
    pieces: Pieces
    batch: int
    layout: Layout
    out: Path
    weights: str

    def outputs(self, batch: Any) -> list[torch.Tensor]:
        """Local, blocking: the outputs of each model for one batch."""
        inputs = batch[0] if isinstance(batch, tuple) else batch
        found = []
        for member in self.members:
            with torch.inference_mode(), member.autocast():
                found.append(call(member.model, member.to_device(inputs)))
        return found


def _prepare(config: ApplyConfig, comm: Communicator) -> _Job:
    """Opens the runs and inputs, and rebuilds the models; refuses whatever would make the job fail later."""
    out = Path(config.out)
    _refuse_output(config, out)
    runs = [open_run(path) for path in config.runs]
    tasks = [rebuild_task(run, config.task_file, config.accept_changes) for run in runs]
    splits = None if config.as_is and config.inputs else _splits(config, runs, tasks)
    if config.inputs:
        inputs = file_inputs(config.inputs, config.options, splits)
    else:
        assert splits is not None
        inputs = split_inputs(splits, config.split)
    inputs = replace(inputs, source=with_streams(inputs.source))
    refuse_idle_workers(comm.size, len(inputs.source))
    earlier = BEST if all(run.has_best for run in runs) else FINAL  # the rule of versions whose summaries do not say
    chosen = [config.weights or run.summary.get("weights", earlier) for run in runs]
    members, first, hashes = [], [], []
    for run, changed, weights in zip(runs, tasks, chosen, strict=True):
        model, outputs, sha256 = rebuild_model(run, changed, weights, comm.device, inputs.source, inputs.what)
        members.append(make_adapter(changed, model.eval(), comm.device))
        first.append(outputs)
        hashes.append(sha256)
    kind = make_kind(config.kind, [changed.task for changed in tasks], first)
    classes = () if splits is None else class_names(splits)
    batch = min(map(batch_of, runs))
    made_by = [kind.name, hashes, [changed.task.precision for changed in tasks], inputs.description]
    pieces = make_pieces(out, len(inputs.source), batch, made_by)
    layout = _layout(config, out, inputs, kind, first[0], classes)
    return _Job(inputs, members, kind, pieces, batch, layout, out, " and ".join(sorted(set(chosen))))


def _layout(config: ApplyConfig, out: Path, inputs: Inputs, kind: Kind, first: Any, classes: Sequence[str]) -> Layout:
    """Returns the layout of the output file: number and names of samples, columns, class names in place of labels."""
    names = sample_names(inputs.source)
    shape = tuple(first.shape[1:])
    columns = (
        choose_columns(config.columns, kind.fields(shape, classes), config.id_name, names is not None) if is_table(out) else None
    )
    is_class = kind.name == "label" and kind.reading is not None and kind.reading.are_exclusive
    words = classes if is_class and len(shape) == 1 and len(classes) == shape[0] else ()
    return Layout(len(inputs.source), names, columns, words)


def _splits(config: ApplyConfig, runs: Sequence[FinishedRun], tasks: Sequence[ResolvedTask]) -> Splits:
    """Rebuilds the data of the first run; refuses other runs that were trained on other data."""
    found = {run.summary["split"]["sha256"] for run in runs}
    if config.split == "test" and all(run.config.get("division", {}).get("held_out") for run in runs):
        found = {make_splits(replace(changed, division=None)).sha256() for changed in tasks}  # folds of one search share it
    if len(found) > 1 and not config.inputs:
        listed = ", ".join(f"{run.path} ({run.summary['split']['sha256'][:12]})" for run in runs)
        raise UsageError(f"these runs divide their data differently, so they have no common --split: {listed}; give INPUTS")
    if not config.inputs:
        return rebuild_splits(runs[0], tasks[0], config.accept_changes)
    try:
        return rebuild_splits(runs[0], tasks[0], accept_changes=True)  # only their form is needed, not their samples
    except UsageError as error:
        raise UsageError(
            f"{error} (inputs are prepared as in the data of the task; if yours are ready for the model, use --as-is)"
        ) from error


def _refuse_output(config: ApplyConfig, out: Path) -> None:
    """Refuses an output path or options that cannot be used, before anything is computed."""
    writer(out)
    if out.is_dir():
        raise UsageError(f"--out {out} is a folder; give a file")
    if out.exists() and not config.overwrite:
        raise UsageError(f"{out} exists already; give another --out, or --overwrite")
    if not is_table(out) and (config.columns or config.id_name):
        raise UsageError(
            f"--columns and --id are for tables (.csv), and {out.name} holds one array; leave them out, or give an --out that "
            "ends in .csv"
        )
    if config.options and not config.inputs:
        raise UsageError("--open has no effect without INPUTS; leave it out, or give files")
    if config.as_is and not config.inputs:
        raise UsageError("--as-is has no effect without INPUTS; leave it out, or give files")


def _join(job: _Job) -> None:
    """Writes the output file from the finished pieces, then removes them."""
    writer(job.out)(job.out, job.layout, job.pieces.read())
    job.pieces.remove()
