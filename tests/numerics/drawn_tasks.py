"""Tasks drawn at random: one number decides the data, model, loss, metrics, optimiser and all else that a training is made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Subset, TensorDataset

import unisono as un
from unisono.data.sources.numpy_files import Npy
from unisono.task.task import Task

Array = npt.NDArray[Any]

CLASSES, TWO_CLASSES, LABELS, NUMBERS = "classes", "two classes", "labels", "numbers"
"""What the targets are: one class of several, yes or no by one output, labels that may hold together, numbers."""
KINDS = (CLASSES, TWO_CLASSES, LABELS, NUMBERS)
LABEL, ONE_HOT, SHARES, FLAT, COLUMNS = "label", "one hot", "shares", "flat", "columns"
"""The form of the targets: class numbers, rows with a one, probabilities; (n,), (n, outputs)."""
STORAGES = ("arrays", "float64 arrays", "uint8 arrays", "dataset", "subset", "npy", "hdf5")
FORM_METRICS: Mapping[str, Sequence[str]] = {
    CLASSES: (
        "accuracy",
        "balanced_accuracy",
        "kappa",
        "f1",
        "precision",
        "recall",
        "iou",
        "auc",
        "average_precision",
        "top_2_accuracy",
    ),
    TWO_CLASSES: ("accuracy", "balanced_accuracy", "kappa", "f1", "precision", "recall", "dice", "auc", "average_precision"),
    LABELS: ("accuracy", "f1", "precision", "recall", "auc", "average_precision"),
    NUMBERS: ("mse", "rmse", "mae", "r2"),
}
FORM_LOSSES: Mapping[str, Sequence[str]] = {
    CLASSES: ("cross_entropy", "cross_entropy", "focal", "own"),
    TWO_CLASSES: ("bce", "bce", "own"),
    LABELS: ("bce", "own"),
    NUMBERS: ("mse", "mae", "huber", "smooth_l1", "own"),
}
OPTIMIZERS: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("sgd", {}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("sgd", {"momentum": 0.5, "dampening": 0.3}),
    ("adam", {}),
    ("adamw", {"weight_decay": 0.05}),
    ("adam", {"amsgrad": True, "betas": (0.8, 0.95)}),
    ("rmsprop", {"momentum": 0.5}),
    ("adagrad", {}),
    ("nadam", {}),
)
SCHEDULES: Sequence[tuple[str | None, Mapping[str, Any]]] = (
    (None, {}),
    ("linear", {}),
    ("cosine", {"warmup_steps": 2}),
    ("polynomial", {"power": 3.0, "final_factor": 0.1}),
    ("exponential", {"gamma": 0.8, "every_steps": 3}),
    ("step", {"every_epochs": 1, "gamma": 0.5}),
    ("inverse_sqrt", {"warmup_steps": 3}),
)


class Net(nn.Module):
    """A small perceptron, the same for the same options. `tied`: the decoder is the transpose of the encoder; `idle`: a layer that
    only samples with a large first input use; `frozen`: the first layer does not learn; `norm`: batch normalisation."""

    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        width = drawn.num_inputs if drawn.tied else 5
        self.first = nn.Linear(drawn.num_inputs, width)
        self.second = nn.Linear(width, width)
        if drawn.tied:
            self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(width) if drawn.norm else nn.Identity()
        self.idle = nn.Linear(width, width) if drawn.idle else None
        self.last = nn.Linear(width, drawn.num_outputs)
        self.flat = drawn.form == FLAT
        own = torch.Generator().manual_seed(drawn.seed)  # ranks that are threads share the generator of the process
        for parameter in self.parameters():
            parameter.data.normal_(0, 0.6 if parameter.dim() > 1 else 0.2, generator=own)
        if drawn.frozen:
            self.first.requires_grad_(False)
        self.to(drawn.dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        found = torch.tanh(self.first(inputs.to(self.last.weight.dtype)))
        found = self.norm(torch.tanh(self.second(found)))
        if self.idle is not None:
            rare = (inputs[:, 0] > inputs[:, 1]).nonzero()[:, 0]
            found = found.index_add(0, rare, self.idle(found[rare])) if len(rare) else found
        outputs: Tensor = self.last(found)
        return outputs[:, 0] if self.flat else outputs


@dataclass(frozen=True)
class Drawn:
    """One task, and how it is trained. Samples of the three parts follow each other in `samples`."""

    seed: int
    kind: str
    form: str
    storage: str
    num_inputs: int
    num_outputs: int
    sizes: tuple[int, int, int]
    """Samples of training, validation and test."""
    weighted: bool
    """Whether samples have weights."""
    loss: str
    loss_options: Mapping[str, Any]
    metrics: tuple[str, ...]
    tied: bool
    idle: bool
    frozen: bool
    norm: bool
    double: bool
    optimizer: tuple[str, Mapping[str, Any]]
    groups: bool
    """Whether the optimiser has two groups, the second with a tenth of the learning rate."""
    hook: bool
    """Whether a hook of the optimiser clips the weights after each step."""
    lr: float
    schedule: tuple[str | None, Mapping[str, Any]]
    clip_norm: float | None
    accumulate: int
    global_batch: int
    epochs: int
    best: bool
    """Whether the weights of the epoch with the smallest val_loss count."""
    algorithm: str
    period: int
    """Steps of a round of local_sgd."""
    shards: int | None
    workers: int
    stop_after: int | None
    """The step after which the run is stopped, and then resumed."""
    virtual: int | None = None
    """Virtual workers of a server."""
    server_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.double else torch.float32

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.sizes[0] // self.global_batch)

    def samples(self) -> tuple[Array, Array, Array | None]:
        """Pure: inputs, targets and weights of all samples. Every class occurs."""
        from_seed = np.random.default_rng(self.seed)
        total = sum(self.sizes)
        inputs = from_seed.normal(0, 1, (total, self.num_inputs))
        if self.storage == "uint8 arrays":
            inputs = np.clip(inputs * 2 + 4, 0, 8).astype(np.uint8)
        elif self.storage != "float64 arrays":
            inputs = inputs.astype(np.float32)
        scores = inputs @ from_seed.normal(0, 1, (self.num_inputs, self.num_outputs)) + from_seed.normal(
            0, 1, (total, self.num_outputs)
        )
        targets: Array
        if self.kind == CLASSES:
            targets = scores.argmax(1).astype(from_seed.choice(["i8", "i4", "u1"]))
            if self.form == ONE_HOT:
                targets = np.eye(self.num_outputs, dtype="f4")[targets]
            elif self.form == SHARES:
                exponents = np.exp(scores - scores.max(1, keepdims=True))
                targets = (exponents / exponents.sum(1, keepdims=True)).astype("f4")
        elif self.kind == NUMBERS:
            targets = scores.astype(from_seed.choice(["f4", "f8"]))
        else:
            targets = (scores > np.median(scores, 0)).astype(from_seed.choice(["i8", "f4", "u1"]))
        if self.form == FLAT:
            targets = targets[:, 0]
        weights = from_seed.uniform(0.2, 2.0, total).astype("f4") if self.weighted else None
        return inputs, targets, weights

    def part(self, number: int) -> tuple[Array, ...]:
        """Pure: inputs, targets and weights, if any, of one part."""
        start = sum(self.sizes[:number])
        return tuple(one[start : start + self.sizes[number]] for one in self.samples() if one is not None)

    def data(self, folder: Path) -> un.Splits:
        """Local: the three parts, stored as was drawn; files are written when they are not there."""
        return un.Splits(*(self._stored(number, folder) for number in range(3)))

    def _stored(self, number: int, folder: Path) -> Any:
        arrays = self.part(number)
        if self.storage == "dataset":
            return TensorDataset(*map(torch.from_numpy, arrays))
        if self.storage == "subset":
            start = sum(self.sizes[:number])
            whole = TensorDataset(*(torch.from_numpy(one) for one in self.samples() if one is not None))
            return Subset(whole, range(start, start + self.sizes[number]))
        if self.storage == "npy":
            paths = [folder / f"{name}-{number}.npy" for name, _ in zip("xyw", arrays, strict=False)]
            for path, array in zip(paths, arrays, strict=True):
                if not path.exists():
                    np.save(path, array)
            return Npy(*paths)
        if self.storage == "hdf5":
            file = folder / f"part-{number}.h5"
            if not file.exists():
                with h5py.File(file, "w") as opened:
                    for name, array in zip(("inputs", "targets"), arrays, strict=True):
                        opened.create_dataset(name, data=array, chunks=(min(16, len(array)), *array.shape[1:]))
            return un.HDF5(file, inputs="inputs", targets="targets")
        return arrays

    def make_optimizer(self, model: nn.Module, lr: float) -> Optimizer:
        """Local: the optimiser of torch itself, with the groups and the hook that were drawn."""
        name, options = self.optimizer
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups: Any = learning
        if self.groups:
            groups = [{"params": learning[:1]}, {"params": learning[1:], "lr": lr / 10}]
        kinds = {kind.__name__.lower(): kind for kind in vars(torch.optim).values() if isinstance(kind, type)}
        made: Optimizer = kinds[name](groups, lr=lr, **options)
        if self.hook:
            made.register_step_post_hook(_clip_weights)
        return made

    def own_loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Pure: a loss of people's own, one value for each sample."""
        if self.kind == NUMBERS:
            return _own_of_numbers
        own = partial(_own_of_classes if self.kind == CLASSES else _own_of_labels)
        own.predicts, own.one_hot = "logits", False  # type: ignore[attr-defined] # which metrics by name need to know
        return own

    def task(self, folder: Path) -> Task:
        """Pure: the task as a user would write it."""
        by_name = not (self.groups or self.hook)
        name, options = self.optimizer
        return Task(
            model=lambda: Net(self),
            data=lambda: self.data(folder),
            loss=self.own_loss() if self.loss == "own" else self.loss,
            loss_options=self.loss_options,
            metrics=self.metrics,
            optimizer=name if by_name else lambda model, lr: self.make_optimizer(model, lr),
            optimizer_options=options if by_name else {},
            lr=self.lr,
            schedule=self.schedule[0],
            schedule_options=self.schedule[1],
            clip_norm=self.clip_norm,
            accumulate=self.accumulate,
            global_batch=self.global_batch,
            epochs=self.epochs,
            monitor="val_loss" if self.best else None,
            shards=self.shards,
            seed=self.seed,
            name="drawn",
        )


