"""What a GPU does with recorded work, on a CPU: operations of torch are kept with their very tensors, and repeated without Python.

So a test sees what a stand-in that calls the work again would hide: a step of Python that a repetition leaves out, a number that
stays what it was, a wait for the device in the middle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unisono.model.torch.recorder import PlainRecorder, Recorder

WAITS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default, torch.ops.aten.equal.default)
"""Operations whose result the host needs: a GPU refuses to record them."""


class TapeRecorder(Recorder):
    """Records operations; a repetition writes the same tensors."""

    def __init__(self) -> None:
        self.num_recorded = 0
        self.num_repeated = 0

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        yield

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        tape = _Tape()
        state = torch.default_generator.get_state()
        try:
            with tape:
                work()
        finally:
            tape.undo()
            torch.default_generator.set_state(state)
        self.num_recorded += 1
        return partial(self._repeat, tape)

    def _repeat(self, tape: _Tape) -> None:
        self.num_repeated += 1
        tape.repeat()


class RefusingRecorder(PlainRecorder):
    """Cannot record anything: each step runs as it is, with sums and updates as on a GPU."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:  # noqa: ARG002
        raise RuntimeError("this machine records nothing")


class _Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The operations of a piece of work, which runs once and is undone: recording does not run it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []
        self._own: set[int] = set()
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in WAITS:
            raise RuntimeError(f"{func} waits for the device")
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        places = _places(given)
        for one in given:
            if _place(one) not in self._own and _place(one) not in self._before:
                whole = torch.empty(0, dtype=torch.uint8).set_(one.untyped_storage())
                self._before[_place(one)] = whole, whole.clone()
                whole.zero_()  # what is there when work is recorded must not matter
        result = func(*args, **kwargs)
        made = [one for one in tree_leaves(result) if isinstance(one, Tensor) and _place(one) not in places]
        self._own.update(_place(one) for one in made)
        self._operations.append((func, args, kwargs, made))
        return result

    def undo(self) -> None:
        for whole, held in self._before.values():
            whole.copy_(held)

    def repeat(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, made in self._operations:
                result = func(*args, **kwargs)
                again = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
                given = _places((args, kwargs))
                taken = [one for one in again if _place(one) not in given]
                for held, new in zip(made, taken, strict=True):
                    held.copy_(new)


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _places(tree: Any) -> set[int]:
    return {_place(one) for one in tree_leaves(tree) if isinstance(one, Tensor)}
