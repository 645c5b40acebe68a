"""The contract of replicas, for every framework: the same checks for torch and for Keras on each backend.

    python -m unisono.testing.model_contract torch
    KERAS_BACKEND=jax python -m unisono.testing.model_contract keras

Prints a line for each check and ends with 1 where one failed. Local: one process, no other ranks.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from unisono.algorithms.base import LockStepAlgorithm, StepInfo
from unisono.comm.single_process import single_process_communicator
from unisono.data.splits import Splits
from unisono.model.base import StreamKey
from unisono.model.keras.module import KerasModule
from unisono.model.tail import StepStats
from unisono.model.torch.adapter import TorchAdapter
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.training.frontends.assemble import assemble
from unisono.training.training_parts import TrainingParts

WIDTH, CLASSES, ROWS = 5, 3, 12
KEY = StreamKey(1, 2, 3)
Make = Callable[..., Any]


def torch_model(dropout: float = 0.0, norm: bool = False) -> nn.Module:
    """A small classifier."""
    layers: list[nn.Module] = [nn.Linear(WIDTH, 8)]
    layers += [nn.BatchNorm1d(8, momentum=0.1)] if norm else []
    layers += [nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, CLASSES)]
    return nn.Sequential(*layers)


def keras_model(dropout: float = 0.0, norm: bool = False) -> Any:
    """A small classifier in Keras."""
    import keras

    layers = [keras.Input((WIDTH,)), keras.layers.Dense(8)]
    layers += [keras.layers.BatchNormalization(momentum=0.9)] if norm else []
    layers += [keras.layers.Activation("tanh"), keras.layers.Dropout(dropout), keras.layers.Dense(CLASSES)]
    return keras.Sequential(layers)


MODELS: Mapping[str, Make] = MappingProxyType({"torch": torch_model, "keras": keras_model})


class Replica:
    """A replica, made as `unisono train` makes it."""

    def __init__(self, kind: str, optimizer: Any = "sgd", weighted: bool = False, options: Any = None, **shape: Any) -> None:
        task = Task(
            model=partial(MODELS[kind], **shape),
            data=partial(_make_splits, weighted),
            loss="cross_entropy",
            metrics=("accuracy",),
            optimizer=optimizer,
            optimizer_options=options or {},
            lr=0.1,
            global_batch=ROWS,
        )
        self.parts: TrainingParts = assemble(change(task, {}), "allreduce", single_process_communicator(torch.device("cpu")))
        self.adapter: TorchAdapter = self.parts.adapter
        self.parts.algorithm.start()
        self.held = self.adapter.parts[""]
        self.batch = _make_batch(weighted)

    def gradient(self, *batches: Any, key: StreamKey = KEY) -> dict[str, Tensor]:
        """The gradient of the summed loss, by name."""
        self.adapter.clear_gradients()
        for batch in batches or (self.batch,):
            self.adapter.forward_backward(batch, key)
        return {name: one.clone() for name, one in self.held.layout.views(self.held.gradients).items()}

    def step(self, number: int = 0) -> StepStats:
        """Makes one training step on `batch`; returns its statistics."""
        at = StepInfo(number, StreamKey(0, number, 0), self.parts.settings(number), ROWS)
        assert isinstance(self.parts.algorithm, LockStepAlgorithm)
        (stats,) = self.parts.algorithm.step((self.batch,), at)
        return stats

    def weights(self) -> dict[str, Tensor]:
        """Returns copies of all values of the model, by name."""
        return {name: value.clone() for name, value in self.adapter.model.state_dict().items()}


def _make_batch(weighted: bool) -> Any:
    draw = np.random.default_rng(5)
    x = draw.normal(size=(ROWS, WIDTH)).astype(np.float32)
    y = draw.integers(0, CLASSES, ROWS)
    return (x, y, draw.uniform(0.5, 2.0, ROWS).astype(np.float32)) if weighted else (x, y)


def _make_splits(weighted: bool) -> Splits:
    return Splits(train=_make_batch(weighted), validation=_make_batch(weighted))


# ---- the contract ----------------------------------------------------------------------------------------------------


STEP = 2.5e-3
"""Of differences: what they leave out is its square, and the rounding of float32 divided by it stays small too."""


def check_the_gradient_is_that_of_the_loss(kind: str) -> None:
    """The gradient equals central differences of the evaluated loss, along a random direction."""
    replica = Replica(kind)
    gradient = replica.gradient()
    (values,) = replica.held.values.values()
    draw = torch.Generator().manual_seed(0)
    start, found = values.clone(), []
    direction = {name: torch.randn(one.shape, generator=draw) for name, one in gradient.items()}
    for sign in (1, -1):
        for name, view in replica.held.layout.views(replica.held.values).items():
            view.add_(direction[name], alpha=sign * STEP)
        found.append(_evaluation_loss(replica))
        values.copy_(start)
    expected = sum(float((gradient[name] * direction[name]).sum()) for name in gradient)
    _expect_near((found[0] - found[1]) / (2 * STEP), expected, 2e-3)


def check_micro_batches_add_up(kind: str) -> None:
    replica = Replica(kind)
    whole = replica.gradient()
    x, y = replica.batch
    parts = replica.gradient((x[:5], y[:5]), (x[5:], y[5:]))
    _expect_close(parts, whole, 1e-5)
    stats, _ = replica.adapter.tail.read(0)
    assert stats.num_samples == ROWS and stats.weight == ROWS, stats


def check_the_values_are_the_vector(kind: str) -> None:
    """The model computes with the values that are written into the vector."""
    replica = Replica(kind)
    before = _evaluation_loss(replica)
    (values,) = replica.held.values.values()
    values.zero_()
    _expect_near(_evaluation_loss(replica), ROWS * np.log(CLASSES), 1e-5)
    assert before != _evaluation_loss(replica)


def check_an_update_is_that_of_its_equation(kind: str) -> None:
    replica = Replica(kind)
    start, gradient = replica.weights(), replica.gradient()
    replica.step()
    after = replica.weights()
    for name, one in gradient.items():
        _expect_close({name: after[name]}, {name: start[name] - 0.1 * one / ROWS}, 1e-6)


def check_sample_weights_count(kind: str) -> None:
    """Twice the weights, twice the gradient of the sum."""
    replica = Replica(kind, weighted=True)
    x, y, weights = replica.batch
    single = replica.gradient()
    double = replica.gradient((x, y, 2 * weights))
    _expect_close(double, {name: 2 * one for name, one in single.items()}, 1e-5)
    half = replica.gradient((x, y, np.where(np.arange(ROWS) < 6, weights, 0).astype(np.float32)))
    _expect_close(half, replica.gradient((x[:6], y[:6], weights[:6])), 1e-5)


def check_random_numbers_are_a_function_of_the_key(kind: str) -> None:
    replica = Replica(kind, dropout=0.5)
    first = replica.gradient(key=StreamKey(0, 1, 2))
    other = replica.gradient(key=StreamKey(0, 1, 3))
    again = replica.gradient(key=StreamKey(0, 1, 2))
    assert _are_equal(first, again) and not _are_equal(first, other)


def check_equal_seeds_make_equal_models(kind: str) -> None:
    assert _are_equal(Replica(kind).weights(), Replica(kind).weights())


def check_statistics_move_in_training_alone(kind: str) -> None:
    replica = Replica(kind, norm=True)
    (statistics,) = replica.adapter.statistics()
    before = statistics.clone()
    replica.adapter.evaluate(replica.batch)
    assert torch.equal(statistics, before)
    replica.step()
    assert not torch.equal(statistics, before)
    outputs = replica.adapter.evaluate(replica.batch).outputs.clone()
    statistics.add_(1)
    assert not torch.equal(outputs, replica.adapter.evaluate(replica.batch).outputs)


def check_evaluation_changes_nothing(kind: str) -> None:
    replica = Replica(kind, dropout=0.5, norm=True)
    before = replica.weights()
    first = replica.adapter.evaluate(replica.batch).outputs.clone()
    assert torch.equal(first, replica.adapter.evaluate(replica.batch).outputs) and _are_equal(replica.weights(), before)


def check_metrics_are_exact(kind: str) -> None:
    replica = Replica(kind)
    outputs = replica.adapter.evaluate(replica.batch).outputs
    right = int((outputs.argmax(1) == torch.from_numpy(replica.batch[1])).sum())
    stats = replica.step()
    (accuracy,) = replica.parts.train_metrics
    _expect_near(accuracy.value(stats.metric_sums), right / ROWS, 1e-6)


def check_a_restored_replica_continues_identically(kind: str, optimizer: Any = "adam") -> None:
    replica = Replica(kind, optimizer, norm=True)
    for number in range(3):
        replica.step(number)
    other = Replica(kind, optimizer, norm=True)
    with torch.no_grad():
        other.adapter.restore(deepcopy({**replica.adapter.state(), "kept": {}}))
    for number in range(3, 6):
        replica.step(number)
        other.step(number)
    assert _are_equal(replica.weights(), other.weights())


def check_a_copy_has_memory_of_its_own(kind: str) -> None:
    replica = Replica(kind, norm=True)
    copied, before = deepcopy(replica.adapter.model), replica.weights()
    replica.step()
    assert _are_equal(dict(copied.state_dict()), before) and not _are_equal(replica.weights(), before)
    with torch.no_grad():
        for one in copied.state_dict().values():
            one.fill_(0)
    assert any(bool(one.any()) for one in replica.weights().values())


def check_a_loss_that_is_no_number_moves_nothing(kind: str) -> None:
    replica = Replica(kind)
    before = replica.weights()
    replica.batch = (np.full((ROWS, WIDTH), np.nan, dtype=np.float32), replica.batch[1])
    assert replica.step().num_not_finite == 1 and _are_equal(replica.weights(), before)


def check_a_worker_without_samples_takes_part(kind: str) -> None:
    replica = Replica(kind)
    replica.adapter.clear_gradients()
    replica.adapter.skip()
    stats, uses = replica.adapter.tail.read(0)
    assert stats.weight == 0 and not uses.any() and not float(replica.held.sum())


def check_every_optimizer_of_keras_moves(kind: str) -> None:
    """Each optimizer also continues after a restore; those of torch have other tests."""
    if kind != "keras":
        return
    import keras

    for optimizer in (keras.optimizers.Lamb, keras.optimizers.Adam, keras.optimizers.SGD):
        check_a_restored_replica_continues_identically(kind, optimizer)


def check_a_rule_is_what_keras_does(kind: str) -> None:
    """Our vector rules give what Keras's own optimizers give: weights, counts and memory after five steps."""
    if kind != "keras":
        return
    from keras import optimizers

    from unisono.model.keras import optimizer as of_keras
    from unisono.model.keras.rules import KerasRule

    made: list[Callable[[], Any]] = [
        partial(optimizers.SGD, momentum=0.9),
        partial(optimizers.SGD, momentum=0.9, nesterov=True, weight_decay=0.1),
        partial(optimizers.AdamW, weight_decay=0.2),
        partial(optimizers.RMSprop, momentum=0.5),
        optimizers.Adagrad,
    ]
    for make in made:
        own, other = make(), make()
        ours = Replica(kind, own)
        with patch.object(of_keras, "rule_of", lambda *_: None):
            theirs = Replica(kind, other)
        assert isinstance(ours.held.running, KerasRule) and not isinstance(theirs.held.running, KerasRule)
        for replica, optimizer in ((ours, own), (theirs, other)):
            for number in range(5):
                replica.step(number)
            assert isinstance(replica.adapter.model, KerasModule)
            of_keras.publish_learned(replica.held, replica.adapter.model, optimizer)
        _expect_close(ours.weights(), theirs.weights(), 1e-5)
        _expect_close(_variables(own), _variables(other), 1e-5)
        ours.held.running.state.clear()  # as an algorithm may, which lets it begin again
        ours.step(5)


