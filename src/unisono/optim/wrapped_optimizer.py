"""What all distributed optimisers share: an optimiser of the user's class, with the user's state, that makes other steps. Local."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from torch.optim import Optimizer

from unisono.optim.state_loading import load_in_place


class Wrapped(Optimizer):
    """The class in front of the user's optimiser class."""

    _made_from: Any

    def _step_synchronized(self, closure: Callable[[], Any] | None, synchronize: Callable[[Any], Any]) -> Any:
        """Makes the step of the user's class from synchronised gradients. `synchronize` is called with the loss each time the
        closure has computed gradients, and returns the loss that is the same on all ranks; without a closure it is called once,
        with None."""
        self._made_from._opt_called = True  # a scheduler that was made for it looks there whether steps are made
        if closure is None:
            synchronize(None)
            return super().step()
        return super().step(lambda: synchronize(closure()))

    def _load(self, state_dict: dict[str, Any]) -> None:
        """Loads a state as the user's class does. Operations in flight are not disturbed."""
        load_in_place(self, partial(super().load_state_dict, state_dict))

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise TypeError("a DistributedOptimizer cannot be copied, as it works for one model; copy its state_dict()")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a DistributedOptimizer cannot be pickled, as it belongs to this process; save its state_dict()")


def same_class(optimizer: Optimizer, mixin: type[Wrapped]) -> Any:
    """Returns a new optimiser that shares the state of the given one: its class has the same name and is derived from it, so that
    schedulers and `isinstance` work."""
    own = type(optimizer)
    made: Any = object.__new__(type(own.__name__, (mixin, own), {"__module__": own.__module__}))
    # A scheduler that was made before has put a `step` of its own there, which would hide ours.
    made.__dict__.update({name: value for name, value in optimizer.__dict__.items() if name != "step"})
    made._made_from = optimizer
    return made
