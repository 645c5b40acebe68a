"""Batches of evaluations that are recorded once for each size and then repeated: gather, forward, loss, and the sums of metrics.

    recorded       what lies on the device from the sample numbers to the sums, which are added in fixed memory there
    after it       metrics that need the outputs themselves: scores of all samples, and functions of the user

The first batch of a size runs as it is, so that libraries prepare themselves; the next is recorded, maybe in the next evaluation,
as recordings serve the whole training. An evaluation that cannot be recorded runs as it is, and `reason` says why. Sums are added
in the order of batches, so that every bit is that of an evaluation that is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unisono.errors import UsageError
from unisono.launch.excepthook import user_code_line
from unisono.metrics import Accumulator, Metric
from unisono.metrics.accumulate import NUM_LOSS_SUMS, loss_sums
from unisono.model.base import Evaluated
from unisono.model.torch.adapter import TorchAdapter
from unisono.model.torch.host_state import HostState
from unisono.model.torch.recorder import Recorder
from unisono.model.torch.step_batches import StepBatch, place_of, shape_of
from unisono.model.torch.step_inputs import StepInputs

MOST_SIZES = 8
"""Sizes of batches that are recorded, as each keeps memory of its own; others run as they are. Validation and test data have two
each, with shards up to four."""


class CapturedEvaluation:
    """The recorded batches of one replica's evaluations. Local; a repetition does not wait for the device."""

    def __init__(self, adapter: TorchAdapter, recorder: Recorder, metrics: Sequence[Metric]) -> None:
        self._adapter = adapter
        self._recorder = recorder
        self._metrics = metrics
        self.reason = adapter.body.host_code
        """Why batches are not recorded any more; empty while they are."""
        self._recordings: dict[Hashable, _Recording] = {}
        self._others: dict[Hashable, Sequence[Metric]] = {}
        """The metrics that are computed after a repetition, by the size of batches that have run as they are."""
        self._loss = torch.zeros(NUM_LOSS_SUMS, dtype=torch.float64, device=adapter.device)
        self._sums: dict[str, Tensor] = {}
        """Fixed memory of recorded sums, by the name of the metric."""
        self._model: _ModelState | None = None
        """The model as recorded work takes it."""

    def begin(self) -> None:
        """Local: begins an evaluation. Recorded work would not see what has changed in the model besides the numbers in its
        tensors: where that has happened, evaluations run as they are from now on."""
        if self._model is not None and (change := self._model.change()):
            self._give_up(f"the model is another in the next evaluation: {change}")

    def add(self, batch: Any, found: Accumulator) -> None:
        """Local: evaluates a batch and adds its sums to those found."""
        if self.reason:
            self._add_as_it_is(batch, found)
            return
        shape = shape_of(batch)
        recording = self._recordings.get(shape)
        if recording is None:
            if shape not in self._others:
                self._warm_up(shape, batch, found)
                return
            recording = self._record(shape, batch) if len(self._recordings) < MOST_SIZES else None
        if recording is None:
            self._add_as_it_is(batch, found)
            return
        recording.fill(batch)
        found.move_to(self._loss, recording.sums)
        recording.repeat()
        if recording.others:
            found.add_metrics(recording.others, *recording.copies())

    def _add_as_it_is(self, batch: Any, found: Accumulator) -> Evaluated:
        seen = self._adapter.evaluate(batch)
        found.add_evaluated(seen)
        return seen

    # ---- recording -------------------------------------------------------------------------------------------------

    def _warm_up(self, shape: Hashable, batch: Any, found: Accumulator) -> None:
        """Evaluates a batch as it is, and learns from it which metrics can be recorded."""
        before = HostState(self._adapter.model, getattr(self._adapter.body, "loss", None))
        others = list[Metric]()
        with self._recorder.warming_up():
            seen = self._add_as_it_is(batch, found)
            for metric in self._metrics:
                sums = metric.recordable_sums(seen.outputs, seen.targets, seen.weights)
                if sums is None:
                    others.append(metric)
                elif metric.name not in self._sums:
                    self._sums[metric.name] = sums.clone()
        self._others[shape] = others
        if change := before.change():
            self._give_up(f"the model keeps more than its tensors from batch to batch: {change}")
        elif others and not _is_plain((seen.outputs, seen.targets)):
            self._give_up("the outputs of the model are not tensors in dicts, tuples and lists, which metrics get copies of")

    def _record(self, shape: Hashable, batch: Any) -> _Recording | None:
        """Local; waits for the device: records the evaluation of a batch; None, and a `reason`, where that is not possible."""
        adapter, others = self._adapter, self._others[shape]
        recorded = [metric for metric in self._metrics if metric not in others]
        kept: list[Evaluated] = []

        def work() -> None:
            with adapter.evaluation_mode():
                seen = adapter.body.evaluate(adapter.model, place.read(inputs.on_device))
            self._loss.add_(loss_sums(seen, adapter.device))
            for metric in recorded:
                sums = metric.recordable_sums(seen.outputs, seen.targets, seen.weights)
                if sums is None:
                    raise RuntimeError(f"{metric.label} can be recorded for some batches and not for others of their shapes")
                self._sums[metric.name].add_(sums)
            kept[:] = [seen] if others else []

        model = _ModelState(adapter)
        try:
            place = place_of(batch, adapter.to_device_batch, adapter.prepared)
            inputs = StepInputs(place.fields, adapter.device)
            repeat = self._recorder.record(work)
        except UsageError:
            raise
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            torch.clear_autocast_cache()
            where = user_code_line(error.__traceback__, Path(torch.__file__).parent)
            self._give_up(f"{str(error).strip().partition(chr(10))[0] or type(error).__name__}{where}")
            return None
        self._model = self._model or model
        sums = {metric.name: self._sums[metric.name] for metric in recorded}
        found = self._recordings[shape] = _Recording(inputs, place, repeat, sums, others, kept)
        return found

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self._recordings.clear()
        self._adapter.notes.append(f"evaluations are not recorded as a CUDA graph: {reason}")


