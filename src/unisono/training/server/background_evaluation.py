"""Evaluates a copy of the server's weights in a thread, so that workers do not wait."""

from __future__ import annotations

import copy
from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar

import torch
from torch import nn

from unisono.model.torch.adapter import TorchAdapter

T = TypeVar("T")
Metrics = dict[str, float] | None


class BackgroundEvaluation(Generic[T]):
    """Runs one evaluation at a time while the server serves."""

    def __init__(self, copy: TorchAdapter, evaluate: Callable[[TorchAdapter], Metrics], in_background: bool) -> None:
        self.copy = copy
        """The replica that is evaluated, with memory of its own."""
        self._evaluate = evaluate
        self._in_background = in_background
        self._thread: Thread | None = None
        self._about: T | None = None
        self._found: Metrics = None
        self._error: BaseException | None = None

    @property
    def about(self) -> T | None:
        """Local: the `about` of the evaluation that is under way, or finished and not collected; None where there is none."""
        return self._about

    def begin(self, adapter: TorchAdapter, about: T) -> None:
        """Local, blocking for a copy: begins to evaluate a replica as it is now; `about` is returned with the result."""
        assert self._about is None, "collect the one before first"
        with torch.no_grad():
            self.copy.copy_buffers(adapter)
            for target, source in zip(self.copy.model.state_dict().values(), adapter.model.state_dict().values(), strict=True):
                if isinstance(target, torch.Tensor):
                    target.copy_(source)
        self._about = about
        if self._in_background:
            self._thread = Thread(target=self._evaluate_copy, name="unisono-evaluation")
            self._thread.start()
        else:
            self._evaluate_copy()

    def is_finished(self) -> bool:
        """Local: whether a result can be collected without waiting."""
        return self._about is not None and (self._thread is None or not self._thread.is_alive())

    def collect(self) -> tuple[T, Metrics]:
        """Local, blocking: waits for the evaluation and returns its `about` and its metrics; None for those if it was stopped."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        about, self._about = self._about, None
        assert about is not None
        if self._error is not None:
            raise self._error
        return about, self._found

    def close(self) -> None:
        """Local, blocking: waits until no evaluation runs. Idempotent."""
        if self._thread is not None:
            self._thread.join()

    def _evaluate_copy(self) -> None:
        """Evaluates the copied model; result or error are kept for `collect`."""
        try:
            self._found = self._evaluate(self.copy)
        except BaseException as error:  # noqa: BLE001 - raised where it is collected
            self._error = error


def copy_model(model: nn.Module) -> nn.Module:
    """Local: returns a copy of a model with memory of its own and without gradients."""
    found = copy.deepcopy(model)
    found.zero_grad(set_to_none=True)
    return found
