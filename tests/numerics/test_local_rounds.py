"""Workers that learn by themselves and agree in rounds: local SGD, post-local SGD, DiLoCo; against NumPy and against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

import unisono as un
from tests.numerics.learning import ONE_AT_A_TIME, Weights, assert_same, weights_of
from unisono.algorithms.base import LockStepAlgorithm, find_algorithm, known_algorithms, make_options
from unisono.algorithms.roles import LayoutOptions
from unisono.algorithms.rounds.local_steps import LocalRounds
from unisono.algorithms.rounds.statistics import RunningStatistics
from unisono.comm.base import Communicator
from unisono.comm.single_process import single_process_communicator
from unisono.errors import UsageError
from unisono.model.flat import hash_of
from unisono.model.torch.adapter import TorchAdapter, trainable
from unisono.model.torch.body import LossBody
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.testing.thread_communicator import run_threads
from unisono.training.checkpointing.checkpoint import Checkpoints, CheckpointStore
from unisono.training.checkpointing.saving import SaveInterval, Saving
from unisono.training.checkpointing.worker_states import merge_workers
from unisono.training.frontends.assemble import assemble
from unisono.training.progress import Progress
from unisono.training.run_hooks import RunHooks
from unisono.training.trainer import Trainer
from unisono.training.training_parts import AssemblyOptions

Vector = npt.NDArray[np.float64]
OPTION = "algorithm."
LOCAL: dict[str, dict[str, Any]] = {
    name: {option.removeprefix(OPTION): value for option, value in kind.examples[0].items() if option.startswith(OPTION)}
    for name, kind in ((name, find_algorithm(name)) for name in known_algorithms())
    if issubclass(kind, LocalRounds)
}
"""All that are there, with the options of their first example."""
OVERLAPPED = {"period": 4, "overlap": 2, "wire": "bf16"}

NUM_SAMPLES, NUM_FEATURES = 44, 5
DRAWN = np.random.default_rng(7)
INPUTS = DRAWN.normal(size=(NUM_SAMPLES, NUM_FEATURES))
TARGETS = DRAWN.normal(size=(NUM_SAMPLES, 1))


@dataclass(frozen=True)
class Ended:
    """What is left of a training on one rank."""

    weights: Weights
    progress: Progress
    steps: list[tuple[int, float, int]]
    """Each step as it was accounted: number, loss, samples."""
    seen: list[list[int]]
    """Sample numbers of each step."""
    notes: list[str]


def linear() -> nn.Module:
    return nn.Linear(NUM_FEATURES, 1).double()


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(NUM_FEATURES, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)).double()


def data() -> un.Splits:
    return un.Splits(train=(INPUTS, TARGETS), validation=(INPUTS[:10], TARGETS[:10]))


def task(model: Callable[[], nn.Module] = linear, **settings: Any) -> Task:
    usual = {"optimizer": "sgd", "lr": 0.05, "global_batch": 12, "epochs": 3, "loss": "mse"}
    return Task(model=model, data=data, **{**usual, **settings})


def train(
    what: Task,
    num_processes: int,
    algorithm: str,
    options: dict[str, Any] | None = None,
    group: int | None = None,
    folder: Path | None = None,
    max_steps: int | None = None,
    on_nan: str = "stop",
    ask_at: int | None = None,
) -> list[Ended]:
    """A training, from its task or from what an earlier attempt has left in the folder; the results by rank. `ask_at`: the step at
    which the last rank asks to stop."""
    changes = {f"algorithm.{name}": value for name, value in (options or {}).items()}

    def body(comm: Communicator) -> Ended:
        with ONE_AT_A_TIME:
            options = AssemblyOptions(on_nan=on_nan, layout=LayoutOptions(group=group))
            parts = assemble(change(what, changes), algorithm, comm, options)
        assert isinstance(parts.algorithm, LockStepAlgorithm)
        steps: list[tuple[int, float, int]] = []
        seen: list[list[int]] = []
        notes: list[str] = []
        store = saving = None
        if folder is not None:
            if comm.rank == 0:
                checkpoints = Checkpoints(folder, 3)
                store = CheckpointStore(checkpoints, loaded=checkpoints.newest())
            saving = Saving(
                adapter=parts.adapter, algorithm=parts.algorithm, interval=SaveInterval(), store=store, say=notes.append
            )

        def stop_requested() -> bool:
            return ask_at is not None and comm.rank == comm.size - 1 and trainer.progress.step >= ask_at

        trainer = Trainer(
            comm=comm,
            parts=parts,
            evaluation_batch=4,
            hooks=RunHooks(stop_requested=stop_requested),
            saving=saving,
            max_steps=max_steps,
        )
        account, take = trainer._record_step, parts.loader._read_portion

        def noted(stats: Any, sums: Any) -> None:
            steps.append((stats.step, stats.loss_sum, stats.num_samples))
            account(stats, sums)

        def read(indices: Any, epoch: int) -> Any:
            seen.append(indices.tolist())
            return take(indices, epoch)

        trainer._record_step = noted  # type: ignore[method-assign]
        parts.loader._read_portion = read  # type: ignore[method-assign]
        if saving is not None:
            notes += trainer.resume(None if store is None else store.loaded) or []
        done = trainer.train()
        if saving is not None:
            assert saving.finish() is None
        return Ended(weights_of(parts.adapter.model), done, steps, seen, notes)

    return run_threads(num_processes, body)


def expect_equal(found: list[Ended]) -> Weights:
    """All ranks hold the same bits, and were told the same."""
    assert len({hash_of(one.weights) for one in found}) == 1
    assert all(one.steps == found[0].steps for one in found)
    return found[0].weights


# ---- against NumPy -------------------------------------------------------------------------------------------------


class Reference:
    """Three workers with SGD on a linear model, in NumPy, written from the papers."""

    def __init__(self, num_workers: int, lr: float, weights: Vector) -> None:
        self.lr = lr
        self.w = [weights.copy() for _ in range(num_workers)]
        self.common = weights.copy()
        self.velocity = np.zeros_like(weights)
        self.mean_difference = np.zeros_like(weights)
        self.sent = self.w

    def learn(self, batch: list[int], together: bool = False) -> None:
        num = len(self.w)
        parts = [batch if together else batch[len(batch) * i // num : len(batch) * (i + 1) // num] for i in range(num)]
        for worker, own in enumerate(parts):
            x, y = np.c_[INPUTS[own], np.ones(len(own))], TARGETS[own, 0]
            self.w[worker] = self.w[worker] - self.lr * 2 * x.T @ (x @ self.w[worker] - y) / len(own)

    def average(self) -> None:
        self.w = [np.mean(self.w, axis=0) for _ in self.w]

    def send(self) -> None:
        self.mean_difference = np.mean([self.common - w for w in self.w], axis=0)
        self.sent = [w.copy() for w in self.w]

    def receive(self, lr: float, momentum: float) -> None:
        self.velocity = momentum * self.velocity + self.mean_difference
        self.common = self.common - lr * (self.mean_difference + momentum * self.velocity)
        self.w = [self.common + (now - then) for now, then in zip(self.w, self.sent, strict=True)]

    def slow_step(self, lr: float, momentum: float) -> None:
        mean = np.mean(self.w, axis=0)
        if self.lr:
            self.velocity = momentum * self.velocity + (self.common - mean) / self.lr
            mean = self.common - lr * self.lr * self.velocity
        self.common, self.w = mean, [mean.copy() for _ in self.w]


def first_weights(what: Task) -> Vector:
    with ONE_AT_A_TIME:
        return as_vector(weights_of(assemble(change(what, {}), "allreduce", single_process_communicator()).adapter.model))


def as_vector(weights: Weights) -> Vector:
    return np.concatenate([weights["weight"].numpy().ravel(), weights["bias"].numpy()])


def expect_reference(found: list[Ended], reference: Reference) -> None:
    np.testing.assert_allclose(as_vector(expect_equal(found)), reference.w[0], rtol=1e-12, atol=1e-14)


LONG: dict[str, Any] = {"epochs": 10, "lr": 0.02}
"""Four steps an epoch, the last one uneven; a period of 3 steps so gives 20 rounds."""


@pytest.mark.parametrize("switch_step", [0, 18])
def test_local_and_post_local_sgd_equal_numpy(switch_step: int, tmp_path: Path) -> None:
    what = task(**LONG)
    algorithm, options = ("post_local_sgd", {"period": 3, "switch_step": 18}) if switch_step else ("local_sgd", {"period": 3})
    found = train(what, 3, algorithm, options)
    reference = Reference(3, 0.02, first_weights(what))
    for step in range(40):
        reference.learn([index for one in found for index in one.seen[step]], together=step < switch_step)
        if step >= switch_step and ((since(step, switch_step) + 1) % 3 == 0 or step % 4 == 3):
            reference.average()
    expect_reference(found, reference)
    train(what, 3, algorithm, options, folder=tmp_path, max_steps=21)
    expect_reference(train(what, 3, algorithm, options, folder=tmp_path), reference)


def since(step: int, switch_step: int) -> int:
    """Steps since the epoch, or the local part of it, began."""
    return step - max(step - step % 4, switch_step)


@pytest.mark.parametrize("overlap", [0, 1, 2])
def test_diloco_equals_numpy(overlap: int, tmp_path: Path) -> None:
    what = task(**LONG)
    options = {"period": 3, "overlap": overlap, "outer_lr": 0.6, "outer_momentum": 0.8}
    found = train(what, 3, "diloco", options)
    reference = Reference(3, 0.02, first_weights(what))
    for step in range(40):
        place = step % 4
        reference.learn([index for one in found for index in one.seen[step]])
        if place == 2:
            reference.send()
        if (place - 2) == overlap or (place == 3 and overlap > 1):  # the end of an epoch waits for what is under way
            reference.receive(0.6, 0.8)
        if place == 3:
            reference.send()
            reference.receive(0.6, 0.8)
    expect_reference(found, reference)
    for stop in (3, 22, 23):  # while an exchange is under way, in a round, after an exchange was sent
        train(what, 3, "diloco", options, folder=tmp_path, max_steps=stop)
    expect_reference(train(what, 3, "diloco", options, folder=tmp_path), reference)


def falling(step: int) -> float:
    return 1.0 / (1.0 + step)


def at_rest_now_and_then(step: int) -> float:
    """0 in the last step of an epoch."""
    return float(step % 4 < 3)


@pytest.mark.parametrize("factor", [falling, at_rest_now_and_then])
def test_slowmo_equals_numpy(factor: Callable[[int], float], tmp_path: Path) -> None:
    """The learning rate of a round is that of its last step."""
    what = task(**LONG, schedule=factor)
    options = {"period": 3, "slow_lr": 0.8, "slow_momentum": 0.6}
    found = train(what, 3, "slowmo", options)
    reference = Reference(3, 0.02, first_weights(what))
    for step in range(40):
        reference.lr = 0.02 * factor(step)
        reference.learn([index for one in found for index in one.seen[step]])
        if step % 4 in (2, 3):
            reference.slow_step(0.8, 0.6)
    expect_reference(found, reference)
    for stop in (2, 21, 23):
        stopped = train(what, 3, "slowmo", options, folder=tmp_path, max_steps=stop)
        again = train(what, 3, "slowmo", options, folder=tmp_path, max_steps=stop)
        assert_same(expect_equal(again), expect_equal(stopped), rtol=0)  # the open round ends as it did, without a step before it
    expect_reference(train(what, 3, "slowmo", options, folder=tmp_path), reference)


# ---- special cases -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "more", "exact"),
    [
        ("local_sgd", {}, True),
        ("post_local_sgd", {}, True),
        ("diloco", {"outer_lr": 1.0, "outer_momentum": 0.0}, False),
        ("slowmo", {"slow_momentum": 0.0}, False),
    ],
)
def test_one_worker_is_plain_training(algorithm: str, more: dict[str, Any], exact: bool) -> None:
    """To the last bit, or to rounding; the contract of algorithms has the latter for all of them."""
    what = task(normed if exact else linear, optimizer="adam")
    (plain,) = train(what, 1, "allreduce")
    (found,) = train(what, 1, algorithm, LOCAL[algorithm] | more)
    if exact:
        assert hash_of(found.weights) == hash_of(plain.weights)
    assert_same(found.weights, plain.weights)
    assert found.progress.history[-1]["metrics"]["val_loss"] == pytest.approx(plain.progress.history[-1]["metrics"]["val_loss"])


def test_a_round_of_one_step_is_all_reduce() -> None:
    """For plain SGD and equal parts."""
    even = task(global_batch=22)
    assert_same(expect_equal(train(even, 2, "local_sgd", {"period": 1})), expect_equal(train(even, 2, "allreduce")))


@pytest.mark.parametrize("algorithm", [*LOCAL, "overlapped"])
def test_groups_are_workers_of_a_larger_part(algorithm: str) -> None:
    name, options = ("diloco", OVERLAPPED | {"wire": "full"}) if algorithm == "overlapped" else (algorithm, LOCAL[algorithm])
    what = task(optimizer="adam")
    grouped = train(what, 4, name, options, group=2)
    assert_same(expect_equal(grouped), expect_equal(train(what, 2, name, options)), rtol=1e-10)
    for epoch in range(3):
        steps = range(4 * epoch, 4 * epoch + 4)
        assert sorted(index for one in grouped for step in steps for index in one.seen[step]) == list(range(NUM_SAMPLES))
    told = train(what, 2, name, options)[0].steps
    assert [(step, num) for step, _, num in grouped[0].steps] == [(step, num) for step, _, num in told]
    assert [loss for _, loss, _ in grouped[0].steps] == pytest.approx([loss for _, loss, _ in told])


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(NUM_FEATURES, 3), nn.Tanh(), nn.Linear(3, 1)).double()
        self.generator = nn.Linear(NUM_FEATURES, NUM_FEATURES).double()


def adversarial_step(self: un.OwnStep, batch: Any) -> None:
    model: Any = self.model
    real, _ = batch
    fake = model.generator(real.flip(1))
    self.minimise(nn.functional.softplus(-model.critic(real)) + nn.functional.softplus(model.critic(fake.detach())), "critic")
    self.minimise(nn.functional.softplus(-model.critic(fake)), "generator")


def test_a_step_of_ones_own_with_several_optimisers() -> None:
    """The last batch has two samples, so that two of four processes have none."""
    what = Task(
        model=Adversaries,
        data=lambda: un.Splits(train=(INPUTS[:14], TARGETS[:14])),
        step=adversarial_step,
        optimizer={"critic": ("adam", {"lr": 0.02}), "generator": "adam"},
        lr=0.01,
        global_batch=4,
        epochs=2,
    )
    grouped = train(what, 4, "local_sgd", {"period": 3}, group=2)
    paired = train(what, 2, "local_sgd", {"period": 3})
    assert_same(expect_equal(grouped), expect_equal(paired), rtol=1e-10)
    metrics = [one[0].progress.history[-1]["metrics"] for one in (grouped, paired)]
    assert {"loss", "loss_critic", "loss_generator"} <= metrics[0].keys()
    assert metrics[0] == pytest.approx(metrics[1])


def test_one_group_of_all_is_all_reduce() -> None:
    what = task(normed, optimizer="adam")
    assert_same(expect_equal(train(what, 2, "local_sgd", {"period": 4}, group=2)), expect_equal(train(what, 2, "allreduce")))


def test_a_reset_forgets_the_momentum() -> None:
    what = task(optimizer="sgd", optimizer_options={"momentum": 0.9}, global_batch=22, lr=0.02)
    plain = task(optimizer="sgd", global_batch=22, lr=0.02)
    reset = expect_equal(train(what, 2, "local_sgd", {"period": 1, "momentum": "reset"}))
    assert_same(reset, expect_equal(train(plain, 2, "allreduce")))
    kept = expect_equal(train(what, 2, "local_sgd", {"period": 1}))
    assert not torch.allclose(kept["weight"], reset["weight"])


def test_statistics_become_the_mean_and_counters_stay_counts() -> None:
    found = expect_equal(train(task(normed), 3, "local_sgd", {"period": 3}))
    apart = expect_equal(train(task(normed), 3, "local_sgd", {"period": 4}))
    assert int(found["1.num_batches_tracked"]) == 12
    assert 0 < float((found["1.running_mean"] - apart["1.running_mean"]).abs().max()) < 0.5


def test_statistics_that_travel_while_a_worker_learns() -> None:
    """The mean of the changes that were sent, with what came later on top; what never changes keeps its bits."""
    before, at_start, now = np.array([1.0, 2.0, np.inf]), np.array([[4.0, 2.0, np.inf], [2.0, 2.0, np.inf]]), [5.0, -1.0]

    def body(comm: Communicator) -> tuple[Any, Any]:
        model = nn.BatchNorm1d(3).double()
        assert model.running_mean is not None
        model.running_mean.copy_(torch.from_numpy(before))
        adapter = TorchAdapter(model, LossBody(None), {"": trainable(model)}, comm.device, comm.empty)
        statistics = RunningStatistics(adapter, comm.size)
        model.running_mean.copy_(torch.from_numpy(at_start[comm.rank]))
        travelling = list(statistics.changes())
        model.running_mean[0] += now[comm.rank]
        comm.allreduce(travelling)
        statistics.on_reduced()
        statistics.apply()
        found = model.running_mean.numpy().copy()
        model.running_mean[0] = 7.0 + comm.rank
        statistics.synchronise(comm)
        return found, model.running_mean.numpy().copy()

    for rank, (found, settled) in enumerate(run_threads(2, body)):
        assert found.tolist() == [1 + (3 + 1) / 2 + now[rank], 2.0, np.inf]
        assert settled.tolist() == [7.5, 2.0, np.inf]


def test_bf16_and_overlap_keep_replicas_equal() -> None:
    what = task(normed, optimizer="adam", epochs=4)
    narrow = expect_equal(train(what, 3, "diloco", OVERLAPPED))
    full = expect_equal(train(what, 3, "diloco", OVERLAPPED | {"wire": "full"}))
    difference = float((narrow["0.weight"] - full["0.weight"]).abs().max())
    assert 0 < difference < 0.05


# ---- stop and go on ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [*LOCAL, "overlapped"])
def test_it_resumes_bit_for_bit_wherever_it_stops(algorithm: str, tmp_path: Path) -> None:
    """In the middle of a round, at its end, at the end of an epoch, while an exchange is under way; again and again."""
    name, options = ("diloco", OVERLAPPED | {"period": 3}) if algorithm == "overlapped" else (algorithm, LOCAL[algorithm])
    what = task(normed, optimizer="adam")
    undisturbed = train(what, 3, name, options)
    expected = hash_of(expect_equal(undisturbed))
    told: list[Any] = []
    for stop in (1, 3, 4, 6, None):
        lives = train(what, 3, name, options, folder=tmp_path, max_steps=stop)
        told += lives[0].steps
    assert hash_of(expect_equal(lives)) == expected
    assert told == undisturbed[0].steps
    assert lives[0].progress.history[-1]["metrics"] == undisturbed[0].progress.history[-1]["metrics"]
    assert not lives[0].notes


@pytest.mark.parametrize("algorithm", [*LOCAL, "overlapped"])
@pytest.mark.parametrize("now", [1, 3])
def test_other_workers_resume_from_the_mean(algorithm: str, now: int, tmp_path: Path) -> None:
    name, options = ("diloco", OVERLAPPED | {"period": 3}) if algorithm == "overlapped" else (algorithm, LOCAL[algorithm])
    what = task(normed, optimizer="adam")
    stopped = train(what, 2, name, options, folder=tmp_path, max_steps=6)
    lives = train(what, now, name, options, folder=tmp_path, max_steps=7)
    assert expect_equal(stopped).keys() == expect_equal(lives).keys()
    assert lives[0].notes == [
        "warning: the checkpoint has the weights and optimiser states of 2 workers; all workers now start from the mean of the "
        "weights and the optimiser state of the first"
    ]
    assert train(what, now, name, options, folder=tmp_path)[0].progress.reason == "finished"


@pytest.mark.parametrize(
    ("options", "stops_at"),
    [({"period": 3}, 7), ({"period": 3, "overlap": 2}, 8), ({"period": 2, "overlap": 1}, 7)],
    ids=["at the end of the round", "at the end of the epoch", "when the exchange has arrived"],
)
def test_a_stop_request_takes_effect_after_the_round(options: dict[str, Any], stops_at: int, tmp_path: Path) -> None:
    """On all ranks alike, and nothing is lost."""
    what = task(normed, optimizer="adam")
    undisturbed = train(what, 3, "diloco", options)
    first = train(what, 3, "diloco", options, folder=tmp_path, ask_at=4)
    assert {one.progress.reason for one in first} == {"interrupted"}
    assert {one.progress.step for one in first} == {stops_at}
    second = train(what, 3, "diloco", options, folder=tmp_path)
    assert hash_of(expect_equal(second)) == hash_of(expect_equal(undisturbed))
    assert first[0].steps + second[0].steps == undisturbed[0].steps


def test_groups_resume(tmp_path: Path) -> None:
    what = task(normed, optimizer="adam")
    expected = hash_of(expect_equal(train(what, 4, "diloco", {"period": 3}, group=2)))
    for stop in (2, 5, None):
        found = train(what, 4, "diloco", {"period": 3}, group=2, folder=tmp_path, max_steps=stop)
    assert hash_of(expect_equal(found)) == expected


def test_another_algorithm_resumes_from_the_mean(tmp_path: Path) -> None:
    """As with --accept-changes."""
    what = task(normed, optimizer="adam")
    train(what, 2, "diloco", {"period": 3}, folder=tmp_path, max_steps=6)
    train(what, 2, "allreduce", folder=tmp_path, max_steps=7)
    assert expect_equal(train(what, 2, "local_sgd", {"period": 3}, folder=tmp_path))


SAVED: dict[str, tuple[str, dict[str, Any]]] = {
    "an exchange under way": ("diloco", {"period": 3, "overlap": 2}),
    "a round of diloco": ("diloco", {"period": 4}),
    "a round of slowmo": ("slowmo", {"period": 4}),
    "a round of local_sgd": ("local_sgd", {"period": 4}),
}


@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize("now", ["local_sgd", "slowmo", "diloco", "post_local_sgd"])
def test_a_round_that_another_algorithm_began_ends_with_the_mean(saved: str, now: str, tmp_path: Path) -> None:
    """As with --accept-changes; also where a checkpoint of an earlier version has no settings of the exchange."""
    before, options = SAVED[saved]
    what = task(normed, optimizer="adam")
    train(what, 2, before, options, folder=tmp_path, max_steps=3)
    loaded = Checkpoints(tmp_path, 3).newest()
    assert loaded is not None
    (_, tensors), later = merge_workers(loaded.snapshot.state()), {"period": 4, "switch_step": 6}
    mine = later if now == "post_local_sgd" else {"period": 4}
    lives = train(what, 2, now, mine, folder=tmp_path, max_steps=3)
    if now != before:
        mean = {name: tensors[f"model.{name}"] for name in lives[0].weights if "num_batches" not in name}
        assert_same({name: one for name, one in expect_equal(lives).items() if name in mean}, mean)
    expect_equal(train(what, 2, now, mine, folder=tmp_path, max_steps=4))
    assert expect_equal(train(what, 2, now, mine, folder=tmp_path))


def test_a_later_switch_ends_the_local_part(tmp_path: Path) -> None:
    """As with --accept-changes: from then on every step is that of all-reduce, with equal weights and optimisers."""
    for optimizer in ("sgd", "adam"):
        what, folder = task(linear, optimizer=optimizer, global_batch=22), tmp_path / optimizer
        train(what, 2, "post_local_sgd", {"period": 4, "switch_step": 0}, folder=folder, max_steps=1)
        found = train(what, 2, "post_local_sgd", {"period": 4, "switch_step": 9}, folder=folder, max_steps=3)
        assert found[0].notes
        synchronous = expect_equal(train(what, 2, "allreduce", max_steps=3))
        if optimizer == "sgd":
            assert_same(expect_equal(found), synchronous)
        expect_equal(found)


# ---- what goes wrong -----------------------------------------------------------------------------------------------


def bad_data() -> un.Splits:
    inputs = INPUTS.copy()
    inputs[5] = 1e200  # finite, but its square is not
    return un.Splits(train=(inputs, TARGETS))


@pytest.mark.parametrize("algorithm", LOCAL)
def test_a_worker_leaves_out_an_update_that_is_not_finite(algorithm: str) -> None:
    what = Task(model=linear, data=bad_data, loss="mse", optimizer="sgd", lr=0.05, global_batch=2, epochs=2)
    options = LOCAL[algorithm] | {"period": 22}
    found = train(what, 2, algorithm, options, on_nan="skip")
    assert all(torch.isfinite(one).all() for one in expect_equal(found).values())
    assert found[0].progress.num_skipped == 2
    ended = train(what, 2, algorithm, options)
    assert {one.progress.reason for one in ended} == {"not finite"}
    assert {one.progress.step for one in ended} == {22}, "it is heard at the end of the round"
    assert "sample 5" in ended[0].progress.failure, "its data are kept until then"


def test_an_exception_on_one_rank_ends_all() -> None:
    drawn = {"n": 0}

    def fails() -> nn.Module:
        drawn["n"] += 1
        model = nn.Linear(NUM_FEATURES, 1).double()
        if drawn["n"] == 2:
            model.register_forward_pre_hook(_in_third_step)
        return model

    with pytest.raises(RuntimeError, match="out of luck"):
        train(task(fails), 2, "diloco", {"period": 5})


def _in_third_step(module: nn.Module, inputs: Any) -> None:
    calls = module.__dict__["calls"] = module.__dict__.get("calls", 0) + 1
    if module.training and calls > 3:
        raise RuntimeError("out of luck")


@pytest.mark.parametrize("num_workers", [1, 2, 4])
@pytest.mark.parametrize("algorithm", LOCAL)
def test_a_quadratic_converges(algorithm: str, num_workers: int) -> None:
    what = task(epochs=20, global_batch=11, lr=0.05)
    found = train(what, num_workers, algorithm, LOCAL[algorithm])
    expect_equal(found)
    x = np.c_[INPUTS, np.ones(NUM_SAMPLES)]
    least = np.mean((x @ np.linalg.lstsq(x, TARGETS[:, 0], rcond=None)[0] - TARGETS[:, 0]) ** 2)
    assert found[0].progress.history[-1]["metrics"]["loss"] < 1.15 * least


@pytest.mark.parametrize(
    ("algorithm", "options", "told"),
    [
        ("local_sgd", {"period": 0}, "--set algorithm.period must be a whole number of at least 1; received 0"),
        ("local_sgd", {"period": 2.5}, "period must be a whole number"),
        ("local_sgd", {"momentum": "average"}, "momentum must be one of keep, reset"),
        ("local_sgd", {"perod": 3}, "did you mean 'period'"),
        ("post_local_sgd", {}, "needs --set algorithm.switch_step=S, the step from which workers learn by themselves"),
        ("post_local_sgd", {"switch_step": -1}, "switch_step must be a whole number of at least 0"),
        ("diloco", {"period": 4, "overlap": 4}, "overlap 4 must be below the period of 4 steps"),
        ("diloco", {"overlap": True}, "overlap must be a whole number"),
        ("diloco", {"outer_lr": 0}, "outer_lr must be a finite number above 0"),
        ("diloco", {"outer_momentum": 1}, "outer_momentum must be a finite number of at least 0 and below 1"),
        ("diloco", {"wire": "fp8"}, "wire must be one of full, bf16"),
    ],
)
def test_bad_options_are_refused(algorithm: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        make_options(find_algorithm(algorithm), algorithm, options)


@pytest.mark.parametrize(
    ("algorithm", "settings", "group", "told"),
    [
        ("allreduce", {}, 1, "--group 1 has no effect with --algorithm allreduce"),
        ("local_sgd", {}, 2, r"3 processes cannot form workers of 2 \(--group\); start 2, or use a --group that divides 3"),
        ("local_sgd", {}, 4, "start 4, or"),
        ("local_sgd", {"shards": 3}, None, "cannot be cut into 3 shards"),
    ],
)
def test_groups_and_shards_that_do_not_fit(algorithm: str, settings: dict[str, Any], group: int | None, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        train(task(**settings), 3, algorithm, group=group)
