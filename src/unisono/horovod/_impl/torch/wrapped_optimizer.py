"""What all kinds of `DistributedOptimizer` share: an optimiser of the user's class with other steps. Local."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

from torch import Tensor
from torch.optim import Optimizer

from unisono.horovod._impl.torch.state_loading import load_in_place


class Wrapped(Optimizer):
    """The class in front of the user's optimiser class."""

    _made_from: Any
    _parameter_names: dict[Tensor, str]

    def _name_newcomers(self) -> None:
        """Names parameters that were added by `add_param_group`."""
        for number, group in enumerate(self.param_groups):
            for position, one in enumerate(group["params"]):
                # The colon keeps it apart from names of the user's.
                self._parameter_names.setdefault(one, f":added.{number}.{position}")

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
