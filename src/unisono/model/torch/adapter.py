"""A PyTorch model as a replica: its parameters, gradients and running statistics in flat vectors, one step of learning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import sqrt
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unisono.errors import UsageError
from unisono.model.base import TRAIN, Evaluated, Logged, ModelAdapter, PartialEpochLog, Ready, StreamKey
from unisono.model.tail import LOSS, NOT_FINITE, WEIGHT, Tail
from unisono.model.targets import HALVES
from unisono.model.torch.aliases import refuse_aliases
from unisono.model.torch.body import Body, Outcome
from unisono.model.torch.buffers import Buffers
from unisono.model.torch.frozen_parameters import refuse_unfrozen
from unisono.model.torch.own_step import StepFunction
from unisono.model.torch.parameters import NO_GRADIENT, Empty, FlatParameters
from unisono.model.torch.stored_batch import StoredBatch, Unprepared

if TYPE_CHECKING:
    from unisono.model.torch.captured_steps import CapturedSteps
    from unisono.model.torch.recorder import Recorder

CLIP_EPS = 1e-6
"""The constant of torch.nn.utils.clip_grad_norm_, so that both clip alike."""


class Measure(Protocol):
    """Computes the metric sums of training batches: a fixed number of sums."""

    @property
    def num_sums(self) -> int:
        """Number of sums that it returns for a batch."""

    def __call__(self, outputs: Any, targets: Any, weights: Tensor | None) -> Tensor | Sequence[float]: ...


class TorchAdapter(ModelAdapter):
    """One replica of a torch module on one device. `parts` are the parameters of each optimiser; a plain task has one, named ""."""

    def __init__(
        self,
        model: nn.Module,
        body: Body,
        parts: Mapping[str, Sequence[tuple[str, nn.Parameter]]],
        device: torch.device,
        empty: Empty,
        measure: Measure | None = None,
        precision: str = "float32",
        clip_norm: float | None = None,
        own_step: StepFunction | None = None,
        aligns: bool = False,
        leaves_out: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        self.model = model
        self.device = device
        self.body = body
        self.measure = measure
        self.precision = precision
        self.clip_norm = clip_norm
        self.own_step = own_step
        refuse_aliases(model, {parameter for named in parts.values() for _, parameter in named}, moves_buffers=True)
        self.parts = {name: FlatParameters(named, empty) for name, named in parts.items()}
        self._frozen = [(name, one) for name, one in model.named_parameters() if not one.requires_grad]
        self.num_parameters = sum(tensor.numel() for part in self.parts.values() for tensor in part.tensors)
        num_uses = max(len(part.tensors) for part in self.parts.values())
        self.tail = Tail(empty, measure.num_sums if measure is not None else 0, num_uses)
        self.dtype = next(iter(self.parts.values())).tensors[0].dtype
        self._buffers = Buffers(model, empty)
        self.has_sample_losses = own_step is None
        self.notes: list[str] = []
        self.is_captured = False
        """Whether its steps are recorded and repeated."""
        self.num_evaluations = 0
        """How often the model was put into eval mode."""
        self.aligns = aligns
        """Whether batches are copied to where torch puts its own tensors: kernels may round otherwise at an odd address."""

        if recorder is not None:
            self.tail.use_as_on_device()
        self.recorder = recorder
        """Records steps that are repeated then; None where each runs as it is."""

        self._leaves_out = leaves_out
        """Whether the training continues after a step that is left out: then its buffers are put back."""

        self._not_finite = torch.zeros((), device=device)
        """On a GPU: 1 where loss or gradient of a step was not finite. Where that ends the training it stays 1, so that no update
        follows until the host hears of it."""

        self._one = torch.ones((), device=device)
        self._loss_apart: Tensor | None = None
        """The loss of the only batch of a step whose gradients are not in the vector: it is checked with them."""

    # ---- one step --------------------------------------------------------------------------------------------------

    def clear_gradients(self, head: Tensor | None = None) -> None:
        """As inherited; the tail begins with `head`, numbers on the device, if given."""
        for part in self.parts.values():
            part.clear()
        self.tail.clear(head)

    def forward_backward(self, batch: Any, key: StreamKey, on_ready: Ready | None = None) -> None:
        part = self.parts[""]
        if on_ready is not None:
            part.watch(on_ready)
        self.seed(key)
        self.compute(self.to_device_batch(batch), key.step)
        part.report_remaining_buckets()
        self.tail.set_uses(part.used)

    def compute(self, batch: Any, step: int = 0, counted_by_host: bool = False) -> None:
        """Local: adds the gradient of a batch on the device to the gradient, and its sums to the tail."""
        with self.autocast():
            found = self.body(self.model, batch, step)
        self.backward(found, self.parts[""], counted_by_host)

    def backward(self, found: Outcome, part: FlatParameters, counted_by_host: bool = False) -> None:
        """Local: computes the gradients of a summed loss for a part of the model, and adds the sums of the batch to the tail."""
        refuse_unfrozen(self._frozen)
        if found.gradients is not None:
            part.add_gradients(found.gradients)
        elif isinstance(found.loss_sum, Tensor) and found.loss_sum.requires_grad:
            part.begin_backward()
            torch.autograd.backward(found.loss_sum)
            part.end_backward()
        else:
            raise UsageError(NO_GRADIENT)
        self.tail.add(found.loss_sum, found.weight, found.num_samples, counted_by_host)
        is_apart = part.is_apart and isinstance(found.loss_sum, Tensor) and found.loss_sum.dtype is torch.float32
        self._loss_apart = found.loss_sum.detach() if is_apart else None  # type: ignore[union-attr]
        if self.measure is not None:
            self.tail.add_metrics(self.measure(found.outputs, found.targets, found.weights))

    def skip(self, on_ready: Ready | None = None) -> None:
        """Local: does the step of a worker whose part of a short batch is empty."""
        refuse_unfrozen(self._frozen)
        part = self.parts[""]
        part.begin_backward()
        part.end_backward()
        if on_ready is not None:
            part.watch(on_ready)
            part.report_remaining_buckets()
        self.tail.set_uses(part.used)

    def apply_gradients(
        self, settings: Sequence[Mapping[str, float]], weight: float, uses: npt.NDArray[np.float64], part: str = ""
    ) -> bool:
        held = self.parts[part]
        if not held.is_finite():
            return False
        factor = 1.0 / weight
        if self.clip_norm is not None:
            norm = sqrt(float(held.squared_norm())) * factor
            factor *= min(1.0, self.clip_norm / (norm + CLIP_EPS))
        held.scale(factor)
        held.update(settings, uses)
        return True

    def apply_on_device(self, settings: Sequence[Mapping[str, Any]], part: str = "", factor: Tensor | None = None) -> None:
        """Local, without a wait for the device: as `apply_gradients` with the weight of the tail. An update that is not finite
        is skipped on the device, which the fused optimisers can do. `factor` is 1 / weight where the host knows that, and that it
        is positive."""
        held, vector, not_finite = self.parts[part], self.tail.vector, self._not_finite
        left_out = not_finite
        if self._leaves_out:
            not_finite.zero_()
        loss = self._loss_apart
        if loss is None:
            torch._amp_foreach_non_finite_check_and_unscale_([vector[LOSS : LOSS + 1]], not_finite, self._one)
        weight_is_known = factor is not None
        if factor is None:
            factor = vector[WEIGHT].reciprocal()
        if self.clip_norm is not None:
            norm = held.squared_norm().sqrt() * factor
            factor = factor * torch.clamp(self.clip_norm / (norm + CLIP_EPS), max=1.0)
        if not weight_is_known or self.clip_norm is not None:  # the gaps between parameters must stay zero
            factor = torch.nan_to_num(factor, nan=0.0, posinf=0.0, neginf=0.0)
        held.scale_if_finite(factor, not_finite, loss)
        vector[NOT_FINITE].copy_(not_finite)
        if not weight_is_known:
            left_out = torch.maximum(not_finite, (vector[WEIGHT] <= 0).float())
        # Only the others know of parameters that we did not use; so only then there is something to wait for.
        uses = held.used if held.used.all() else self.tail.read(0)[1][: len(held.tensors)]
        held.update(settings, uses, left_out=left_out)
        if self._leaves_out:
            self.put_back_buffers(not_finite > 0)

    def note_capture(self, is_captured: bool) -> None:
        """Local: notes whether steps are recorded and repeated from now on."""
        self.is_captured = is_captured

    def captured_steps(self) -> CapturedSteps | None:
        """Local: the recorded steps of this replica; None where each runs as it is."""
        if self.recorder is None:
            return None
        from unisono.model.torch.captured_steps import CapturedSteps

        return CapturedSteps(self, self.recorder)

    @property
    def waits_for_device(self) -> bool:
        """Whether the host must see each step's sums before the update: not on a GPU with optimisers that can leave it out."""
        on_device = self.device.type == "cuda" or self.recorder is not None
        return not on_device or not all(group.get("fused") for part in self.parts.values() for group in part.running.param_groups)

    def keep_buffers(self) -> None:
        """Local: copies the buffers as they are before a step, which may be left out."""
        if self._leaves_out:
            self._buffers.keep()

    def put_back_buffers(self, left_out: Tensor | None = None) -> None:
        """Local: restores the buffers as they were before the step, as its update is left out; with `left_out`, a flag on the
        device, only if that is true. Running statistics that were no numbers once would stay so."""
        if self._leaves_out:
            self._buffers.put_back(left_out)

    # ---- evaluation ------------------------------------------------------------------------------------------------

    def begin(self, stage: str, step: int | None = None, epoch: int | None = None) -> None:
        with nullcontext() if stage == TRAIN else self.evaluation_mode():
            self.body.begin(stage, step, epoch)

    def resume_epoch(self, epoch: int, first_step: int, step: int, partial_epoch: PartialEpochLog | None) -> None:
        if partial_epoch is not None:
            self.body.resume_epoch(epoch, first_step, step, partial_epoch)

    def evaluate(self, batch: Any) -> Evaluated:
        with self.evaluation_mode():
            return self.body.evaluate(self.model, self.to_device_batch(batch))

    def end(self, stage: str) -> Logged | None:
        with nullcontext() if stage == TRAIN else self.evaluation_mode():
            return self.body.end(stage)

    @contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """In this context the model is in eval mode, and nothing computes gradients; the modes come back after it."""
        learning = [module for module in self.model.modules() if module.training]  # the user may keep some of them in eval mode
        self.model.eval()
        self.num_evaluations += 1
        try:
            with torch.no_grad(), self.autocast():  # not inference_mode: what a model keeps from here is used in training too
                yield
        finally:
            for module in learning:
                module.training = True

    # ---- state -----------------------------------------------------------------------------------------------------

    def shared_state(self) -> list[Tensor]:
        flat = [vector for part in self.parts.values() for vector in part.values.values()]
        moved = {parameter for part in self.parts.values() for parameter in part.tensors}
        fixed = [parameter.data for parameter in self.model.parameters() if parameter not in moved]
        return [*flat, *self.statistics(), *fixed, *self.counters()]

    def statistics(self) -> Sequence[Tensor]:
        return self._buffers.statistics()

    def counters(self) -> list[Tensor]:
        return self._buffers.counters()

    def unknown_buffers(self) -> list[str]:
        """Returns the names of floating buffers that were made after this adapter, so that they are not among the statistics."""
        return self._buffers.unknown()

    def state(self) -> dict[str, Any]:
        self.statistics()  # takes back what the user's code has put in their place
        weights = dict(self.model.state_dict())
        return {
            "model": weights,
            "buffers": self._buffers.non_persistent(weights),
            "optimizers": {name: part.optimizer_state() for name, part in self.parts.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._buffers.restore(state["model"], state["buffers"])
        self.model.load_state_dict(state["model"])
        self.body.restore(state["kept"])
        for name, part in self.parts.items():
            part.load_optimizer_state(state["optimizers"][name])

    def copy_buffers(self, other: TorchAdapter) -> None:
        """Local: copies the buffers of another replica that are not among its weights (persistent=False)."""
        other.statistics()
        self._buffers.restore({}, other._buffers.non_persistent(other.model.state_dict()))

    def user_state(self) -> Mapping[str, Any]:
        return self.body.user_state()

    def partial_epoch(self) -> PartialEpochLog | None:
        return self.body.partial_epoch()

    # ---- small steps -----------------------------------------------------------------------------------------------

    def autocast(self) -> AbstractContextManager[Any]:
        """Returns a context in which torch computes in bfloat16 where the precision is "bf16"."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()

    def seed(self, key: StreamKey) -> None:
        """Local: seeds torch's generators: what they draw next is a function of the key alone."""
        value = key.value()
        torch.default_generator.manual_seed(value)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index or 0].manual_seed(value)

    def to_device_batch(self, batch: Any) -> Any:
        """Local: as `to_device`, but a model in half precision does not round the targets and the weights of the samples. Samples
        that lie on the device are gathered there, and changed by the body."""
        if isinstance(batch, StoredBatch):
            return self.prepared(batch.gather(self.device))
        if self.dtype not in HALVES or not self.body.has_targets or not isinstance(batch, tuple):
            return self.to_device(batch)
        return self.to_device(batch[0]), *(self.to_device(part, torch.float32) for part in batch[1:])

    def prepared(self, gathered: Unprepared) -> Any:
        """Local: a batch of gathered samples as the body takes it."""
        if not self.body.prepares:
            return self.to_device_batch(gathered.prepare())
        return gathered if gathered.samples.compiles else gathered.prepare()

    def to_device(self, batch: Any, dtype: torch.dtype | None = None) -> Any:
        """Local: returns a batch of arrays as tensors on the device; floating arrays get this type, or that of the parameters."""
        if isinstance(batch, StoredBatch):
            return self.to_device(batch.gather(self.device).prepare(), dtype)
        if isinstance(batch, tuple):
            return tuple([self.to_device(part, dtype) for part in batch])
        if isinstance(batch, dict):
            return {name: self.to_device(part, dtype) for name, part in batch.items()}
        tensor = batch if isinstance(batch, Tensor) else torch.from_numpy(batch)
        dtype = dtype or self.dtype
        if tensor.dtype is not dtype and tensor.is_floating_point():
            tensor = tensor.to(dtype)
        if self.device.type != "cpu":
            return tensor.to(self.device, non_blocking=True)
        return tensor.clone(memory_format=torch.contiguous_format) if self.aligns else tensor


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Local: returns the trainable parameters, each once, by their first name."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