def _clip_weights(optimizer: Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.data.clamp_(-0.5, 0.5)


def _own_of_classes(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.logsumexp(outputs, 1) - outputs.gather(1, targets.long().unsqueeze(1))[:, 0]


def _own_of_labels(outputs: Tensor, targets: Tensor) -> Tensor:
    each = nn.functional.softplus(outputs) - outputs * targets.to(outputs.dtype)
    return each.flatten(1).mean(1) if each.dim() > 1 else each


def _own_of_numbers(outputs: Tensor, targets: Tensor) -> Tensor:
    each = (outputs - targets.to(outputs.dtype)).abs() ** 1.5
    return each.flatten(1).mean(1) if each.dim() > 1 else each


def draw(seed: int) -> Drawn:
    """Pure: the task of this number."""
    one = random.Random(seed)
    kind = one.choice(KINDS)
    num_outputs = {CLASSES: one.randint(2, 4), TWO_CLASSES: 1, LABELS: one.randint(2, 3), NUMBERS: one.randint(1, 2)}[kind]
    loss = one.choice(FORM_LOSSES[kind])
    forms = {
        CLASSES: [LABEL],
        TWO_CLASSES: [FLAT, COLUMNS],
        LABELS: [COLUMNS],
        NUMBERS: [FLAT, COLUMNS] if num_outputs == 1 else [COLUMNS],
    }
    form = one.choice([*forms[kind], *([ONE_HOT, SHARES] if loss == "cross_entropy" else [])])
    storage = one.choice(STORAGES)
    weighted = storage not in ("hdf5",) and one.random() < 0.25
    algorithm = one.choices(("allreduce", "sharded", "local_sgd"), (5, 2, 3))[0]
    workers = one.choice((1, 1, 2, 3))
    names = () if form == SHARES else tuple(one.sample(FORM_METRICS[kind], one.randint(1, 3)))
    if storage == "uint8 arrays":  # of which some are equal: their scores differ by rounding alone, and so does their order
        names = tuple(name for name in names if name not in ("auc", "average_precision"))
    if form == ONE_HOT or weighted:
        names = tuple(name for name in names if not name.startswith("top_"))
    options: dict[str, Any] = {}
    if loss in ("cross_entropy", "focal") and one.random() < 0.4:
        options["class_weights"] = [round(one.uniform(0.2, 3), 2) for _ in range(num_outputs)]
    if loss == "cross_entropy" and one.random() < 0.3:
        options["label_smoothing"] = 0.1
    if loss == "bce" and one.random() < 0.3:
        options["pos_weight"] = 2.5
    tied = one.random() < 0.2
    sizes = (one.randint(17, 50), one.randint(12, 25), one.randint(20, 40))
    batch, epochs = one.randint(5, 20), one.randint(1, 3)
    shards = one.choice((3, 4)) if algorithm == "sharded" else None
    steps = -(-sizes[0] // batch) * epochs
    accumulate = 1 if shards else one.choice((1, 1, 2))
    groups, hook = one.random() < 0.2, one.random() < 0.15
    return Drawn(
        seed=seed,
        kind=kind,
        form=form,
        storage=storage,
        num_inputs=one.randint(3, 6),
        num_outputs=num_outputs,
        sizes=sizes,
        weighted=weighted,
        loss=loss,
        loss_options=options,
        metrics=names,
        tied=tied,
        idle=one.random() < 0.2 and not tied,
        frozen=one.random() < 0.2 and not tied,
        norm=workers == accumulate == 1 and shards is None and sizes[0] % batch != 1 and one.random() < 0.3,
        double=one.random() < 0.85,
        optimizer=one.choice(OPTIMIZERS),
        groups=groups,
        hook=hook,
        lr=10 ** one.uniform(-2.5, -1),
        schedule=one.choice([each for each in SCHEDULES if each[1].get("warmup_steps", 0) <= steps]),
        clip_norm=one.choice((None, None, 0.5)),
        accumulate=accumulate,
        global_batch=batch,
        epochs=epochs,
        best=one.random() < 0.3,
        algorithm=algorithm,
        period=one.randint(1, 4),
        shards=shards,
        workers=workers,
        stop_after=one.randint(1, steps - 1) if one.random() < 0.3 and steps > 1 else None,
    )
