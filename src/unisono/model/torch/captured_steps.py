"""Training steps that are recorded once for each size of a batch and then repeated, as the host takes longer to start the kernels
of a small network than a GPU to compute them.

    one process        gather, changes, forward, backward, finite test, clipping, update: one recording
    several, or parts  one recording up to the gradient, for the first and for later micro-batches; then the reduction; then
                       another of the update

A recording moves on to the batch that usually follows. Before a repetition the host sets what differs, another batch, votes or a
learning rate, and it seeds the generator of the device, so that every number is that of a step that is not recorded. A step runs as
it is for the first times, in which libraries and compilers prepare themselves; a step that cannot be recorded always does, and
`reason` says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unisono.errors import UsageError
from unisono.launch.excepthook import user_code_line
from unisono.model.base import StreamKey
from unisono.model.tail import HEAD, SAMPLES, WEIGHT
from unisono.model.torch.adapter import TorchAdapter
from unisono.model.torch.host_state import HostState
from unisono.model.torch.one_vector import has_own_step
from unisono.model.torch.ordered_place import OrderedPlace, Position, position_of
from unisono.model.torch.recorder import Recorder
from unisono.model.torch.step_batches import ArraysPlace, num_samples_of, shape_of
from unisono.model.torch.step_memory import NO_VOTES, GroupSettings, StepMemory, Votes
from unisono.model.torch.stored_batch import StoredBatch

WARM_UPS = 2
"""Times that a step of a new size runs as it is."""
MOST_SIZES = 6
"""Sizes of batches for which steps are recorded; each keeps memory of its own."""
VARYING = ("lr",)
"""Settings of an optimiser that a recorded update reads each time it is repeated."""


class CapturedSteps:
    """The recorded steps of one replica. Local; a repetition does not wait for the device."""

    def __init__(self, adapter: TorchAdapter, recorder: Recorder) -> None:
        self._adapter = adapter
        self._recorder = recorder
        self.reason = ""
        """Why steps are not recorded any more; empty while they are."""
        self._recordings: dict[Hashable, _Recording] = {}
        self._num_warm_ups: Counter[Hashable] = Counter()
        self._sizes: set[Hashable] = set()
        self._updated_by: torch.optim.Optimizer | None = None
        """The optimiser that made the last update."""
        self._state: HostState | None = None
        """What recordings read of the host."""
        self._num_evaluations = adapter.num_evaluations
        self._weights: dict[Hashable, float | None] = {}
        """The weight of the batches of a step, where it is a plain number."""
        self._positions: dict[Hashable, list[Position]] = {}
        """Where the batches of the warm-ups stand in their order."""
        if reason := _reason_at_start(adapter):
            self._give_up(reason)
        self.updates = not self.reason and not adapter.waits_for_device and not has_own_step(_optimizer_of(adapter))
        """Whether updates can be recorded too."""

    def step(self, batch: Any, key: StreamKey, votes: Votes, settings: GroupSettings) -> bool:
        """A whole step of the only process: gradient and update. Returns whether its sums are among the late ones already."""
        if not self._can_update(settings):
            self.gradient(batch, key, votes, is_first=True)
            self._adapter.apply_on_device(settings)
            return False

        def as_it_is() -> None:
            self._gradient_as_it_is(batch, key, votes, is_first=True)
            self._adapter.apply_on_device(settings)

        def work(given: StepMemory) -> None:
            with self._adapter.parts[""].apart() if given.factor is not None else nullcontext():
                self._compute(given, is_first=True)
                self._update(settings, given)
            self._adapter.tail.late.keep()

        return self._run(("step", shape_of(batch)), as_it_is, work, batch, key, votes, settings)

    def gradient(self, batch: Any, key: StreamKey, votes: Votes, is_first: bool) -> None:
        """Adds the gradient of a micro-batch to the gradient, and its sums to the tail; the first begins both."""

        def work(given: StepMemory) -> None:
            self._compute(given, is_first)

        is_repeated = self._run(
            ("gradient", is_first, shape_of(batch)),
            lambda: self._gradient_as_it_is(batch, key, votes, is_first),
            work,
            batch,
            key,
            votes,
        )
        if is_repeated:
            self._adapter.parts[""].used.fill(1)

    def update(self, settings: GroupSettings) -> None:
        """The update from summed gradient and tail."""
        running = _optimizer_of(self._adapter)
        if self._updated_by not in (None, running):  # a parameter was left out by all others, and counts its own steps now
            self._recordings.pop(("update",), None)
            self.updates = False
        self._updated_by = running
        # A worker without samples used nothing; which parameters the others used it hears from them.
        if not self._can_update(settings) or not self._adapter.parts[""].used.all():
            self._adapter.apply_on_device(settings)
            return
        self._run(
            ("update",),
            lambda: self._adapter.apply_on_device(settings),
            lambda given: self._update(settings, given),
            settings=settings,
        )

    # ---- what is recorded ------------------------------------------------------------------------------------------

    def _compute(self, given: StepMemory, is_first: bool) -> None:
        adapter = self._adapter
        assert given.place is not None
        if is_first:
            adapter.keep_buffers()
            adapter.clear_gradients(given.head)
        adapter.compute(given.place.read(), counted_by_host=is_first)

    def _update(self, settings: GroupSettings, given: StepMemory) -> None:
        with _as_recordable(_optimizer_of(self._adapter)):
            rated = [{**group, "lr": given.rates[number]} for number, group in enumerate(settings)]
            self._adapter.apply_on_device(rated, factor=given.factor)

    def _gradient_as_it_is(self, batch: Any, key: StreamKey, votes: Votes, is_first: bool) -> None:
        adapter = self._adapter
        if is_first:
            adapter.keep_buffers()
            adapter.clear_gradients()
            adapter.tail.request(*votes)
        adapter.forward_backward(batch, key)

    # ---- recording and repeating -----------------------------------------------------------------------------------

    def _run(
        self,
        name: Hashable,
        as_it_is: Callable[[], None],
        work: Callable[[StepMemory], None],
        batch: Any = None,
        key: StreamKey | None = None,
        votes: Votes = NO_VOTES,
        settings: GroupSettings = (),
    ) -> bool:
        """Repeats the recording of this name; before there is one, runs the work as it is, and then records it. Returns whether it
        was a recording."""
        if self._num_evaluations != self._adapter.num_evaluations:
            self._check_after_evaluation()
        found = self._recordings.get(name)
        if found is None and not self.reason:
            if self._num_warm_ups[name] < WARM_UPS:
                self._num_warm_ups[name] += 1
                self._warm_up(as_it_is, key)
                weight = self._adapter.tail.known_weight
                if key is not None and weight != self._weights.setdefault(name, weight):
                    self._give_up("the host computes the weight of the loss, which differs between batches of one size")
                if isinstance(batch, StoredBatch):
                    self._positions.setdefault(name, []).append(position_of(batch.numbers))
                return False
            found = self._record(name, work, batch, key, settings)
        if found is None:
            as_it_is()
            return False
        if found.given.place is not None:
            found.given.place.move_to(batch)
            found.given.vote(votes)
        if settings:
            found.given.set_rates(settings)
        if batch is not None and settings:  # a whole step, which keeps its sums
            self._adapter.tail.late.find_place()
        if key is not None:
            self._adapter.seed(key)
        found.repeat()
        return True

    def _warm_up(self, as_it_is: Callable[[], None], key: StreamKey | None) -> None:
        if key is None:
            with self._recorder.warming_up():
                as_it_is()
            return
        self._adapter.seed(key)
        before = self._host_state()
        with self._recorder.warming_up():
            as_it_is()
        if change := before.change():
            self._give_up(f"the model keeps more than its tensors from step to step: {change}")
        elif not self._adapter.parts[""].used.all():
            names = self._adapter.parts[""].unused_names(self._adapter.parts[""].used)
            self._give_up(f"a batch did not use {names}, and whether one does is decided on the host")

    def _record(
        self,
        name: Hashable,
        work: Callable[[StepMemory], None],
        batch: Any,
        key: StreamKey | None,
        settings: GroupSettings,
    ) -> _Recording | None:
        """Local; waits for the device: records the work; None, and a `reason`, where that is not possible."""
        adapter = self._adapter
        if batch is not None:
            self._sizes.add(shape_of(batch))
            if len(self._sizes) > MOST_SIZES:
                self._give_up(f"batches have more than {MOST_SIZES} shapes")
                return None
        try:
            given = self._given(name, batch, settings)
            if key is not None:
                adapter.seed(key)
            if batch is not None and settings:
                adapter.tail.late.find_place()
            repeat = self._recorder.record(lambda: work(given))
        except UsageError:
            raise
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            torch.clear_autocast_cache()
            where = user_code_line(error.__traceback__, Path(torch.__file__).parent)
            self._give_up(f"{_first_line(error)}{where}")
            return None
        found = self._recordings[name] = _Recording(given, repeat)
        adapter.note_capture(True)
        self._state = self._state or self._host_state()
        return found

    def _host_state(self) -> HostState:
        on_host = self._adapter.device.type == "cpu"
        return HostState(self._adapter.model, getattr(self._adapter.body, "loss", None), ("torch",) if on_host else ())

    def _check_after_evaluation(self) -> None:
        """Local: gives up if user code has changed since what recordings read: repetitions do not see it."""
        self._num_evaluations = self._adapter.num_evaluations
        if self._state is not None and not self.reason and (change := self._state.change(with_generators=False)):
            self._give_up(f"an evaluation changes the model: {change}")

    def _give_up(self, reason: str) -> None:
        """Local: from now on every step runs as it is."""
        self.reason = reason
        self._recordings.clear()
        self._adapter.note_capture(False)
        self._adapter.notes.append(f"steps are not recorded as a CUDA graph, so each takes longer: {reason}")

    def _given(self, name: Hashable, batch: Any, settings: GroupSettings) -> StepMemory:
        """The memory that a recording of this name reads."""
        adapter, device, weight = self._adapter, self._adapter.device, self._weights.get(name)
        rates = torch.zeros(len(settings), device=device)
        if batch is None:
            return StepMemory(None, rates, torch.zeros(0, device=device), None)
        num_sums = HEAD + adapter.tail.metric_sums.numel()
        # Where the others hear of it, use flags are among it.
        head = torch.ones(num_sums if settings else adapter.tail.vector.numel(), dtype=torch.float64)
        head[:num_sums] = 0
        head[SAMPLES], head[WEIGHT] = num_samples_of(batch), weight or 0.0
        factor = (
            torch.tensor(1.0 / weight, device=device)
            if weight and settings and adapter.clip_norm is None and adapter.dtype is torch.float32
            else None
        )
        if isinstance(batch, StoredBatch):
            place: Any = OrderedPlace(batch, adapter.prepared, self._stride(name, len(batch)))
        else:
            place = ArraysPlace(batch, adapter.to_device_batch)
        return StepMemory(place, rates, head.to(device), factor)

    def _stride(self, name: Hashable, length: int) -> int:
        """Places in the order from one batch of a recording to the next, as far as the warm-ups show it."""
        found = self._positions.get(name, [])
        if len(found) < WARM_UPS or found[0].order is not found[1].order:
            return length
        return found[1].start - found[0].start

    def _can_update(self, settings: GroupSettings) -> bool:
        """Whether only learning rates differ from step to step; an update with other settings runs as it is, from then on."""
        self.updates = self.updates and all(len(group) == 1 and "lr" in group for group in settings)
        return self.updates and not self.reason


class _Recording(NamedTuple):
    """Work that can be repeated, and the memory that it reads."""

    given: StepMemory
    repeat: Callable[[], None]


@contextmanager
def _as_recordable(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """In this context an optimiser may be recorded; afterwards its groups have the plain values that a checkpoint holds."""
    groups = optimizer.param_groups
    before = [{name: group[name] for name in (*VARYING, "capturable") if name in group} for group in groups]
    for group in groups:
        if "capturable" in group:
            group["capturable"] = True
    try:
        yield
    finally:
        for group, values in zip(groups, before, strict=True):
            group.update(values)


def _optimizer_of(adapter: TorchAdapter) -> torch.optim.Optimizer:
    return adapter.parts[""].running


def _reason_at_start(adapter: TorchAdapter) -> str:
    """Why a training cannot be recorded, as far as its parts say it."""
    if adapter.own_step is not None:
        return "the task has a step of its own"
    if adapter.body.host_code:
        return adapter.body.host_code
    if len(adapter.parts[""].values) > 1:
        return "its parameters have several types"
    return ""


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
