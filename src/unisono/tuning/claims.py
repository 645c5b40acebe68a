"""Who has a trial in hand: the one who could make its file. Nobody needs a lock, also on a network file system."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from unisono.training.atomic import explained


@dataclass(frozen=True)
class Claims:
    """The claims on the trials of a study. A trial that was given back is claimed again as another attempt."""

    folder: Path

    def take(self, trial: int, attempt: int, who: str) -> bool:
        """Local, blocking: whether this attempt is ours. Of all that ask, one gets True."""
        path = self._path(trial, attempt)
        draft = path.with_name(f".{path.name}.{uuid4().hex}")
        with explained(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                draft.write_bytes(who.encode())
                os.link(draft, path)  # one of all succeeds, and nobody ever sees it empty
            except FileExistsError:
                return self.owner(trial, attempt) == who  # asked a second time, e.g. where the first answer was lost on its way
            finally:
                draft.unlink(missing_ok=True)
        return True

    def owner(self, trial: int, attempt: int) -> str | None:
        """Local, blocking: who has it; None where nobody has."""
        try:
            return self._path(trial, attempt).read_bytes().decode(errors="replace")
        except FileNotFoundError:
            return None

    def _path(self, trial: int, attempt: int) -> Path:
        return self.folder / f"{trial:06d}.{attempt}"
