"""Who has a trial in hand: the one who could make its file. Nobody needs a lock, also on a network file system."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from unisono.training.atomic import explained


@dataclass(frozen=True)
class Claims:
    """Of the trials of a study. A trial that was given back is claimed again as another attempt."""

    folder: Path

    def take(self, trial: int, attempt: int, who: str) -> bool:
        """Local, blocking: whether this attempt is ours. Of all that ask, one gets True."""
        path = self._path(trial, attempt)
        with explained(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                return self.owner(trial, attempt) == who  # asked a second time, e.g. where the first answer was lost on its way
            try:
                os.write(handle, who.encode())
                os.fsync(handle)
            finally:
                os.close(handle)
        return True

    def owner(self, trial: int, attempt: int) -> str | None:
        """Local, blocking: who has it; None where nobody has, and empty while somebody is at it."""
        try:
            return self._path(trial, attempt).read_text()
        except FileNotFoundError:
            return None

    def _path(self, trial: int, attempt: int) -> Path:
        return self.folder / f"{trial:06d}.{attempt}"
