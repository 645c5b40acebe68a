"""Evaluates a copy of the server's weights in a thread; workers do not wait."""

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
    """One evaluation at a time, while the server serves."""

    def __init__(self, copy: TorchAdapter, evaluate: Callable[[TorchAdapter], Metrics], in_background: bool) -> None:
        self.copy = copy
        """A replica of its own."""
        self._evaluate = evaluate
        self._in_background = in_background
        self._thread: Thread | None = None
        self._about: T | None = None
        self._found: Metrics = None
        self._error: BaseException | None = None

    @property
    def about(self) -> T | None:
        """Local: what the evaluation was begun with that is under way, or finished and not taken."""
        return self._about

    def begin(self, model: nn.Module, about: T) -> None:
        """Local, blocking for a copy: evaluate a model as it is now."""
        assert self._about is None, "take the one before first"
        with torch.no_grad():
            for target, source in zip(self.copy.model.state_dict().values(), model.state_dict().values(), strict=True):
                if isinstance(target, torch.Tensor):
                    target.copy_(source)
        self._about = about
        if self._in_background:
            self._thread = Thread(target=self._run, name="unisono-evaluation")
            self._thread.start()
        else:
            self._run()

    def is_finished(self) -> bool:
        """Local: whether there is one to take."""
        return self._about is not None and (self._thread is None or not self._thread.is_alive())

    def take(self) -> tuple[T, Metrics]:
        """Local, blocking: the evaluation that was begun, and what it was begun with; None if it was stopped."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        about, self._about = self._about, None
        assert about is not None
        if self._error is not None:
            raise self._error
        return about, self._found

    def close(self) -> None:
        """Local, blocking: until nothing runs. Idempotent."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._found = self._evaluate(self.copy)
        except BaseException as error:  # noqa: BLE001 - raised where it is taken
            self._error = error


def copy_of(model: nn.Module) -> nn.Module:
    """Local: a model like this one, with memory of its own."""
    found = copy.deepcopy(model)
    found.zero_grad(set_to_none=True)
    return found
