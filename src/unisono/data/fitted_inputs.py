"""Changes of the inputs that are fitted to the training part, e.g. a scaling: they are fitted again wherever that part is another
one, so that no fold learns from the samples it is evaluated on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from unisono.data.checks import sample_ids
from unisono.data.declared import DeclaredChange
from unisono.data.source import Mapped, Source, Subset
from unisono.data.splits import Splits
from unisono.errors import UsageError

Change = Callable[[Any], Any]
Fit = Callable[[Source], Change]
Fits = Mapping[Fit, Change]
"""What each fit has given for a training part."""


class Fitted(Mapped):
    """Samples whose inputs go through a function that was fitted to the training part."""

    def __init__(self, source: Source, fit: Fit, change: Change) -> None:
        super().__init__(source, change, inputs_only=True)
        self.fit = fit


def map_fitted(splits: Splits, fit: Fit) -> Splits:
    """Returns splits whose inputs all go through a function that is fitted to the training part, such as a scaling.

    With `map_inputs` a mean of the training part would stay the same in all folds of a search, where some of its samples
    are for validation. This function is fitted again to the training part of each fold, and to training and validation
    together for the last training. Local, blocking for what `fit` reads.

    `fit` must depend on nothing but the samples it is given, and what it returns must treat each sample by itself; a
    result that cannot be called is refused. Several may follow each other; each sees inputs that the ones before changed.

    Example:
        import numpy as np
        import unisono as un

        def scaling(train: un.Source):
            inputs = train.read(np.arange(len(train)))[0]
            mean, deviation = inputs.mean(axis=0), inputs.std(axis=0) + 1e-6
            return lambda inputs: (inputs - mean) / deviation

        splits = un.map_fitted(un.split(un.digits(), validation=0.2, test=0), scaling)
        bool(abs(splits.train.read(np.arange(1000))[0].mean()) < 0.1)  # -> True

    Args:
        splits: The parts, from `un.Splits` or `un.split`.
        fit: A function of the training part, an `un.Source`, that returns a function of inputs.
    """
    change = _fitted(fit, splits.train)
    changed: dict[str, Any] = {name: Fitted(part, fit, change) for name, part in splits.parts().items()}
    return replace(splits, **changed)


def changes_of(part: Source) -> list[Mapped]:
    """Pure: the changes of a sample between its source and a part, in the order in which they are applied."""
    found: list[Mapped] = []
    while isinstance(part, (Subset, Mapped)):
        if isinstance(part, Mapped):
            found.insert(0, part)
        part = part.source
    return found


def with_changes(part: Source, changes: Sequence[Mapped], fits: Fits | None = None) -> Source:
    """Local, blocking for what fits read: the part with these changes of its batches. `fits`: those of the training part; without
    them the part is one, to which the changes are fitted."""
    known = {} if fits is None else dict(fits)
    for one in changes:
        if isinstance(one, Fitted):
            if fits is None and one.fit not in known:
                known[one.fit] = _fitted(one.fit, part)
            part = Fitted(part, one.fit, known.get(one.fit, one.change))
        else:
            part = Mapped(part, one.change, one.inputs_only)
    return part


def fits_of(train: Source) -> Fits:
    """Pure: what each fit has given for a training part."""
    return {one.fit: one.change for one in changes_of(train) if isinstance(one, Fitted)}


def as_fitted_to(train: Source, part: Source | None) -> Source | None:
    """Local: a part with the changes that are fitted to this training part."""
    fits = fits_of(train)
    if part is None or not fits:
        return part
    whole, indices = sample_ids(part)
    return with_changes(whole.subset(indices), changes_of(part), fits)


def describe_unfitted(changes: Sequence[Mapped]) -> list[str]:
    """Pure: a warning for each change that holds numbers, which may have been computed from the samples of all folds."""
    names = dict.fromkeys(
        getattr(one.change, "__qualname__", type(one.change).__name__)
        for one in changes
        if not isinstance(one, Fitted) and _may_be_fitted(one.change)
    )
    return [
        f"the change {name} of the data holds numbers and is the same in every fold; if they were computed from the training data, "
        "as a mean, validation samples of the folds have taken part in them: use un.map_fitted, which computes them for each fold"
        for name in names
    ]


def _fitted(fit: Fit, train: Source) -> Change:
    """Returns what a fit gives for a training part; refuses what cannot be called."""
    change = fit(train)
    if not callable(change):
        raise UsageError(
            f"the fit of un.map_fitted must return a function of the inputs; {getattr(fit, '__qualname__', fit)} returned "
            f"{type(change).__name__}"
        )
    return change


def _may_be_fitted(change: Any) -> bool:
    """Whether a function holds numbers; a declared change knows which of its numbers are no more than a unit."""
    return change.may_be_fitted if isinstance(change, DeclaredChange) else any(_is_number(value) for value in _held_by(change))


def _held_by(change: Any) -> Iterator[Any]:
    """Yields the values that a function carries with it: of its closure, its defaults, its object, its given arguments."""
    if isinstance(change, partial):
        yield from (*change.args, *change.keywords.values(), *_held_by(change.func))
        return
    for cell in getattr(change, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # nothing was assigned
            continue
    yield from getattr(change, "__defaults__", None) or ()
    owner = getattr(change, "__self__", None if hasattr(change, "__code__") else change)
    yield from getattr(owner, "__dict__", {}).values() if not isinstance(owner, type) else ()


def _is_number(value: Any) -> bool:
    """Whether a value is a real number, an array or a tensor, or an object that holds one, such as a fitted scaler."""
    if isinstance(value, (float, np.floating, np.ndarray)) or hasattr(value, "detach"):
        return True
    if isinstance(value, type) or callable(value):
        return False
    held = getattr(value, "__dict__", {}).values()
    return any(isinstance(one, (float, np.floating, np.ndarray)) or hasattr(one, "detach") for one in held)
