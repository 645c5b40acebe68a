"""Saves of a model that every worker may make, also all of them to one path at the same time: each writes under a name of its own
and renames it. Workers do not wait for each other, as only the first may be saving (`if strategy.is_chief`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def save_model(save: Callable[..., Any], filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> Any:
    """Local, blocking: calls `save` or `save_weights` of a Keras model, so that `filepath` always holds a whole file."""
    if not overwrite and Path(filepath).exists():
        return save(filepath, overwrite, *args, **kwargs)  # Keras asks the user first
    return write_whole(save, filepath, overwrite, *args, **kwargs)


def write_whole(write: Callable[..., Any], filepath: Any, *args: Any, **kwargs: Any) -> Any:
    """Local, blocking: calls a method of a Keras model that writes a file or a folder, and puts what it wrote at `filepath`."""
    if not isinstance(filepath, (str, os.PathLike)) or "://" in str(filepath):
        return write(filepath, *args, **kwargs)  # an open file; or a remote store, which has no renaming
    target = Path(os.fspath(filepath)).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.name}.", suffix=".draft", dir=target.parent) as folder:
        found = write(str(Path(folder) / target.name), *args, **kwargs)
        for written in Path(folder).iterdir():  # several, if weights are divided into shards
            _move(written, target.parent / written.name)
    return found


def _move(source: Path, target: Path) -> None:
    """Puts a file at `target`, whatever is there; of a folder each file if there is a folder already."""
    try:
        source.replace(target)
    except OSError:
        if not (source.is_dir() and target.is_dir()):
            raise
        for part in source.iterdir():
            _move(part, target / part.name)
