"""Claims of trials by the jobs of a study: the job that could create the file has the trial. Needs no lock, also on network
file systems."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from unisono.files.atomic import explain_os_errors


@dataclass(frozen=True)
class Claims:
    """The claims on the trials of a study. A trial that was given back is claimed again as another attempt."""

    folder: Path

    def claim(self, trial: int, attempt: int, claimant: str) -> bool:
        """Local, blocking: claims this attempt; True for exactly one claimant, also when it claims again."""
        path = self._claim_path(trial, attempt)
        draft = path.with_name(f".{path.name}.{uuid4().hex}")
        with explain_os_errors(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                draft.write_bytes(claimant.encode())
                os.link(draft, path)  # one of all succeeds, and nobody ever sees it empty
            except FileExistsError:
                return (
                    self.owner(trial, attempt) == claimant
                )  # asked a second time, e.g. where the first answer was lost on its way
            finally:
                draft.unlink(missing_ok=True)
        return True

    def owner(self, trial: int, attempt: int) -> str | None:
        """Local, blocking: returns the claimant of this attempt; None where it is free."""
        try:
            return self._claim_path(trial, attempt).read_bytes().decode(errors="replace")
        except FileNotFoundError:
            return None

    def _claim_path(self, trial: int, attempt: int) -> Path:
        """Returns the path of the file that claims this attempt of a trial."""
        return self.folder / f"{trial:06d}.{attempt}"
