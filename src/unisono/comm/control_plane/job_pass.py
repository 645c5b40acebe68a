"""What a process shows to be let into its job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pass:
    """What a process knows of its job, and what it demands of others that want to take part."""

    secret: str
    """Known to no other user; empty where none could be had."""
    name: str = ""
    """Public. Empty: the job has no name, and the secret alone counts."""
    no_secret: str = ""
    """Why processes on other hosts cannot know `secret`; empty: all know it."""

    def demands_secret(self, is_here: bool) -> bool:
        """Whether the other side must prove the secret; `is_here`: it runs on this machine, so it can read the same files."""
        return bool(self.secret) and (is_here or not self.no_secret)
