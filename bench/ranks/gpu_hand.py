"""Loops by hand: the images as bytes on the device, the whole step in one CUDA graph, compiled where that is asked.

A step gathers its samples by number, turns bytes into numbers, goes forward and back, and updates with fused SGD. The order of an
epoch and the place in it are on the device too, so the host only says: again.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from queue import Queue
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.gpu_cases import SEED, Case, make_data, make_network
from bench.ranks.gpu_turns import Loop

WARM_UP = 5
"""Steps before a capture: algorithms are chosen, momenta are made."""
TRIED_STEPS = 100
"""To see which layout is faster."""
WORDS = 8
"""Bytes that are gathered at a time."""
LAYOUTS = {"last": torch.channels_last, "first": torch.contiguous_format}


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, torch.bfloat16)


def scaled(images: Tensor) -> Tensor:
    """Bytes as numbers in 0..1, in half precision, as the first layer would round them to it anyway."""
    return images.to(torch.bfloat16) * (1 / 255)


class Step:
    """One step of training on static memory; `layout` says where the channels of images and weights lie in it."""

    def __init__(self, case: Case, device: torch.device, layout: str, compile_mode: str | None) -> None:
        self.case, self.device, self.layout = case, device, layout
        model: Any = make_network(case).to(device, memory_format=LAYOUTS[layout])  # type: ignore[call-overload]
        self._optimizer = torch.optim.SGD(model.parameters(), case.lr, case.momentum, fused=device.type == "cuda" or None)

        def loss_of(images: Tensor, targets: Tensor) -> Tensor:
            with autocast(device):
                return functional.cross_entropy(model(scaled(images)).float(), targets)

        self.loss_of: Callable[[Tensor, Tensor], Tensor] = loss_of
        if compile_mode is not None:
            self.loss_of = torch.compile(loss_of, mode=compile_mode, dynamic=False)
        self.loss = torch.zeros((), device=device)
        self._replay: Callable[[], object] | None = None

    def place(self, inputs: Tensor, targets: Tensor) -> None:
        """Local: put all samples on the device, each as a row of words in the order in which its pixels are used."""
        last = self.layout == "last"
        rows = (inputs.permute(0, 2, 3, 1) if last else inputs).reshape(len(inputs), -1)
        self._rows = rows.contiguous().view(torch.int64 if rows.shape[1] % WORDS == 0 else torch.uint8).to(self.device)
        self._targets = targets.to(self.device)
        self._batches_per_epoch = len(inputs) // self.case.batch
        self._source = torch.Generator(self.device).manual_seed(SEED)
        self._order = torch.empty(len(inputs), dtype=torch.int64, device=self.device)
        self._first = torch.arange(self.case.batch, device=self.device)
        self._at = self._first.clone()
        self._left = 0

    def gathered(self) -> tuple[Tensor, Tensor]:
        """Local: the next batch, on the device."""
        numbers = self._order.index_select(0, self._at)
        self._at += self.case.batch
        return self.as_images(self._rows.index_select(0, numbers)), self._targets.index_select(0, numbers)

    def as_images(self, rows: Tensor) -> Tensor:
        """Local: the same memory as images."""
        channels, height, width = self.case.shape
        if self.layout == "last":
            return rows.view(torch.uint8).view(-1, height, width, channels).permute(0, 3, 1, 2)
        return rows.view(torch.uint8).view(-1, channels, height, width)

    def learn(self, images: Tensor, targets: Tensor) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.loss_of(images, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.loss = loss.detach()

    def whole(self) -> None:
        """What a graph holds: gather and learn."""
        self.learn(*self.gathered())

    def capture(self, step: Callable[[], None]) -> None:
        """Local: from now on a step is a replay; on a CPU a plain call."""
        self._replay = captured(step) if self.device.type == "cuda" else step
        self.turn_over()

    def next(self) -> None:
        """Local: a step of samples on the device."""
        if not self._left:
            self.turn_over()
        self._left -= 1
        (self._replay or self.whole)()

    def turn_over(self) -> None:
        """Local: a new order, and its beginning. Into the same memory, which a graph knows."""
        torch.randperm(len(self._order), generator=self._source, out=self._order)
        self._at.copy_(self._first)
        self._left = self._batches_per_epoch


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """Local: the step as a CUDA graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Not global: other threads may use the device meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    torch.cuda.empty_cache()
    return graph.replay


