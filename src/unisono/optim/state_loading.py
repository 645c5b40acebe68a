"""Loading of an optimiser's state into the objects that hold it, which may be shared."""

from __future__ import annotations

from collections.abc import Callable

from torch.optim import Optimizer


def load_in_place(optimizer: Optimizer, load: Callable[[], None]) -> None:
    """Loads a state by `load` and moves it into the groups and the state that were there before. Local.

    PyTorch makes new ones. But a distributed optimiser shares them with the one that it was made from, which a scheduler may
    hold: it would keep setting a learning rate that has no effect.
    """
    groups, state = optimizer.param_groups, optimizer.state
    load()
    loaded = dict(optimizer.state)
    for group, new in zip(groups, optimizer.param_groups, strict=True):
        if group is not new:
            group.clear()
            group.update(new)
    state.clear()
    state.update(loaded)
    optimizer.param_groups, optimizer.state = groups, state
