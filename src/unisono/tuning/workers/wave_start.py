"""The start of a wave: the commands to the workers of a block that train some parts of a trial at the same time."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unisono.tuning.study.store import PendingTrial
from unisono.tuning.study.trial_plan import Part, Plan
from unisono.tuning.workers.blocks import Block, RunningTrial, Workers, topology_fields
from unisono.tuning.workers.trial_ledger import TrialLedger

MakeCommand = Callable[[PendingTrial, Mapping[str, Any], Part, Path], dict[str, Any]]
"""Returns the command that starts one part of a trial, without the fields by which its workers meet."""


class WaveStarter:
    """Sends the commands of a wave. Local, not blocking."""

    def __init__(self, plan: Plan, workers: Workers, ledger: TrialLedger, make_command: MakeCommand, folder: Path) -> None:
        """`folder` is that of the study."""
        self._plan, self._workers, self._ledger, self._make_command = plan, workers, ledger, make_command
        self._folder = folder

    def start(self, block: Block, running: RunningTrial) -> None:
        """Starts the next wave of a trial on a block."""
        workers, pending = self._plan.workers, running.pending
        running.parts, running.busy_ranks, running.final_messages, running.epochs = {}, set(), {}, {}
        for place, part in enumerate(self._plan.waves[running.wave]):
            members = block.ranks[place * workers : (place + 1) * workers]
            running.parts[members[0]] = part
            command = self._make_command(pending, running.values, part, self._folder / "trials" / f"{pending.number:06d}")
            if (ranges := self._ledger.ranges_of(pending)) is not None:
                command["distributions"] = ranges
            token = secrets.token_hex(16)
            places = [self._workers.place_of(rank) for rank in members]
            for index, rank in enumerate(members):
                running.busy_ranks.add(rank)
                at = topology_fields(places, index, token, f"trial {pending.number}")
                self._workers.send(rank, {**command, "id": running.wave_id, "at": at, "threads": places[index]["threads"]})
