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
from unisono.data.tree import leaves
from unisono.errors import UsageError
from unisono.model.torch.adapter import TorchAdapter
from unisono.model.torch.body import call
from unisono.predict.apply_inputs import Inputs, sample_names, sample_numbers
from unisono.predict.evaluate_run import Tell
from unisono.predict.finished_run import open_run, refuse_idle_workers
from unisono.predict.formats import Layout, Rows, choose_columns, is_table, writer
from unisono.predict.inputs_of_runs import inputs_of_runs
from unisono.predict.kinds import NO_LABEL, Kind, make_kind
from unisono.predict.predict_options import ApplyConfig
from unisono.predict.rebuild import batch_of, make_adapter, rebuild_model, rebuild_task
from unisono.predict.work_pieces import Pieces, make_pieces, num_samples_of
from unisono.task.task import BEST, FINAL
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
    sources = list({id(one): one for one in job.inputs}.values())
    for one in sources:
        expect_same_data(comm, {one.what: one.source})
    told = on_all_ranks(comm, lambda: job.pieces.open() if comm.rank == 0 else None)
    todo, num_removed = comm.broadcast_object(told)
    if say is not None:
        if num_removed:
            say(f"removed {num_removed} piece{'s' * (num_removed > 1)} of another command from {job.pieces.folder}")
        if 0 < len(todo) < len(job.pieces):
            say(f"resumed: {len(job.pieces) - len(todo)} of {len(job.pieces)} pieces are already done")
    mine = todo[cut(len(todo), comm.size, comm.rank)]
    total, done, num_odd = num_samples_of(job.pieces, mine), 0, 0
    for number in mine:
        where = job.pieces.samples(number)
        values = []
        for batches in zip(*(batches_in_order(one.source, where, job.batch) for one in sources), strict=True):
            prepared = {id(one): batch for one, (_, batch) in zip(sources, batches, strict=True)}
            values.append(job.kind(job.outputs([_inputs_in(prepared[id(one)]) for one in job.inputs])))
            num_odd += max(_num_not_finite(_inputs_in(batch)) for batch in prepared.values())
            done += len(values[-1])
            if tell is not None:
                tell(done, total)
        job.pieces.write(number, np.concatenate(values))
    comm.barrier()
    num_odd = sum(comm.allgather_object(num_odd))
    num_unknown = on_all_ranks(comm, lambda: _join(job) if comm.rank == 0 else 0)
    if say is not None and num_odd:
        say(f"warning: NaN or infinity in the inputs of {num_odd} of {job.pieces.num_samples} samples of {job.inputs[0].what}")
    if say is not None and num_unknown:
        say(f"warning: {num_unknown} of {job.pieces.num_samples} predictions are NaN or infinite")
    return Applied(job.out, job.kind.name, job.pieces.num_samples, len(job.members), job.weights, comm.size, perf_counter() - began)


@dataclass(frozen=True)
class _Job:
    inputs: Sequence[Inputs]
    """The inputs as each model needs them; one and the same for models whose data are prepared alike."""
    members: Sequence[TorchAdapter]
    kind: Kind
    pieces: Pieces
    batch: int
    layout: Layout
    out: Path
    weights: str

    def outputs(self, batches: Sequence[Any]) -> list[torch.Tensor]:
        """Local, blocking: the outputs of each model for its inputs."""
        found = []
        for member, inputs in zip(self.members, batches, strict=True):
            with torch.inference_mode(), member.autocast():
                found.append(call(member.model, member.to_device(inputs)))
        return found


def _prepare(config: ApplyConfig, comm: Communicator) -> _Job:
    """Opens the runs and inputs, and rebuilds the models; refuses whatever would make the job fail later."""
    out = Path(config.out)
    _refuse_output(config, out)
    runs = [open_run(path) for path in config.runs]
    tasks = [rebuild_task(run, config.task_file, config.accept_changes) for run in runs]
    inputs, classes = inputs_of_runs(config, runs, tasks)
    refuse_idle_workers(comm.size, len(inputs[0].source))
    earlier = BEST if all(run.has_best for run in runs) else FINAL  # the rule of versions whose summaries do not say
    chosen = [config.weights or run.summary.get("weights", earlier) for run in runs]
    members, first, hashes = [], [], []
    for run, changed, weights, own in zip(runs, tasks, chosen, inputs, strict=True):
        model, outputs, sha256 = rebuild_model(run, changed, weights, comm.device, own.source, own.what)
        members.append(make_adapter(changed, model.eval(), comm.device))
        first.append(outputs)
        hashes.append(sha256)
    kind = make_kind(config.kind, [changed.task for changed in tasks], first)
    batch = min(map(batch_of, runs))
    made_by = [kind.name, hashes, [changed.task.precision for changed in tasks], [own.description for own in inputs]]
    pieces = make_pieces(out, len(inputs[0].source), batch, made_by)
    layout = _layout(config, out, inputs[0], kind, first[0], classes)
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
    return Layout(len(inputs.source), names, columns, words, sample_numbers(inputs.source))


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


def _inputs_in(batch: Any) -> Any:
    """Returns the inputs of a batch."""
    return batch[0] if isinstance(batch, tuple) else batch


def _num_not_finite(inputs: Any) -> int:
    """Returns the number of samples with NaN or infinity."""
    odd: Any = False
    for _, leaf in leaves(inputs):
        values = np.asarray(leaf)
        if values.dtype.kind in "fc":
            odd = odd | ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    return int(np.count_nonzero(odd))


def _join(job: _Job) -> int:
    """Writes the output file from the finished pieces, then removes them. Returns the number of samples whose predictions are not
    finite; refuses labels of such."""
    unknown: list[int] = []

    def rows() -> Rows:
        for where, values in job.pieces.read():
            flat = values.reshape(len(values), -1)
            odd = (flat == NO_LABEL).any(1) if job.kind.name == "label" else ~np.isfinite(flat).all(1)
            unknown.extend(int(row) + where.start for row in np.flatnonzero(odd))
            yield where, values
        if unknown and job.kind.name == "label":
            raise UsageError(
                f"{len(unknown)} of {job.pieces.num_samples} samples of {job.inputs[0].what} have no label, as the model gives NaN "
                f"for them (the first is row {unknown[0]}); correct or remove inputs with NaN or infinity, or see which they are "
                "with --kind probabilities"
            )

    words = job.layout.words
    layout = replace(job.layout, words=(*words, "")) if words else job.layout  # the word of NO_LABEL, which is never kept
    writer(job.out)(job.out, layout, rows())
    job.pieces.remove()
    return len(unknown)
