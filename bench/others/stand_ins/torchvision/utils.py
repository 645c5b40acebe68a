"""Pictures that nobody looks at."""

from typing import Any


def save_image(*_: Any, **__: Any) -> None:
    pass


def make_grid(pictures: Any, *_: Any, **__: Any) -> Any:
    return pictures[0]


def __getattr__(name: str) -> Any:
    """Other names may be imported, but not used."""
    if name.startswith("__"):
        raise AttributeError(name)
