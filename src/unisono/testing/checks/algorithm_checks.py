"""Checks that every algorithm must pass, with each of its examples. A check is collective over all ranks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import monotonic

import torch
from torch import Tensor, nn

from unisono.algorithms.base import LockStepAlgorithm, ModelSize
from unisono.comm.base import Communicator
from unisono.errors import UnisonoError
from unisono.task.train_config import TrainConfig
from unisono.testing.checks.algorithm_trainings import (
    BATCH,
    Case,
    NotApplicable,
    linear_model,
    make_task,
    model_with_norm,
    only_training_data,
    plain_training,
    samples,
    train,
    wide_model,
)
from unisono.testing.checks.expected import expect
from unisono.testing.counting import Counting
from unisono.training.prepare import prepare
from unisono.training.training_parts import EarlierAttempt

STOPS_AT = 6
"""Steps: within an epoch, and within rounds of 4."""
LUCKY_CALLS = 6
"""Forward passes of a model that then raises."""
ENDS_S = 15.0
"""A training of a few steps that one rank ends by an exception is over on all ranks within so long."""
LEARNED = 0.01
"""Largest share of the first loss that may be left when a quadratic has converged."""
FEW_STEPS, MANY_STEPS = 24, 48
"""Whole rounds of 1, 2, 3 and 4 steps; what begins and ends a training cancels in their difference."""
TRAFFIC_TOLERANCE = 0.06


def check_one_worker_is_plain_training(comm: Communicator, case: Case, folder: Path) -> None:
    """One worker gives the weights of PyTorch's own loop, up to rounding, if the algorithm says so (`equals_plain_training`)."""
    if comm.size > 1:
        raise NotApplicable("it is for one worker only")
    if not case.kind.equals_plain_training(case.setup(1).options):
        raise NotApplicable("the algorithm says that one worker differs from plain training")
    found = train(comm, case, folder / "run").model.state_dict()
    for name, value in plain_training(case).items():
        difference = float((found[name] - value).abs().max())
        expect(
            difference < 1e-9,
            f"{name} differs by {difference:.2g} from plain training; correct the rule, or state in equals_plain_training "
            "the options with which one worker differs",
        )


def check_replicas_are_equal_after_start(comm: Communicator, case: Case, folder: Path) -> None:
    """After `start` weights, running statistics and counters are equal, though every rank began with its own."""
    config = TrainConfig("", case.changes, case.name, out=str(folder / "run"), device="cpu", quiet=True)
    parts = prepare(config, comm, None, make_task(model_with_norm), EarlierAttempt()).parts
    for vector in parts.adapter.shared_state():
        vector.add_(comm.rank)
    parts.algorithm.start()
    own = torch.cat([vector.detach().double().reshape(-1) for vector in parts.adapter.shared_state()])
    everybody = torch.empty(comm.size * own.numel(), dtype=own.dtype)
    comm.allgather(everybody, own)
    different = [rank for rank, other in enumerate(everybody.view(comm.size, -1)) if not torch.equal(other, everybody[: len(own)])]
    if isinstance(parts.algorithm, LockStepAlgorithm):
        parts.algorithm.finish()
    expect(not different, f"the replicas of ranks {different} differ from that of rank 0 after start")


def check_resuming_equals_going_through(comm: Communicator, case: Case, folder: Path) -> None:
    """Stopped in the middle of an epoch and resumed: the same bits as without a stop; where chance decides the order of calls, the
    same bits as that order repeated without a stop."""
    task = make_task(model_with_norm)
    cut = train(comm, case, folder / "cut", task, max_steps=STOPS_AT)
    expect(
        cut.summary["reason"] == "interrupted", f"it ended as {cut.summary['reason']!r} instead of stopping after {STOPS_AT} steps"
    )
    resumed = train(comm, case, folder / "cut", task)
    is_by_chance = case.kind.has_server and case.setup(comm.size).roles.num_workers > 1
    through = train(comm, case, folder / "through", task, replay=folder / "cut" if is_by_chance else None)
    place = "`state` of a worker" if case.kind.has_server else "`state()` (with rounds: in `kept`)"
    remedy = f"put everything that the rule keeps between steps into {place}"
    expect(
        (resumed.summary["steps"], resumed.losses) == (through.summary["steps"], through.losses),
        f"losses by epoch are {resumed.losses} with a stop and {through.losses} without; {remedy}",
    )
    expect(resumed.weights_sha256 == through.weights_sha256, f"the final weights differ from those without a stop; {remedy}")
    expect(bool(resumed.summary["replicas_equal"]), "the replicas differ at the end")


