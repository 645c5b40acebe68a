"""Bodies, which compute the loss of a batch: the part in which a plain module, a LightningModule and a Keras model differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from unisono.errors import UsageError
from unisono.model.base import Evaluated, Logged, PartialEpochLog
from unisono.model.torch.parameters import Gradients
from unisono.model.torch.stored_batch import Unprepared


class Outcome(NamedTuple):
    """Result of a body for one batch: summed loss and its weight, and what metrics need."""

    loss_sum: Tensor | float
    weight: Tensor | float
    outputs: Any
    targets: Any
    weights: Tensor | None
    num_samples: int
    gradients: Gradients | None = None
    """Gradients, where a framework computed them with the loss; else autograd does."""


class Body(Protocol):
    """Computes the loss of a batch of tensors for one kind of model."""

    has_targets: bool
    """Whether a batch is (inputs, targets[, weights]), and not what steps of the model itself take."""
    prepares: bool
    """Whether a batch may be `Unprepared`, of which it computes the changes itself."""
    host_code: str
    """What runs on the host in each step, so that a step cannot be recorded and repeated; empty where nothing does."""

    def __call__(self, model: nn.Module, batch: Any, step: int) -> Outcome: ...

    def evaluate(self, model: nn.Module, batch: Any) -> Evaluated:
        """Local: returns the outputs, targets, loss sum and weight of a batch; the weights do not change."""

    def begin(self, stage: str, step: int | None, epoch: int | None) -> None:
        """Local: begins an epoch of this stage; `step` and `epoch` are None where an evaluation knows none."""

    def resume_epoch(self, epoch: int, first_step: int, step: int, partial_epoch: PartialEpochLog) -> None:
        """Local: begins an epoch of training that `partial_epoch` has saved, at `step`; it had begun at `first_step`."""

    def end(self, stage: str) -> Logged | None:
        """Local: ends the epoch of this stage; returns what was logged in it, None if it logs nothing."""

    def partial_epoch(self) -> PartialEpochLog | None:
        """Local: returns what was logged in the epoch so far, for a checkpoint; None if it logs nothing."""

    def user_state(self) -> Mapping[str, Any]:
        """Local: returns what the user's hooks add to a checkpoint."""

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Local: resumes with what `user_state` gave."""


class LossBody:
    """The body of a plain module with a loss: batch = (inputs, targets[, weights])."""

    has_targets = True
    prepares = True
    host_code = ""

    def __init__(self, loss: Callable[..., tuple[Tensor, Tensor | float]] | None) -> None:
        self.loss = loss
        self._compute: Callable[[nn.Module, Any, Any], Outcome] = compute_loss

    def compile_by(self, compiled: Callable[[Callable[..., Outcome]], Callable[..., Outcome]]) -> None:
        """Local: from now on computes model and loss of a batch to learn from by what this makes of the function that does."""
        self._compute = compiled(compute_loss)

    def begin(self, stage: str, step: int | None, epoch: int | None) -> None:
        """Does nothing: a loss keeps nothing from batch to batch."""

    def resume_epoch(self, epoch: int, first_step: int, step: int, partial_epoch: PartialEpochLog) -> None:
        """Does nothing: a loss logs nothing."""

    def end(self, stage: str) -> None:
        """Returns None, as nothing is logged."""

    def partial_epoch(self) -> None:
        """Returns None, as nothing is logged."""

    def user_state(self) -> Mapping[str, Any]:
        """Returns {}, as there are no hooks."""
        return {}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Does nothing: a loss has no state."""

    def __call__(self, model: nn.Module, batch: Any, step: int) -> Outcome:  # noqa: ARG002
        assert self.loss is not None
        return self._compute(model, self.loss, batch)

    def evaluate(self, model: nn.Module, batch: Any) -> Evaluated:
        """Returns outputs, targets, and the loss sum and weight of a batch; without a loss they are None and 0."""
        inputs, targets, weights = split_batch(_prepared(batch))
        outputs = call(model, inputs)
        if self.loss is None:
            return Evaluated(outputs, targets, weights, None, 0.0, num_rows(inputs))
        loss_sum, weight = _loss_of(self.loss, outputs, targets, weights)
        return Evaluated(outputs, targets, weights, loss_sum, weight, num_rows(inputs))


def compute_loss(model: nn.Module, loss: Callable[..., tuple[Tensor, Tensor | float]], batch: Any) -> Outcome:
    """Local: computes the loss of a batch."""
    inputs, targets, weights = split_batch(_prepared(batch))
    outputs = call(model, inputs)
    loss_sum, weight = _loss_of(loss, outputs, targets, weights)
    return Outcome(loss_sum, weight, outputs, targets, weights, num_rows(inputs))


def _prepared(batch: Any) -> Any:
    """Local: the batch that the model is given."""
    return batch.prepare() if isinstance(batch, Unprepared) else batch


def _loss_of(
    loss: Callable[..., tuple[Tensor, Tensor | float]], outputs: Any, targets: Any, weights: Tensor | None
) -> tuple[Tensor, Tensor | float]:
    """Local: returns the loss sum and weight of a batch; refuses a label that has no class."""
    try:
        return loss(outputs, targets, weights)
    except IndexError as error:  # so torch calls such a label
        raise UsageError(f"the loss cannot use the targets of a batch: {error}; labels must lie in 0..classes-1") from error


def split_batch(batch: Any) -> tuple[Any, Any, Tensor | None]:
    """Pure: returns inputs, targets and sample weights of a batch."""
    if isinstance(batch, tuple):
        if len(batch) == 2:
            return batch[0], batch[1], None
        if len(batch) == 3:
            return batch
    raise UsageError(
        "a training batch must be (inputs, targets) or (inputs, targets, weights), each any nesting of dicts and tuples; "
        f"received {_describe_batch(batch)}; change the data of the task, or give the task its own step"
    )


def call(model: nn.Module, inputs: Any) -> Any:
    """Local: calls a model; a dict of inputs is passed by name, a tuple in order."""
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, tuple):
        return model(*inputs)
    return model(inputs)


def num_rows(inputs: Any) -> int:
    """Pure: returns the number of samples in a batch of tensors."""
    while not isinstance(inputs, Tensor):
        inputs = next(iter(inputs.values())) if isinstance(inputs, dict) else inputs[0]
    return len(inputs)


def _describe_batch(batch: Any) -> str:
    """Returns what kind of batch this is, for a message: a tuple, a dict, or one value."""
    if isinstance(batch, tuple):
        return f"a tuple of {len(batch)}"
    return f"a dict with {', '.join(map(str, batch))}" if isinstance(batch, dict) else f"one {type(batch).__name__}"