def _variables(optimizer: Any) -> dict[str, Tensor]:
    """Returns the variables of a Keras optimizer, by their place."""
    from keras import ops

    return {str(number): torch.tensor(ops.convert_to_numpy(one)).double() for number, one in enumerate(optimizer.variables)}


CHECKS: Mapping[str, Callable[[str], None]] = MappingProxyType(
    {name.removeprefix("check_"): found for name, found in dict(globals()).items() if name.startswith("check_")}
)


def _evaluation_loss(replica: Replica) -> float:
    found = replica.adapter.evaluate(replica.batch).loss_sum
    assert found is not None
    return float(found)


def _expect_near(found: float, expected: float, relative: float) -> None:
    assert abs(found - expected) <= relative * max(abs(expected), 1e-12), (found, expected)


def _expect_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], relative: float) -> None:
    for name, one in expected.items():
        difference = float((found[name] - one).norm())
        assert difference <= relative * max(float(one.norm()), 1e-6), (name, difference, float(one.norm()))


def _are_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(found[name], one) for name, one in expected.items()) and found.keys() == expected.keys()


def main(arguments: list[str]) -> int:
    """Local, blocking: runs all checks, or those that are named; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m unisono.testing.model_contract", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=tuple(MODELS))
    parser.add_argument("checks", nargs="*", metavar="CHECK", help="run only these checks (default: all)")
    asked = parser.parse_args(arguments)
    failed = 0
    for name in asked.checks or CHECKS:
        try:
            CHECKS[name](asked.kind)
            print(f"ok {name}", flush=True)
        except Exception:  # noqa: BLE001 - shown, and the others are tried
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