def check_an_exception_on_one_rank_ends_all(comm: Communicator, case: Case, folder: Path) -> None:
    """An exception on one rank makes every rank raise soon; none ends as if nothing had happened. Spends the communicator."""
    if comm.size == 1:
        raise NotApplicable("there are no other ranks")
    train(comm, case, folder / "first", max_steps=1)  # so that loading packages does not count
    began, culprit = monotonic(), comm.size - 1
    try:
        train(comm, case, folder / "run", make_task(OutOfLuck if comm.rank == culprit else linear_model))
    except RuntimeError as error:
        expect(comm.rank == culprit and str(error) == OutOfLuck.WORDS, f"rank {comm.rank} raised {error!r}")
    except UnisonoError as error:
        expect(comm.rank != culprit, f"the rank that failed raised {error!r} instead of its own exception")
    else:
        raise AssertionError(f"rank {comm.rank} ended as usual, though rank {culprit} has failed")
    finally:
        comm.abort(OutOfLuck.WORDS)
    expect(monotonic() - began < ENDS_S, f"rank {comm.rank} ended only after {monotonic() - began:.1f} s")


class OutOfLuck(nn.Module):
    """A model that raises after some forward passes."""

    WORDS = "out of luck"

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear_model()
        self.num_calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Computes the inner model; raises once it was called more than `LUCKY_CALLS` times in training."""
        self.num_calls += self.training
        if self.training and self.num_calls > LUCKY_CALLS:
            raise RuntimeError(self.WORDS)
        found: Tensor = self.inner(inputs)
        return found


def check_nothing_is_left_in_flight(comm: Communicator, case: Case, folder: Path) -> None:
    """At the end every message was received, every started operation awaited, every group closed."""
    counting = Counting(comm)
    train(counting, case, folder / "run")
    tally = counting.tally
    everybody = comm.allgather_object([len(tally.sends), tally.num_received, tally.open_operations()])
    left = [f"rank {rank}: {', '.join(words)}" for rank, (_, _, words) in enumerate(everybody) if words]
    num_lost = sum(sent - received for sent, received, _ in everybody)
    expect(not left, f"left behind: {'; '.join(left)}")
    expect(not num_lost, f"{num_lost} messages were sent and never received")


def check_a_quadratic_converges(comm: Communicator, case: Case, folder: Path) -> None:
    """Linear regression for 30 epochs: the loss falls below the share `LEARNED` of the first one, and replicas end equal."""
    (inputs, targets), before = samples(), linear_model()
    found = train(comm, case, folder / "run", make_task(epochs=30))
    with torch.no_grad():
        first, last = (
            float(nn.functional.mse_loss(model(torch.from_numpy(inputs)), torch.from_numpy(targets)))
            for model in (before, found.model)
        )
    expect(last < LEARNED * first, f"the loss went from {first:.3g} to {last:.3g}, not below {LEARNED * first:.3g}")
    expect(bool(found.summary["replicas_equal"]), "the replicas differ at the end")


def check_it_sends_as_many_bytes_as_it_states(comm: Communicator, case: Case, folder: Path) -> None:
    """The bytes that are sent are those of `traffic`, within a few percent for what travels beside the weights."""
    roles = case.setup(comm.size).roles
    if comm.size == 1:
        raise NotApplicable("nothing is sent")
    if case.kind.has_server and roles.num_workers > 1:
        raise NotApplicable("the number of steps of each worker is random")
    sent = []
    for steps in (FEW_STEPS, MANY_STEPS):
        counting = Counting(comm)
        task = make_task(wide_model, partial(only_training_data, steps * BATCH), lr=1e-6, epochs=1)
        train(counting, case, folder / f"run-{steps}", task)
        sent.append(sum(comm.allgather_object(counting.tally.num_bytes)))
    found = (sent[1] - sent[0]) / (MANY_STEPS - FEW_STEPS)
    numel = sum(parameter.numel() for parameter in wide_model().parameters())
    stated = case.kind.traffic(case.setup(comm.size).options, ModelSize(numel, torch.float64.itemsize))
    expected = 2 * (comm.size - 1) * stated.summed + stated.pushed + stated.pulled
    expect(
        abs(found - expected) <= TRAFFIC_TOLERANCE * max(expected, 1.0),
        f"all ranks together sent {found:,.0f} bytes in a step, but {stated} means {expected:,.0f}; correct `traffic`",
    )
