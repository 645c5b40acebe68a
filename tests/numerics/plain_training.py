"""The same training by hand, as a textbook has it: one process, whole batches, losses of torch, metrics of scikit-learn. Of Unisono
it takes the order of the samples alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import sklearn.metrics
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.numerics.drawn_tasks import CLASSES, LABELS, NUMBERS, ONE_HOT, SHARES, TWO_CLASSES, Drawn, Net
from unisono.data.sharding_plan import Plan

Floats = npt.NDArray[np.float64]


@dataclass
class Plain:
    """What the training by hand leaves."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    """Those that count: of the last epoch, or of the best."""
    last: dict[str, Tensor] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    val_losses: list[float] = field(default_factory=list)
    test: dict[str, float] = field(default_factory=dict)
    """Loss and metrics of the test samples."""
    outputs: Tensor = field(default_factory=lambda: torch.zeros(0))
    """Of the test samples."""


class Learner:
    """One replica with its optimiser."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn = drawn
        self.model = Net(drawn)
        self.optimizer = drawn.make_optimizer(self.model, drawn.lr)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]

    def step(self, batch: tuple[Tensor, ...], factor: float) -> tuple[float, float]:
        """Returns the sum of the loss and its weight, and moves."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        mean, weight = loss_of(self.drawn, self.model(batch[0]), batch)
        mean.backward()  # type: ignore[no-untyped-call]
        if self.drawn.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.drawn.clip_norm)
        self.optimizer.step()
        return float(mean.detach()) * weight, weight


class Elastic:
    """The centre of one worker by elastic averaging (Zhang et al. 2015): both move towards each other, the worker only after its
    next gradient."""

    def __init__(self, drawn: Drawn, worker: Learner) -> None:
        self.share, self.period, self.num_steps = drawn.server_options.get("elastic", 0.9), drawn.server_options["period"], 0
        self.worker, self.learning = worker, [one for one in worker.model.parameters() if one.requires_grad]
        self.centre = [one.detach().clone() for one in self.learning]
        self.pull = [torch.zeros_like(one) for one in self.centre]
        worker.optimizer.register_step_pre_hook(self._pulled)

    def _pulled(self, *_: object) -> None:
        for one, pull in zip(self.learning, self.pull, strict=True):
            one.data.sub_(pull)
            pull.zero_()

    def call(self) -> None:
        for one, centre, pull in zip(self.learning, self.centre, self.pull, strict=True):
            pull.copy_(self.share * (one.data - centre))
            centre.add_(pull)

    def after_step(self) -> None:
        self.num_steps += 1
        if self.num_steps % self.period == 0:
            self.call()

    def end(self) -> None:
        """The weights that count become those of the model."""
        if self.num_steps % self.period:
            self.call()
        for one, centre in zip(self.learning, self.centre, strict=True):
            one.data.copy_(centre)


def train_plainly(drawn: Drawn) -> Plain:
    """Local: trains as many replicas as take steps by themselves, one after the other."""
    found = Plain()
    num_replicas = drawn.workers if drawn.algorithm == "local_sgd" else 1
    replicas = [Learner(drawn) for _ in range(num_replicas)]
    elastic = Elastic(drawn, replicas[0]) if drawn.algorithm == "easgd" else None
    train, validation, test = (tensors(drawn, number) for number in range(3))
    plan = Plan(drawn.sizes[0], drawn.global_batch, drawn.seed)
    num_steps, step, best = drawn.steps_per_epoch * drawn.epochs, 0, math.inf
    for epoch in range(drawn.epochs):
        order = torch.from_numpy(plan.order(epoch))
        assert sorted(order.tolist()) == list(range(drawn.sizes[0]))
        total = weight = 0.0
        since = 0
        for start in range(0, len(order), drawn.global_batch):
            batch = order[start : start + drawn.global_batch]
            for number, replica in enumerate(replicas):
                part = batch[len(batch) * number // num_replicas : len(batch) * (number + 1) // num_replicas]
                if len(part):
                    more, its_weight = replica.step(tuple(one[part] for one in train), factor_at(drawn, step, num_steps))
                    total, weight = total + more, weight + its_weight
            if elastic is not None:
                elastic.after_step()
            step, since = step + 1, since + 1
            if since == drawn.period:
                average(replicas)
                since = 0
        average(replicas)
        if elastic is not None:  # of one epoch
            elastic.end()
        found.losses.append(total / weight)
        found.last = deepcopy(replicas[0].model.state_dict())
        found.val_losses.append(float(evaluated(drawn, replicas[0].model, validation)[0]))
        if not drawn.best or found.val_losses[-1] < best:
            best, found.weights = found.val_losses[-1], found.last
    model = Net(drawn)
    model.load_state_dict(found.weights)
    loss, found.outputs = evaluated(drawn, model, test)
    found.test = {"loss": float(loss), **{name: metric_of(drawn, name, found.outputs, test) for name in drawn.metrics}}
    return found


def average(replicas: Sequence[Learner]) -> None:
    """All weights become their mean."""
    if len(replicas) > 1:
        states = [replica.model.state_dict() for replica in replicas]
        mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
        for replica in replicas:
            replica.model.load_state_dict(mean)


def tensors(drawn: Drawn, part: int) -> tuple[Tensor, ...]:
    inputs, *others = map(torch.from_numpy, drawn.part(part))
    return (inputs.to(drawn.dtype), *others)


def evaluated(drawn: Drawn, model: nn.Module, part: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    model.eval()
    with torch.no_grad():
        outputs = model(part[0])
        return loss_of(drawn, outputs, part)[0], outputs


def factor_at(drawn: Drawn, step: int, num_steps: int) -> float:
    """The factor of the learning rate, from the formulas of the documentation."""
    name, options = drawn.schedule
    warmup = options.get("warmup_steps", 0)
    if step < warmup:
        return float((step + 1) / (warmup + 1))
    over = min(1.0, (step - warmup) / max(1, num_steps - warmup))
    final = options.get("final_factor", 0.0)
    match name:
        case "linear":
            return float(1 - over)
        case "cosine":
            return (1 + math.cos(math.pi * over)) / 2
        case "polynomial":
            return float(final + (1 - final) * (1 - over) ** options["power"])
        case "exponential":
            return float(options["gamma"] ** ((step - warmup) / options["every_steps"]))
        case "step":
            return float(options["gamma"] ** (step // (options["every_epochs"] * drawn.steps_per_epoch)))
        case "inverse_sqrt":
            return math.sqrt((warmup + 1) / (step + 1))
    return 1.0


def loss_of(drawn: Drawn, outputs: Tensor, batch: tuple[Tensor, ...]) -> tuple[Tensor, float]:
    """The mean loss of a batch, and what it counts when means are put together."""
    targets, weights = batch[1], batch[2].to(outputs.dtype) if len(batch) > 2 else None
    options = drawn.loss_options
    importance = torch.ones(len(targets), dtype=outputs.dtype)
    if drawn.loss == "own":
        each = drawn.own_loss()(outputs, targets)
    elif drawn.kind == CLASSES:
        classes = torch.tensor(options["class_weights"], dtype=outputs.dtype) if "class_weights" in options else None
        if drawn.form in (ONE_HOT, SHARES):
            smooth = options.get("label_smoothing", 0.0)
            shares = targets.to(outputs.dtype) * (1 - smooth) + smooth / drawn.num_outputs
            each = -(shares * torch.log_softmax(outputs, 1) * (1 if classes is None else classes)).sum(1)
        else:
            labels = targets.long()
            importance = importance if classes is None else classes[labels]
            smooth = options.get("label_smoothing", 0.0)
            each = functional.cross_entropy(outputs, labels, classes, reduction="none", label_smoothing=smooth)
            if drawn.loss == "focal":
                right = torch.softmax(outputs, 1).gather(1, labels.unsqueeze(1))[:, 0]
                each = -importance * (1 - right) ** 2 * torch.log(right)
    else:
        whole = targets.to(outputs.dtype).reshape(outputs.shape)
        each = element_loss(drawn, outputs, whole)
        width = each[0].numel()
        each = each.reshape(len(each), -1).sum(1)
        importance = importance * width
    if weights is not None:
        each, importance = each * weights, importance * weights
    return each.sum() / importance.sum(), float(importance.sum())


def element_loss(drawn: Drawn, outputs: Tensor, targets: Tensor) -> Tensor:
    match drawn.loss:
        case "bce":
            right, wrong = functional.logsigmoid(outputs), functional.logsigmoid(-outputs)
            positive: float = drawn.loss_options.get("pos_weight", 1.0)
            return -(positive * targets * right + (1 - targets) * wrong)
        case "mse":
            return (outputs - targets) ** 2
        case "mae":
            return (outputs - targets).abs()
    error = (outputs - targets).abs()  # huber and smooth_l1 with their first setting
    return torch.where(error < 1, error**2 / 2, error - 0.5)


# ---- metrics ---------------------------------------------------------------------------------------------------------------


def metric_of(drawn: Drawn, name: str, outputs: Tensor, part: tuple[Tensor, ...]) -> float:
    """By scikit-learn, from the outputs."""
    found = outputs.double().numpy()
    targets, weights = part[1].numpy(), part[2].double().numpy() if len(part) > 2 else None
    if drawn.kind == NUMBERS:
        return metric_of_numbers(name, found.reshape(len(found), -1), targets.reshape(len(found), -1).astype(float), weights)
    if drawn.kind == CLASSES:
        truth = targets.argmax(1) if drawn.form == ONE_HOT else targets.astype(int)
        return metric_of_classes(name, found, truth, weights)
    found, truths = found.reshape(len(found), -1), targets.reshape(len(found), -1).astype(int)
    if drawn.kind == TWO_CLASSES:
        return metric_of_two_classes(name, found[:, 0], truths[:, 0], weights)
    assert drawn.kind == LABELS
    return metric_of_labels(name, found, truths, weights)


def metric_of_numbers(name: str, found: Floats, truth: Floats, weights: Floats | None) -> float:
    of = sklearn.metrics
    match name:
        case "mse":
            return float(of.mean_squared_error(truth, found, sample_weight=weights))
        case "rmse":
            return math.sqrt(of.mean_squared_error(truth, found, sample_weight=weights))
        case "mae":
            return float(of.mean_absolute_error(truth, found, sample_weight=weights))
    return float(of.r2_score(truth, found, sample_weight=weights))


QUOTIENTS = {
    "f1": sklearn.metrics.f1_score,
    "dice": sklearn.metrics.f1_score,
    "precision": sklearn.metrics.precision_score,
    "recall": sklearn.metrics.recall_score,
    "iou": sklearn.metrics.jaccard_score,
}
AREAS = {"auc": sklearn.metrics.roc_auc_score, "average_precision": sklearn.metrics.average_precision_score}


def metric_of_classes(name: str, found: Floats, truth: npt.NDArray[np.int64], weights: Floats | None) -> float:
    decided = found.argmax(1)
    if name in QUOTIENTS:
        return float(QUOTIENTS[name](truth, decided, average="macro", zero_division=0, sample_weight=weights))
    if name in AREAS:
        scores = np.exp(found - found.max(1, keepdims=True))
        scores /= scores.sum(1, keepdims=True)
        if found.shape[1] == 2:
            return area(name, found[:, 1] - found[:, 0], truth == 1, weights)
        areas = [area(name, scores[:, one], truth == one, weights) for one in range(found.shape[1])]
        return float(np.nanmean(areas))
    if name == "top_2_accuracy":
        return float(np.mean([one in row for one, row in zip(truth, np.argsort(-found, 1)[:, :2], strict=True)]))
    return agreement(name, truth, decided, weights)


def metric_of_two_classes(name: str, found: Floats, truth: npt.NDArray[np.int64], weights: Floats | None) -> float:
    decided = (found > 0).astype(int)
    if name in QUOTIENTS:
        return float(QUOTIENTS[name](truth, decided, zero_division=0, sample_weight=weights))
    return area(name, found, truth == 1, weights) if name in AREAS else agreement(name, truth, decided, weights)


def metric_of_labels(name: str, found: Floats, truth: npt.NDArray[np.int64], weights: Floats | None) -> float:
    decided = (found > 0).astype(int)
    if name == "accuracy":
        return float(np.average((decided == truth).mean(1), weights=weights))
    if name in AREAS:
        return float(np.nanmean([area(name, scores, true == 1, weights) for scores, true in zip(found.T, truth.T, strict=True)]))
    occurs = (decided + truth).any(0)
    each = QUOTIENTS[name](truth, decided, average=None, zero_division=0, sample_weight=weights)
    return float(each[occurs].mean())


def area(name: str, scores: Floats, truth: npt.NDArray[np.bool_], weights: Floats | None) -> float:
    if not truth.any() or (name == "auc" and truth.all()):
        return math.nan
    return float(AREAS[name](truth, scores, sample_weight=weights))


def agreement(name: str, truth: npt.NDArray[np.int64], decided: npt.NDArray[np.int64], weights: Floats | None) -> float:
    of = sklearn.metrics
    if name == "kappa":
        return float(of.cohen_kappa_score(truth, decided, sample_weight=weights))
    if name == "balanced_accuracy":
        return float(of.recall_score(truth, decided, average=None, labels=np.unique(truth), sample_weight=weights).mean())
    return float(of.accuracy_score(truth, decided, sample_weight=weights))
