"""Evaluates a trained model again: every sample of a part of its data counts once, whatever the number of workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unisono.comm.base import Communicator
from unisono.comm.on_all_ranks import on_all_ranks
from unisono.data.data_differences import samples_record
from unisono.data.sharding_plan import cut
from unisono.data.source import Source
from unisono.errors import UsageError
from unisono.files.atomic import atomic_replacement
from unisono.metrics import Metric
from unisono.model.base import Evaluated, Logged
from unisono.model.torch.adapter import TorchAdapter
from unisono.predict.finished_run import PREFIXES, FinishedRun, open_run, refuse_idle_workers
from unisono.predict.predict_options import EvaluateConfig
from unisono.predict.rebuild import (
    batch_of,
    describe_changed_data,
    describe_unchecked_data,
    make_adapter,
    rebuild_model,
    rebuild_splits,
    rebuild_task,
    split_hash,
)
from unisono.task.averages import recorded_averages
from unisono.training.evaluation import EvaluationPlan, evaluate
from unisono.training.frontends.base import frontend_of
from unisono.training.run_folder.run_directory import as_json
from unisono.training.same_data import expect_same_data

Tell = Callable[[int, int], None]
"""(done, total) of this worker's samples."""


def evaluate_run(config: EvaluateConfig, comm: Communicator, tell: Tell | None = None) -> dict[str, Any]:
    """Collective, blocking: evaluates a trained model; writes loss and metrics to RUN/evaluation-<split>.json, or -best.json for
    the best weights, and returns them on all ranks."""
    began = perf_counter()
    job = on_all_ranks(comm, lambda: _prepare(config, comm))
    samples = expect_same_data(comm, {config.split: job.source})
    adapter = _RecordingReplica(job.adapter) if config.save_predictions else job.adapter
    values = evaluate(comm, adapter, job.source, EvaluationPlan(job.metrics, batch_of(job.run), tell), PREFIXES[config.split])
    kept = adapter.gather(comm, len(job.source)) if isinstance(adapter, _RecordingReplica) else {}
    wall_s = perf_counter() - began
    found = {
        "run": str(job.run.path),
        "split": config.split,
        "split_sha256": job.split_sha256,
        "weights": job.weights,
        "weights_sha256": job.weights_sha256,
        "num_samples": len(job.source),
        "metrics": values,
        "num_workers": comm.size,
        "wall_s": wall_s,
        "changed_data": job.changed_data,
        "notes": job.notes,
        "samples": samples_record(samples),
    }
    plain: dict[str, Any] = as_json(found)
    on_all_ranks(comm, lambda: _write(config, job, plain, kept) if comm.rank == 0 else None)
    return plain


@dataclass(frozen=True)
class _Job:
    run: FinishedRun
    source: Source
    split_sha256: str
    adapter: TorchAdapter
    weights: str
    weights_sha256: str
    metrics: Sequence[Metric]
    changed_data: str
    """How the data differ from those of the training, where that was accepted."""
    notes: Sequence[str]


def _prepare(config: EvaluateConfig, comm: Communicator) -> _Job:
    """Opens the run and rebuilds its data and model, ready to be evaluated; refuses data that the task does not have."""
    run = open_run(config.run)
    changed = rebuild_task(run, config.task_file, config.accept_changes)
    splits = rebuild_splits(run, changed, config.accept_changes)
    parts = splits.parts()
    if config.split not in parts:
        raise UsageError(f"the task of {run.path} has no {config.split} data (--split); it has {', '.join(parts)}")
    source = parts[config.split]
    refuse_idle_workers(comm.size, len(source))
    weights = config.weights or run.weights_that_count
    model, _, sha256 = rebuild_model(run, changed, weights, comm.device, source, f"the {config.split} data")
    front = frontend_of(changed.task, model)
    front.build(source, comm.device)
    adapter = make_adapter(changed, model, comm.device)
    front.share_metrics(comm)
    return _Job(
        run,
        source,
        split_hash(run, splits),
        adapter,
        weights,
        sha256,
        front.metrics(recorded_averages(run.config)),
        describe_changed_data(run, splits, config.split) if config.accept_changes else "",
        [note] if (note := describe_unchecked_data(run, splits, config.split)) else [],
    )


class _RecordingReplica:
    """A replica that keeps outputs and targets of its evaluation in host memory."""

    def __init__(self, inner: TorchAdapter) -> None:
        self.inner = inner
        self.seen: dict[str, list[Tensor]] = {"outputs": [], "targets": [], "weights": []}

    def begin(self, stage: str) -> None:
        """Passes the call on."""
        self.inner.begin(stage)

    def end(self, stage: str) -> Logged | None:
        """Passes the call on."""
        return self.inner.end(stage)

    def evaluate(self, batch: Any) -> Evaluated:
        """Evaluates a batch and keeps copies of what is to be saved."""
        found = self.inner.evaluate(batch)
        for name, kept in self.seen.items():
            value = getattr(found, name)
            if value is None and name == "weights":
                continue
            if not isinstance(value, Tensor):
                raise UsageError(f"the {name} of this task are several arrays, which --save-predictions cannot keep; leave it out")
            kept.append(value.float().cpu() if value.is_floating_point() else value.cpu())
        return found

    def gather(self, comm: Communicator, num_samples: int) -> dict[str, Any]:
        """Collective, blocking: gathers the rows of all samples in order on rank 0; empty on the others."""
        found = {name: _to_first(comm, torch.cat(parts), num_samples) for name, parts in self.seen.items() if parts}
        return {name: array for name, array in found.items() if array is not None}


def _to_first(comm: Communicator, mine: Tensor, num_samples: int) -> np.ndarray[Any, Any] | None:
    """Collective, blocking: gathers on rank 0 the rows of all ranks, which hold `cut` stretches of the samples, in order."""
    mine = mine.contiguous().to(comm.device)
    if comm.rank:
        comm.send(mine, 0)
        return None
    rows = [mine]
    for rank in range(1, comm.size):
        stretch = cut(num_samples, comm.size, rank)
        rows.append(torch.empty((stretch.stop - stretch.start, *mine.shape[1:]), dtype=mine.dtype, device=comm.device))
        comm.recv(rows[-1], rank)
    return torch.cat(rows).cpu().numpy()


def _write(config: EvaluateConfig, job: _Job, found: dict[str, Any], kept: dict[str, Any]) -> None:
    """Writes the saved predictions, if any, and the results as JSON, each whole or not at all."""
    if kept:
        with atomic_replacement(job.run.predictions(config.split, job.weights)) as draft, draft.open("wb") as file:
            facts = {name: found[name] for name in ("split_sha256", "weights_sha256", "changed_data")}
            np.savez(file, **facts, order=found["samples"][config.split]["order"] or "", **kept)
    path: Path = job.run.evaluation(config.split, job.weights)
    with atomic_replacement(path) as draft:
        draft.write_text(json.dumps(found, indent=2) + "\n")
