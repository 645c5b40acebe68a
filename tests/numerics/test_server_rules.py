"""Each rule of a server against an independent NumPy reference: scripted rounds of three workers, uneven arrival, restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from unisono.algorithms.base import GroupSettings, StepInfo, find_algorithm
from unisono.algorithms.server.ledger import Ledger
from unisono.algorithms.server.protocol import MOST_UNITS, PUSH, STATE
from unisono.algorithms.server.server_algorithm import ServerAlgorithm, ServerModel
from unisono.algorithms.server.server_layout import ServerLayout
from unisono.algorithms.server.service import Service
from unisono.algorithms.server.worker import Work, Worker, WorkerCall
from unisono.comm.exchange.base import Reply, Request
from unisono.comm.single_process import single_process_communicator
from unisono.data.loader import Portion
from unisono.model.tail import StepStats

Vector = npt.NDArray[np.float64]
SIZE, NUM_WORKERS, LR, MOMENTUM = 7, 3, 0.05, 0.8
NUM_UNITS = 200
START = np.linspace(-1.0, 1.5, SIZE)


def gradient_at(x: Vector, unit: int) -> Vector:
    """Of a bumpy bowl that is another one for every batch."""
    random = np.random.default_rng(unit)
    return random.uniform(0.5, 2.0, SIZE) * x + 0.3 * np.sin(3 * x) + random.normal(size=SIZE)


class Bowl:
    """What a worker needs of a replica, with a gradient that is known."""

    num_tensors, num_sums = 1, 0

    def __init__(self) -> None:
        self.values = torch.full((SIZE,), 99.0, dtype=torch.float64)
        self.gradient = torch.zeros(SIZE, dtype=torch.float64)
        self.statistics = torch.full((2,), 99.0, dtype=torch.float64)
        self.uses = np.ones(1)
        self.velocity = torch.zeros(SIZE, dtype=torch.float64)

    def compute(self, portion: Portion, at: StepInfo) -> StepStats:
        unit = int(portion.indices[0])
        self.gradient.copy_(torch.from_numpy(gradient_at(self.values.numpy(), unit)))
        self.statistics.fill_(unit)
        return StepStats(at.step, 1.0, 2.0, 2, 0, 0, 0, np.zeros(0))

    def synchronise_statistics(self) -> None:
        """It is no group."""

    def optimise(self, settings: GroupSettings) -> None:
        self.velocity.mul_(MOMENTUM).add_(self.gradient)
        self.values.sub_(self.velocity, alpha=settings[0]["lr"])

    def state(self) -> dict[str, Any]:
        return {"values": self.values, "statistics": self.statistics, "velocity": self.velocity}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.values.copy_(state["values"])
        self.statistics.copy_(state["statistics"])
        self.velocity.copy_(state["velocity"])


class Momentum:
    """The server's optimiser, of torch."""

    def __init__(self, values: Tensor) -> None:
        self.parameter = torch.nn.Parameter(values)
        self.optimizer = torch.optim.SGD([self.parameter], lr=LR, momentum=MOMENTUM)

    def __call__(self, gradient: Tensor, uses: npt.NDArray[np.float64]) -> None:
        assert uses.tolist() in [[float(num)] for num in range(1, 9)]
        self.parameter.grad = gradient.clone()
        self.optimizer.step()


