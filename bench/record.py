"""What a run has measured so far. It survives an interruption: the same command goes on after the last finished block."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.environments import HOMES
from bench.groups import ROOT
from bench.machine import describe_moment
from bench.progress import Progress

UNFINISHED = HOMES / "unfinished"


class Record:
    """Blocks by key, on disk as soon as they are finished. Local."""

    def __init__(self, name: str, settings: Mapping[str, Any], fresh: bool, progress: Progress) -> None:
        """Takes up what an interrupted run with the same settings and the same code left, unless `fresh`."""
        self._path = UNFINISHED / f"{name}.json"
        # As it comes back from the file, so that it can be compared with it.
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        self.blocks: dict[str, Any] = {}
        self.sittings: list[dict[str, str]] = []
        if not fresh and self._path.exists():
            left = json.loads(self._path.read_text())
            if left["settings"] == self.settings and left["code"] == _code():
                self.blocks, self.sittings = left["blocks"], left["sittings"]
                progress.keep(f"{len(self.blocks)} blocks of an interrupted run are kept (--fresh measures them again)")
        self.progress, self._asked = progress, dict[str, None]()
        self.sittings.append(describe_moment())

    def lacks(self, key: str) -> bool:
        """Whether a block of this run must be measured, which is said."""
        self._asked[key] = None
        if key in self.blocks:
            return False
        self.progress.say(key)
        return True

    def asked(self) -> dict[str, Any]:
        """The finished blocks of this run, in the order in which they were asked for."""
        return {key: self.blocks[key] for key in self._asked if key in self.blocks}

    def add(self, key: str, block: Mapping[str, Any]) -> None:
        """Keep a finished block."""
        self.blocks[key] = dict(block)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps({"settings": self.settings, "code": _code(), "sittings": self.sittings, "blocks": self.blocks}))
        draft.replace(self._path)

    def finish(self) -> None:
        """The results are written; nothing is left to take up."""
        self._path.unlink(missing_ok=True)


def _code() -> str:
    """Local: changes when the package or the benchmarks change: numbers of two different programs do not go together."""
    digest = hashlib.sha256()
    for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Local: readable at the outer levels, one line for each series of numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_shown(content, "") + "\n")


def _shown(value: Any, indent: str) -> str:
    if isinstance(value, Mapping) and value:
        inner = indent + " "
        rows = [f"{inner}{json.dumps(str(key))}: {_shown(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
