"""The folder of `--output-filename`."""

from __future__ import annotations

from pathlib import Path

from unisono.errors import UsageError


def make_folder(name: str) -> Path:
    """Creates the folder for the output of the ranks and returns it. Local."""
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder {name} cannot be created (--output-filename): {error.strerror}; choose another") from error
    return Path(name)