class Run:
    """A server and three workers in this process; the script says whose call comes next."""

    def __init__(self, rule: ServerAlgorithm, epoch_by_epoch: bool = False, most_units: int = MOST_UNITS) -> None:
        self.most_units = most_units
        values = torch.from_numpy(START.copy())
        self.optimiser = Momentum(values)
        ledger = Ledger(NUM_UNITS, 1, epoch_by_epoch)
        self.service = Service(
            rule,
            ServerModel(self.optimiser.parameter.data, self.optimiser),
            torch.zeros(2, dtype=torch.float64),
            ledger,
            lambda _: LR,
            0,
            lambda _, numel, dtype: torch.empty(numel, dtype=dtype),
        )
        self.rule = rule
        self.order: list[int] = []
        """Whose pushes came, in their order."""
        self.senders: list[int] = []
        """Whose pushes came with a vector."""
        self.hands: list[list[int]] = [[] for _ in range(NUM_WORKERS)]
        """The units that each worker has computed."""
        self.begin()

    def begin(self) -> None:
        self.bowls = [Bowl() for _ in range(NUM_WORKERS)]
        self.workers = [self._worker(number, bowl) for number, bowl in enumerate(self.bowls)]
        self.work: list[Work] = [worker.run() for worker in self.workers]
        self.said: dict[int, WorkerCall] = {number: next(work) for number, work in enumerate(self.work)}

    def _worker(self, number: int, bowl: Bowl) -> Worker:
        def read(unit: int) -> Portion:
            self.hands[number].append(unit)
            return Portion(np.array([unit]), ())

        out = torch.zeros(SIZE + 2, dtype=torch.float64)
        settings: Callable[[int], GroupSettings] = lambda _: [{"lr": LR}]  # noqa: E731
        return Worker(self.rule, bowl, read, settings, 0, 0, out, most_units=self.most_units)  # type: ignore[arg-type]

    def call(self, number: int) -> None:
        """The call that this worker has made reaches the server."""
        said = self.said.pop(number)
        if said.kind == PUSH:
            self.order.append(number)
            self.senders += [number] if said.vector is not None else []
        vector = None if said.vector is None else said.vector.clone()
        self.service.handle(Request(number, said.kind, np.asarray(said.tail, dtype=np.float64), vector))
        self.answer()

    def answer(self) -> None:
        for caller, kind, vector, tail in self.service.pop_answers():
            self.said[caller] = self.work[caller].send(Reply(kind, np.asarray(tail, dtype=np.float64), vector))

    def save_and_restart(self) -> None:
        """Every worker's state is gathered, all is thrown away, and a new run resumes."""
        self.service.begin_save()
        while not self.service.has_all_states:
            self.call(next(iter(self.said)))
        state = _copied(self.service.state())
        values, momentum = self.service.model.values.clone(), _copied(self.optimiser.optimizer.state_dict())
        statistics = self.service.statistics.clone()
        again = Run(self.rule, most_units=self.most_units)
        again.order, again.senders, again.hands = self.order, self.senders, self.hands
        old = self.service.ledger
        again.service.ledger = Ledger(old.units_per_epoch, old.num_epochs, old.epoch_by_epoch)
        again.service.model.values.copy_(values)
        again.service.statistics.copy_(statistics)
        again.optimiser.optimizer.load_state_dict(momentum)
        assert again.service.restore(state, range(NUM_WORKERS))
        vars(self).update(vars(again))
        for number in (2, 0, 1):
            self.call(number)  # HELLO
            self.call(number)  # READY
        assert not any(one.kind == STATE for one in self.said.values())


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: _copied(one) for name, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


def script() -> list[int]:
    """Who calls: twenty rounds in which each calls once on average, some of them seldom or several times in a row."""
    random = np.random.default_rng(7)
    return [0, 2, 1, 1, 1, 0, *random.choice(NUM_WORKERS, size=20 * NUM_WORKERS - 6, p=[0.5, 0.3, 0.2]).tolist()]


def units() -> Iterator[int]:
    return iter(range(NUM_UNITS))


def take(available: Iterator[int], num: int) -> list[int]:
    return [next(available) for _ in range(num)]


def rule_of(name: str, **options: Any) -> ServerAlgorithm:
    kind: Any = find_algorithm(name)
    found: ServerAlgorithm = kind(
        single_process_communicator(),
        Mock(),
        kind.Options(**options),
        world=single_process_communicator(),
        layout=ServerLayout(1 + NUM_WORKERS),
        make_evaluator=Mock(),
    )
    return found


def play(rule: ServerAlgorithm, restart_after: int | None = None) -> Run:
    run = Run(rule)
    for number in range(NUM_WORKERS):
        run.call(number)  # HELLO
    for place, number in enumerate(script()):
        if place == restart_after:
            run.save_and_restart()
        run.call(number)
    return run


def gem_reference(order: list[int], kappa: float, clip: float | None) -> Vector:
    available, theta = units(), START.copy()
    stale, m = [theta.copy() for _ in range(3)], [np.zeros(SIZE) for _ in range(3)]
    hand = [take(available, 1)[0] for _ in range(3)]
    for w in order:
        u = -LR * gradient_at(stale[w], hand[w])
        m[w] = 0.9 * m[w] + u
        pi = (kappa * np.abs(m[w]) - np.abs(theta - stale[w])) / (np.abs(u) + 1e-16)
        if clip is not None:
            pi = np.clip(pi, 0, clip)
        theta = theta + pi * u
        stale[w] = theta.copy()
        hand[w] = next(available)
    return theta


def until_call(num_steps: int, push: int, pull: int) -> int:
    return next(k for k in range(1, 100) if (num_steps + k) % push == 0 or (num_steps + k) % pull == 0)


