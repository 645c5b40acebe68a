"""Divides work into pieces that are computed once: fixed ranges of samples, each a finished file beside the output.

Pieces depend on the samples and on what is computed of them, not on the workers: a command that resumes, with more workers or
fewer, takes those that are there. The name of a file holds the key of what made it, so that no piece of other work is taken."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unisono.errors import UsageError
from unisono.files.atomic import atomic_replacement, explain_os_errors

FEWEST, MOST = 16, 1024
"""Enough that little is lost and every worker has some; not so many that files are a burden."""
NAME = re.compile(r"piece-([0-9a-f]{16})-([0-9]{5})\.npy")


@dataclass(frozen=True)
class Pieces:
    """The pieces of one output, as files. Methods are local and blocking."""

    folder: Path
    num_samples: int
    size: int
    """Samples of a piece; the last may have fewer."""
    key: str

    def __len__(self) -> int:
        return -(-self.num_samples // self.size)

    def samples(self, number: int) -> slice:
        """Pure: the samples of a piece."""
        return slice(number * self.size, min((number + 1) * self.size, self.num_samples))

    def open(self) -> tuple[list[int], int]:
        """Makes the folder. Returns the numbers of the pieces that are missing, and how many pieces of other work were removed."""
        with explain_os_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        done: set[int] = set()
        num_removed = 0
        for file in sorted(self.folder.iterdir()):
            known = NAME.fullmatch(file.name)
            if known is not None and known[1] == self.key:
                done.add(int(known[2]))
            elif known is not None or file.name.endswith(".draft"):
                file.unlink()
                num_removed += known is not None
        return [number for number in range(len(self)) if number not in done], num_removed

    def write(self, number: int, values: np.ndarray[Any, Any]) -> None:
        """Writes a finished piece, wholly or not at all."""
        with atomic_replacement(self._file(number)) as draft, draft.open("wb") as file:
            np.save(file, values, allow_pickle=False)

    def read(self) -> Iterator[tuple[slice, np.ndarray[Any, Any]]]:
        """Reads all pieces in order, each with its samples."""
        for number in range(len(self)):
            file = self._file(number)
            if not file.is_file():
                raise UsageError(
                    f"{file} is not there, as the workers do not share its folder; give an --out on a shared file system"
                )
            values = np.load(file, allow_pickle=False)
            yield self.samples(number), values

    def remove(self) -> None:
        """Removes the pieces. The folder stays only if it holds other files."""
        for number in range(len(self)):
            self._file(number).unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _file(self, number: int) -> Path:
        """Returns the path of a piece."""
        return self.folder / f"piece-{self.key}-{number:05}.npy"


def make_pieces(out: Path, num_samples: int, batch: int, made_by: Any) -> Pieces:
    """Pure: the pieces of `num_samples` samples. `made_by` are plain values that say what is computed; other values give other
    pieces."""
    count = min(max(-(-num_samples // batch), FEWEST), MOST)
    size = -(-num_samples // count)
    told = json.dumps([made_by, num_samples, size, batch], sort_keys=True, default=str)
    return Pieces(out.with_name(f"{out.name}.parts"), num_samples, size, hashlib.sha256(told.encode()).hexdigest()[:16])


def num_samples_of(pieces: Pieces, numbers: Sequence[int]) -> int:
    """Pure: number of samples in some pieces."""
    return sum(where.stop - where.start for where in map(pieces.samples, numbers))