class Hand(Loop):
    """A loop by hand: compiled or not, captured or not, of samples on the device or streamed to it."""

    def __init__(self, case: Case, device: str, compile_mode: str | None, captures: bool, streams: bool = False) -> None:
        self._case, self._device, self._mode = case, torch.device(device), compile_mode
        self._captures, self._streams = captures, streams
        self.releases = not captures

    def prepare(self) -> None:
        inputs, targets = map(torch.from_numpy, make_data(self._case))
        self._inputs, self._targets = inputs, targets
        self._steps: list[Step] = []
        for layout in self._case.layouts:
            step = Step(self._case, self._device, layout, self._mode)
            step.place(inputs, targets)
            step.turn_over()
            if self._mode is not None:  # compiled while others start; algorithms are chosen later, when the device is quiet
                step.whole()
            self._steps.append(step)

    def train(self, step_done: Callable[[], None]) -> None:
        torch.backends.cudnn.benchmark = True
        times = list(map(self._tried, self._steps))
        self._step = self._steps[times.index(min(times))]
        self.chosen = f"channels {self._step.layout}"
        if len(times) > 1:
            tried = (f"{time * 1e6:.0f} us with channels {layout}" for layout, time in zip(self._case.layouts, times, strict=True))
            self.chosen += f" (a step takes {', '.join(tried)})"
        self._steps.clear()
        if self._device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
        if self._streams:
            self._train_streamed(step_done)
        while True:
            self._step.next()
            step_done()

    def _tried(self, step: Step) -> float:
        """Seconds of a step, once it is captured; nothing to find out where there is no choice."""
        if self._captures and not self._streams:
            step.turn_over()
            step.capture(step.whole)
        if len(self._steps) == 1:
            return 0.0
        for num_steps in (WARM_UP, TRIED_STEPS):
            began = perf_counter()
            for _ in range(num_steps):
                step.next()
            step.loss.item()
        return (perf_counter() - began) / TRIED_STEPS

    def _train_streamed(self, step_done: Callable[[], None]) -> None:
        """Bytes are gathered into pinned memory by a thread, copied beside the step before, and trained on by a graph."""
        step, pinned = self._step, self._device.type == "cuda"
        last = self._inputs.permute(0, 2, 3, 1).reshape(len(self._inputs), -1).contiguous()
        shapes = ((self._case.batch, last.shape[1]), torch.uint8), ((self._case.batch,), torch.int64)
        slots = [[torch.empty(shape, dtype=dtype, pin_memory=pinned) for shape, dtype in shapes] for _ in range(3)]
        static = [torch.zeros(shape, dtype=dtype, device=self._device) for shape, dtype in shapes]
        landed = [torch.zeros_like(one) for one in static]
        free, full = Queue[int](), Queue[int]()
        for number in range(len(slots)):
            free.put(number)
        threading.Thread(target=_gather, args=(last, self._targets, self._case.batch, slots, free, full), daemon=True).start()
        step.capture(lambda: step.learn(step.as_images(static[0]), static[1]))
        replay = step._replay
        assert replay is not None
        if not pinned:
            while True:
                _copy(slots[number := full.get()], static)
                free.put(number)
                replay()
                step_done()
        _stream(slots, landed, static, free, full, replay, step_done)

    def loss(self) -> float:
        return float(self._step.loss.item())


def _copy(given: Sequence[Tensor], into: Sequence[Tensor]) -> None:
    for one, other in zip(given, into, strict=True):
        other.copy_(one, non_blocking=True)


def _gather(
    rows: Tensor, targets: Tensor, batch: int, slots: Sequence[Sequence[Tensor]], free: Queue[int], full: Queue[int]
) -> None:
    """Blocking, in a thread of its own: batches in a random order, for ever."""
    source = torch.Generator().manual_seed(SEED)
    while True:
        for numbers in torch.split(torch.randperm(len(rows), generator=source), batch):
            if len(numbers) == batch:
                images, labels = slots[slot := free.get()]
                torch.index_select(rows, 0, numbers, out=images)
                torch.index_select(targets, 0, numbers, out=labels)
                full.put(slot)


def _stream(
    slots: Sequence[Sequence[Tensor]],
    landed: Sequence[Tensor],
    static: Sequence[Tensor],
    free: Queue[int],
    full: Queue[int],
    replay: Callable[[], object],
    step_done: Callable[[], None],
) -> None:
    """Blocking: while the device computes a step, the next batch is copied to it by another stream."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    taken, copied = (torch.cuda.Event() for _ in range(2))  # type: ignore[no-untyped-call]
    taken.record()
    while True:
        number = full.get()
        with torch.cuda.stream(side):
            side.wait_event(taken)
            _copy(slots[number], landed)
            copied.record()
        torch.cuda.current_stream().wait_event(copied)
        _copy(landed, static)
        taken.record()
        replay()
        # Waits for the copy alone, which ran beside the step before.
        copied.synchronize()
        free.put(number)
        step_done()