def downpour_reference(order: list[int], push: int, pull: int, damping: bool) -> Vector:
    """Each worker has a momentum of its own."""
    available, centre, version = units(), START.copy(), 0
    x, accrued, velocity = [centre.copy() for _ in range(3)], *([np.zeros(SIZE) for _ in range(3)] for _ in range(2))
    done, seen = [0, 0, 0], [0, 0, 0]

    hand = [take(available, until_call(0, push, pull)) for _ in range(3)]
    for w in order:
        for unit in hand[w]:
            velocity[w] = MOMENTUM * velocity[w] + gradient_at(x[w], unit)
            x[w] = x[w] - LR * velocity[w]
            accrued[w] = accrued[w] - LR * velocity[w]
            done[w] += 1
        if done[w] % push == 0:
            centre = centre + accrued[w] / ((version - seen[w] + 1) if damping else 1)
            version += 1
            accrued[w] = np.zeros(SIZE)
        if done[w] % pull == 0:
            x[w], seen[w] = centre.copy(), version
        hand[w] = take(available, until_call(done[w], push, pull))
    return centre


def paper_reference(order: list[int], push: int, pull: int, damping: bool) -> Vector:
    """One momentum, at the server."""
    available, centre, velocity, version = units(), START.copy(), np.zeros(SIZE), 0
    x, accrued = [centre.copy() for _ in range(3)], [np.zeros(SIZE) for _ in range(3)]
    done, seen = [0, 0, 0], [0, 0, 0]

    hand = [take(available, until_call(0, push, pull)) for _ in range(3)]
    first = True
    for w in order:
        for unit in hand[w]:
            g = gradient_at(x[w], unit)
            accrued[w] = accrued[w] + g
            if pull > 1:
                x[w] = x[w] - LR * g
            done[w] += 1
        if done[w] % push == 0:
            g = accrued[w] / max(1, version - seen[w]) if damping else accrued[w]
            velocity = g if first else MOMENTUM * velocity + g
            first = False
            centre = centre - LR * velocity
            version += 1
            accrued[w] = np.zeros(SIZE)
        if done[w] % pull == 0:
            x[w], seen[w] = centre.copy(), version
        hand[w] = take(available, until_call(done[w], push, pull))
    return centre


def easgd_reference(order: list[int], period: int, alpha: float, mu: float) -> Vector:
    available, centre = units(), START.copy()
    x, v, pull = ([START.copy() if k == 0 else np.zeros(SIZE) for _ in range(3)] for k in range(3))
    hand = [take(available, period) for _ in range(3)]
    for w in order:
        for unit in hand[w]:
            if mu:
                v[w] = mu * v[w] - LR * gradient_at(x[w] + mu * v[w], unit)
                x[w] = x[w] + v[w] - pull[w]
            else:
                v[w] = MOMENTUM * v[w] + gradient_at(x[w], unit)
                x[w] = x[w] - pull[w] - LR * v[w]
            pull[w] = np.zeros(SIZE)
        pull[w] = alpha * (x[w] - centre)
        centre = centre + pull[w]
        hand[w] = take(available, period)
    return centre


PAPER = {"optimizer_on": "server", "damping": "off"}
CASES: Mapping[str, tuple[tuple[str, dict[str, Any]], Callable[[list[int]], Vector]]] = {
    "gem": (("gem", {"clip": None}), lambda order: gem_reference(order, 1.0, None)),
    "gem of high energy, clipped": (("gem", {"kappa": 2.0, "clip": 5.0}), lambda order: gem_reference(order, 2.0, 5.0)),
    "downpour": (("downpour", {}), lambda order: downpour_reference(order, 1, 1, True)),
    "downpour, push 2, pull 3": (
        ("downpour", {"push_every": 2, "pull_every": 3}),
        lambda order: downpour_reference(order, 2, 3, True),
    ),
    "downpour, not damped": (("downpour", {"damping": "off"}), lambda order: downpour_reference(order, 1, 1, False)),
    "downpour of the paper": (("downpour", PAPER), lambda order: paper_reference(order, 1, 1, False)),
    "downpour of the paper, push 2, pull 3": (
        ("downpour", {**PAPER, "push_every": 2, "pull_every": 3}),
        lambda order: paper_reference(order, 2, 3, False),
    ),
    "downpour of the paper, damped": (
        ("downpour", {**PAPER, "damping": "staleness"}),
        lambda order: paper_reference(order, 1, 1, True),
    ),
    "easgd": (("easgd", {"period": 3}), lambda order: easgd_reference(order, 3, 0.9 / 3, 0.0)),
    "easgd by rho": (("easgd", {"period": 1, "rho": 2.0}), lambda order: easgd_reference(order, 1, LR * 2.0, 0.0)),
    "eamsgd": (("easgd", {"period": 2, "momentum": 0.7}), lambda order: easgd_reference(order, 2, 0.9 / 3, 0.7)),
}


