"""Changes of pictures that are tensors already."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

Change = Callable[[Tensor], Tensor]


class Compose:
    def __init__(self, changes: Sequence[Change]) -> None:
        self.changes = changes

    def __call__(self, picture: Tensor) -> Tensor:
        for change in self.changes:
            picture = change(picture)
        return picture


class Unchanged:
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, picture: Tensor) -> Tensor:
        return picture


ToTensor = Resize = CenterCrop = RandomHorizontalFlip = Unchanged


class Normalize:
    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = mean[0], std[0]

    def __call__(self, picture: Tensor) -> Tensor:
        return (picture - self.mean) / self.std


def __getattr__(name: str) -> Any:
    """Other names may be imported, but not used."""
    if name.startswith("__"):
        raise AttributeError(name)
