"""Training steps that are recorded once for each size of a batch and then repeated, as the host takes longer to start the kernels
of a small network than a GPU to compute them.

    one process        gather, changes, forward, backward, finite test, clipping, update: one recording
    several, or parts  one recording up to the gradient, for the first and for later micro-batches; then the reduction; then
                       another of the update

Before a repetition the host writes what differs: sample numbers, votes and learning rates, and it seeds the generator of the
device, so that every number is that of a step that is not recorded. A step runs as it is for the first times, in which libraries
and compilers prepare themselves; a step that cannot be recorded always does, and `reason` says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.errors import UsageError
from unisono.launch.excepthook import user_code_line
from unisono.model.base import StreamKey
from unisono.model.tail import HEAD, SAMPLES, SAVE, STOP, WEIGHT
from unisono.model.torch.adapter import TorchAdapter
from unisono.model.torch.host_state import HostState
from unisono.model.torch.one_vector import has_own_step
from unisono.model.torch.recorder import Recorder
from unisono.model.torch.step_batches import StepBatch, num_samples_of, place_of, shape_of
from unisono.model.torch.step_inputs import StepInputs

WARM_UPS = 2
"""Times that a step of a new size runs as it is."""
MOST_SIZES = 6
"""Sizes of batches for which steps are recorded; each keeps memory of its own."""
VARYING = ("lr",)
"""Settings of an optimiser that a recorded update reads anew each time."""

GroupSettings = Sequence[Mapping[str, Any]]


Votes = tuple[bool, bool]
"""Whether this worker requests a stop, and a checkpoint, with a step."""
NO_VOTES = (False, False)


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
        self._weights: dict[Hashable, float | None] = {}
        """The weight of the batches of a step, where it is a plain number."""
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

        def work(place: StepBatch, inputs: Mapping[str, Tensor]) -> None:
            factor = inputs["factor"][0] if "factor" in inputs else None
            with self._adapter.parts[""].apart() if factor is not None else nullcontext():
                self._compute(place, inputs, is_first=True)
                self._update(settings, inputs, factor)
            self._adapter.tail.late.keep(inputs["row"])

        return self._run(("step", shape_of(batch)), as_it_is, work, batch, key, votes, settings)

    def gradient(self, batch: Any, key: StreamKey, votes: Votes, is_first: bool) -> None:
        """Adds the gradient of a micro-batch to the gradient, and its sums to the tail; the first begins both."""

        def work(place: StepBatch, inputs: Mapping[str, Tensor]) -> None:
            self._compute(place, inputs, is_first)

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
        # A worker without samples used nothing; which parameters the others used it hears from them.
        if not self._can_update(settings) or not self._adapter.parts[""].used.all():
            self._adapter.apply_on_device(settings)
            return
        self._run(
            ("update",),
            lambda: self._adapter.apply_on_device(settings),
            lambda _, inputs: self._update(settings, inputs),
            settings=settings,
        )

    # ---- what is recorded ------------------------------------------------------------------------------------------

    def _compute(self, place: StepBatch, inputs: Mapping[str, Tensor], is_first: bool) -> None:
        adapter = self._adapter
        if is_first:
            adapter.keep_buffers()
            adapter.clear_gradients(inputs["head"])
        adapter.compute(place.read(inputs), counted_by_host=is_first)

    def _update(self, settings: GroupSettings, inputs: Mapping[str, Tensor], factor: Tensor | None = None) -> None:
        rates = inputs["lr"]
        with _as_recordable(_optimizer_of(self._adapter)):
            self._adapter.apply_on_device([{**group, "lr": rates[number]} for number, group in enumerate(settings)], factor=factor)

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
        work: Callable[[Any, Mapping[str, Tensor]], None],
        batch: Any = None,
        key: StreamKey | None = None,
        votes: Votes = NO_VOTES,
        settings: GroupSettings = (),
    ) -> bool:
        """Repeats the recording of this name; before there is one, runs the work as it is, and then records it. Returns whether it
        was a recording."""
        found = self._recordings.get(name)
        if found is None and not self.reason:
            if self._num_warm_ups[name] < WARM_UPS:
                self._num_warm_ups[name] += 1
                self._warm_up(as_it_is, key)
                weight = self._adapter.tail.known_weight
                if key is not None and weight != self._weights.setdefault(name, weight):
                    self._give_up("the host computes the weight of the loss, which differs between batches of one size")
                return False
            found = self._record(name, work, batch, key, settings)
        if found is None:
            as_it_is()
            return False
        if found.has_inputs:
            arrays = found.inputs.begin()
            if found.place is not None:
                found.place.fill(arrays, batch)
                head = arrays["head"]
                head[STOP], head[SAVE] = votes
            if settings:
                rates = arrays["lr"]
                for number, group in enumerate(settings):
                    rates[number] = group["lr"]
                arrays["row"][0] = self._adapter.tail.late.place
            found.inputs.send()
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
        on_host = self._adapter.device.type == "cpu"
        before = HostState(self._adapter.model, getattr(self._adapter.body, "loss", None), ("torch",) if on_host else ())
        with self._recorder.warming_up():
            as_it_is()
        if change := before.change():
            self._give_up(f"the model keeps more than its tensors from step to step: {change}")
        elif not self._adapter.parts[""].used.all():
            names = self._adapter.parts[""].unused_names()
            self._give_up(f"a batch did not use {names}, and whether one does is decided on the host")

    def _record(
        self,
        name: Hashable,
        work: Callable[[Any, Mapping[str, Tensor]], None],
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
            place = None if batch is None else place_of(batch, adapter.to_device_batch, adapter.prepared)
            fields = {} if place is None else dict(place.fields)
            weight = self._weights.get(name)
            if place is not None:  # the others hear of it: then use flags are among it
                sums = HEAD + adapter.tail.metric_sums.numel()
                fields["head"] = (torch.float64, sums if settings else adapter.tail.vector.numel())
            if settings:
                fields |= {"lr": (torch.float32, len(settings)), "row": (torch.int64, 1)}
            if weight and settings and adapter.clip_norm is None:
                fields["factor"] = (torch.float32, 1)
            inputs = StepInputs(fields, adapter.device)
            if place is not None:
                inputs.write_to_all("head", self._head(len(inputs.on_device["head"]), num_samples_of(batch), weight or 0.0))
            if "factor" in fields:
                inputs.write_to_all("factor", 1.0 / (weight or 1.0))
            if key is not None:
                adapter.seed(key)
            repeat = self._recorder.record(lambda: work(place, inputs.on_device))
        except UsageError:
            raise
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            torch.clear_autocast_cache()
            where = user_code_line(error.__traceback__, Path(torch.__file__).parent)
            self._give_up(f"{_first_line(error)}{where}")
            return None
        found = self._recordings[name] = _Recording(inputs, place, repeat)
        return found

    def _give_up(self, reason: str) -> None:
        """Local: from now on every step runs as it is."""
        self.reason = reason
        self._recordings.clear()
        self._adapter.notes.append(f"steps are not recorded as a CUDA graph, so each takes longer: {reason}")

    def _head(self, length: int, num_samples: int, weight: float) -> npt.NDArray[np.float64]:
        """The sums with which the tail of a step begins, and use flags as far as they travel."""
        head = np.ones(length)
        head[: HEAD + self._adapter.tail.metric_sums.numel()] = 0
        head[SAMPLES], head[WEIGHT] = num_samples, weight
        return head

    def _can_update(self, settings: GroupSettings) -> bool:
        """Whether only learning rates differ from step to step; an update with other settings runs as it is, from then on."""
        self.updates = self.updates and all(len(group) == 1 and "lr" in group for group in settings)
        return self.updates and not self.reason


@dataclass(frozen=True)
class _Recording:
    """Work that can be repeated, and the memory that it reads."""

    inputs: StepInputs
    place: StepBatch | None
    repeat: Callable[[], None]

    @property
    def has_inputs(self) -> bool:
        """Whether there is something to send before a repetition."""
        return bool(self.inputs.on_device)


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