@pytest.mark.parametrize("restart_after", [None, 0, 17, 30])
@pytest.mark.parametrize("case", CASES)
def test_asynchronous_rules_equal_their_references(case: str, restart_after: int | None) -> None:
    (name, options), reference = CASES[case]
    run = play(rule_of(name, **options), restart_after)
    found = run.service.model.values.numpy()
    np.testing.assert_allclose(found, reference(run.order), rtol=0, atol=1e-12)
    assert len(run.order) == len(script()) + (0 if restart_after is None else NUM_WORKERS)
    assert np.abs(found - START).max() > 0.1, "it moves"


def rounds(rule: ServerAlgorithm, orders: Sequence[tuple[int, ...]]) -> Run:
    run = Run(rule, epoch_by_epoch=True)
    for number in range(NUM_WORKERS):
        run.call(number)
    for order in orders:
        for number in order:
            run.call(number)
    return run


ORDERS = [(0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1)] * 5


def test_the_synchronous_server_averages_all() -> None:
    run = rounds(rule_of("parameter_server"), ORDERS)
    available, centre, velocity = units(), START.copy(), None
    for _ in ORDERS:
        g = np.mean([gradient_at(centre, next(available)) for _ in range(3)], axis=0)
        velocity = g if velocity is None else MOMENTUM * velocity + g
        centre = centre - LR * velocity
    np.testing.assert_allclose(run.service.model.values.numpy(), centre, rtol=0, atol=1e-12)


def test_synchronous_easgd_moves_the_server_weights_by_the_sum_of_differences() -> None:
    run = rounds(rule_of("easgd", period=1, synchronous=True), ORDERS)
    available, centre, alpha = units(), START.copy(), 0.9 / 3
    x, pull, v = [START.copy() for _ in range(3)], *([np.zeros(SIZE) for _ in range(3)] for _ in range(2))
    for order in ORDERS:
        del order  # who comes first does not matter: batches are dealt out in the order of workers
        for w in range(3):
            v[w] = MOMENTUM * v[w] + gradient_at(x[w], next(available))
            x[w] = x[w] - pull[w] - LR * v[w]
        pull = [alpha * (x[w] - centre) for w in range(3)]
        centre = centre + sum(pull)
    np.testing.assert_allclose(run.service.model.values.numpy(), centre, rtol=0, atol=1e-12)


def test_statistics_are_averaged_by_share_and_never_treated_as_gradients() -> None:
    run = play(rule_of("gem"))
    available, centre = units(), np.zeros(2)
    hand = [next(available) for _ in range(3)]
    for w in run.order:
        centre = centre + (hand[w] - centre) / 3
        hand[w] = next(available)
    np.testing.assert_allclose(run.service.statistics.numpy(), centre, rtol=0, atol=1e-12)


def test_a_round_waits_for_workers_that_have_not_come_yet() -> None:
    run = Run(rule_of("parameter_server"), epoch_by_epoch=True)
    run.service.certain = NUM_WORKERS
    run.call(1)  # HELLO
    run.call(1)
    assert run.service.step == 0 and not run.service.can_save
    run.call(0)
    run.call(0)
    run.service.ledger.num_epochs = 0  # there is nothing left for the last one
    run.call(2)
    assert run.service.step == 2, "its coming completes the round"


def test_the_service_is_over_only_when_all_workers_know() -> None:
    run = Run(rule_of("gem"))
    run.service.certain = NUM_WORKERS
    run.call(0)
    run.service.end()
    with pytest.raises(StopIteration):
        run.call(0)
    assert not run.service.is_over
    for number in (1, 2):
        with pytest.raises(StopIteration):
            run.call(number)  # HELLO
    assert run.service.is_over


def test_a_waiting_worker_gets_the_server_weights_of_when_work_arrives() -> None:
    """GEM measures what the others did since; a worker that had nothing to do gets a newer centre than that of its last call."""
    run = Run(rule_of("gem"))
    run.service.ledger = Ledger(4, 1)
    for number in (0, 1, 2, 0, 1, 2):
        run.call(number)
    workers, centre = run.service.workers, run.service.model.values
    assert sorted(run.said) == [0], "the others have nothing to do"
    assert not torch.equal(workers[1].state["taken"], centre)
    run.service.lose(0)
    run.answer()
    assert torch.equal(workers[1].state["taken"], centre) and workers[1].version == run.service.version


