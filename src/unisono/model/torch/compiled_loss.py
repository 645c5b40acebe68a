"""Model and loss compiled into few kernels (`--compile`): for batches of the usual size, others are computed as they are."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn

from unisono.errors import UsageError
from unisono.launch.excepthook import user_code_line
from unisono.model.torch.step_batches import num_samples_of

Compute = Callable[[nn.Module, Any, Any], Any]


class CompiledLoss:
    """Computes what `compute` does, compiled for batches of as many samples as in `sizes`: those of an epoch's last, shorter batch
    would be compiled for one step. Local; the first batch of a size takes as long as the compiler."""

    def __init__(self, compute: Compute, sizes: frozenset[int], is_forced: bool, tell: Callable[[str], None]) -> None:
        self._compute = compute
        self._sizes = sizes
        self._is_forced = is_forced
        self._compiled: Compute | None = torch.compile(_own_copy(compute), dynamic=False)
        self._tell = tell

    def __call__(self, model: nn.Module, loss: Any, batch: Any) -> Any:
        if self._compiled is None or num_samples_of(batch) not in self._sizes:
            return self._compute(model, loss, batch)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module="torch._inductor")  # advice for its developers
            try:
                return self._compiled(model, loss, batch)
            except UsageError:
                raise
            except Exception as error:  # whatever a compiler raises
                if not _is_of_compiler(error):
                    raise
                self._give_up(error)
        return self._compute(model, loss, batch)

    def _give_up(self, error: Exception) -> None:
        """From now on computes as it is; raises where compiling was asked for."""
        cause = getattr(error, "inner_exception", error)  # what the compiler says begins with its own name alone
        first = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        reason = f"{first}{user_code_line(error.__traceback__, Path(torch.__file__).parent)}"
        if self._is_forced:
            raise UsageError(
                f"the model cannot be compiled (--compile on): {reason}; leave --compile out, or use --compile off"
            ) from error
        self._compiled = None
        self._tell(f"the model cannot be compiled, so it is computed as it is: {reason}")


def _own_copy(compute: Compute) -> Compute:
    """The same function with code of its own: torch compiles one code for a few models only, and leaves the next as they are."""
    if not isinstance(compute, FunctionType):
        return compute
    return FunctionType(
        compute.__code__.replace(), compute.__globals__, compute.__name__, compute.__defaults__, compute.__closure__
    )


def _is_of_compiler(error: BaseException) -> bool:
    """Whether an error comes from the compiler, and not from the model."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "triton", "torch.fx"))