@dataclass(frozen=True)
class _Recording:
    """The evaluation of one size of batches that can be repeated, and the memory that it reads and writes."""

    inputs: StepInputs
    place: StepBatch
    repeat: Callable[[], None]
    sums: Mapping[str, Tensor]
    others: Sequence[Metric]
    kept: Sequence[Evaluated]
    """Outputs, targets and weights of the newest repetition, where other metrics need them."""

    def fill(self, batch: Any) -> None:
        """Starts the copies of this batch to the memory that the recorded work reads."""
        self.place.fill(self.inputs.begin(), batch)
        if self.place.fields:
            self.inputs.send()

    def copies(self) -> tuple[Any, Any, Tensor | None]:
        """Returns copies of outputs, targets and weights: the next repetition overwrites them, and a metric may keep its own."""
        (seen,) = self.kept
        weights = None if seen.weights is None else seen.weights.clone()
        return _copy(seen.outputs), _copy(seen.targets), weights


class _ModelState:
    """What recorded work takes of a model besides the numbers in its tensors: where these lie, and plain attributes."""

    def __init__(self, adapter: TorchAdapter) -> None:
        self._model = adapter.model
        self._attributes = HostState(adapter.model, getattr(adapter.body, "loss", None))
        self._places = self._places_now()

    def change(self) -> str:
        """Says what has changed since; empty where nothing has."""
        now = self._places_now()
        moved = next((name for name in [*self._places, *now] if self._places.get(name) != now.get(name)), "")
        return f"{moved} lies elsewhere" if moved else self._attributes.change(with_generators=False)

    def _places_now(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        tensors = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        return {name: (tensor.data_ptr(), tuple(tensor.shape)) for name, tensor in tensors.items()}


def _is_plain(tree: Any) -> bool:
    """Whether a nesting has tensors alone, in types of which `_copy` makes the same."""
    if isinstance(tree, Tensor):
        return True
    if type(tree) is dict:
        return all(map(_is_plain, tree.values()))
    return (type(tree) in (tuple, list) or (isinstance(tree, tuple) and hasattr(tree, "_fields"))) and all(map(_is_plain, tree))


def _copy(tree: Any) -> Any:
    """Local: returns the same nesting with copies of its tensors."""
    if isinstance(tree, Tensor):
        return tree.clone()
    if isinstance(tree, dict):
        return {name: _copy(part) for name, part in tree.items()}
    parts = [_copy(part) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