@pytest.mark.parametrize("form", [{}, PAPER], ids=["updates", "gradients"])
def test_what_was_sent_early_is_not_sent_again_after_resuming(form: Mapping[str, str]) -> None:
    """A run is over in the middle of a push period, and is resumed with more epochs."""
    run = Run(rule_of("downpour", push_every=3, pull_every=3, **form))
    run.service.ledger = Ledger(5, 1)
    for number in (0, 1, 2, 0, 1):
        run.call(number)
    assert run.service.ledger.is_over
    accrued = run.workers[1]._state.state["accrued"]
    assert run.workers[1].num_steps == 2 and bool(accrued.any()), "sent, and not answered yet"
    run.service.begin_save()
    run.answer()
    while not run.service.has_all_states:
        run.call(next(number for number, said in run.said.items() if said.kind == STATE))
    state = _copied(run.service.state())
    again = Run(rule_of("downpour", push_every=3, pull_every=3, **form))
    again.service.ledger = Ledger(5, 2)
    assert again.service.restore(state, range(NUM_WORKERS))
    for number in (2, 1, 0, 2, 1):
        again.call(number)  # HELLO, then READY of two: nothing is dealt before all are here
    assert not again.said.keys() & {1, 2}
    again.call(0)
    hands = {number: again.service.ledger.leases[number].units for number in again.service.ledger.leases}
    assert hands == {0: (5, 6, 7), 1: (8,), 2: (9,)}
    after, gathered = again.bowls[1].values.numpy(), again.workers[1]._state.state["accrued"].numpy()
    expected = gradient_at(after + LR * gathered, 8) if form else -LR * again.bowls[1].velocity.numpy()
    np.testing.assert_allclose(gathered, expected, rtol=0, atol=1e-12)


LAST_WORK: Mapping[str, tuple[tuple[str, dict[str, Any]], bool]] = {
    "easgd": (("easgd", {"period": 10}), False),
    "eamsgd": (("easgd", {"period": 10, "momentum": 0.7}), False),
    "synchronous easgd": (("easgd", {"period": 10, "synchronous": True}), True),
    "downpour": (("downpour", {"push_every": 10, "pull_every": 10}), False),
    "downpour of the paper": (("downpour", {"push_every": 10, "pull_every": 10, **PAPER}), False),
}


def last_work_reference(case: str, hands: Sequence[Sequence[int]], senders: Sequence[int]) -> Vector:
    """Three workers that train by themselves, and call with a vector only when all is done, one after the other."""
    (name, options), _ = LAST_WORK[case]
    mu, alpha = options.get("momentum", 0.0), 0.9 / 3
    x, v, summed = ([START.copy() if k == 0 else np.zeros(SIZE) for _ in range(3)] for k in range(3))
    for w, hand in enumerate(hands):
        for unit in hand:
            g = gradient_at(x[w] + mu * v[w], unit)
            summed[w] = summed[w] + g
            if mu:
                v[w] = mu * v[w] - LR * g
                x[w] = x[w] + v[w]
            elif "optimizer_on" in options:
                x[w] = x[w] - LR * g
            else:
                v[w] = MOMENTUM * v[w] + g
                x[w] = x[w] - LR * v[w]
    centre, velocity = START.copy(), np.zeros(SIZE)
    for place, w in enumerate(senders):
        if case == "synchronous easgd":
            centre = centre + alpha * (x[w] - START)
        elif name == "easgd":
            centre = centre + alpha * (x[w] - centre)
        elif "optimizer_on" in options:
            velocity = MOMENTUM * velocity + summed[w]
            centre = centre - LR * velocity
        else:
            centre = centre + (x[w] - START) / (place + 1)  # as many updates came before its own
    return centre


@pytest.mark.parametrize("restart_after", [None, 5, 13])
@pytest.mark.parametrize("case", LAST_WORK)
def test_work_that_was_not_sent_comes_at_the_end(case: str, restart_after: int | None) -> None:
    """A lease is shorter than the period, and the training than one period: only a call at the end brings the work of all."""
    (name, options), in_rounds = LAST_WORK[case]
    run = Run(rule_of(name, **options), in_rounds, most_units=2)
    run.service.ledger = Ledger(24, 1, in_rounds)
    for number in range(NUM_WORKERS):
        run.call(number)  # HELLO
    place = 0
    while run.said:
        if place == restart_after:
            run.save_and_restart()
        if place % NUM_WORKERS in run.said:
            run.call(place % NUM_WORKERS)
        place += 1
    assert sorted(run.senders) == [0, 1, 2] and sorted(unit for hand in run.hands for unit in hand) == list(range(24))
    expected = last_work_reference(case, run.hands, run.senders)
    np.testing.assert_allclose(run.service.model.values.numpy(), expected, rtol=0, atol=1e-12)
    assert run.service.ledger.is_over and run.service.step == 24, "and nobody is asked twice"
