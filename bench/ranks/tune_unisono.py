"""`un.tune` with an objective of Optuna's; writes down when proposals were asked for and how long they took."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, cast
from unittest.mock import patch

import unisono as un
from bench.ranks.tune_trial import Order, objective
from unisono.tuning.search.prefetch import Prefetcher
from unisono.tuning.search.search import Proposal, Search


class Timed:
    """A search that remembers how long its proposals took."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self.made: list[tuple[float, float]] = []
        """When each was begun and ready."""

    def propose(self) -> Proposal | None:
        began = monotonic()
        found = self._search.propose()
        self.made.append((began, monotonic()))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._search, name)


class Noted(Prefetcher):
    """The real thing, which remembers when it was asked and whether it had an answer."""

    def __init__(self, search: Search, depth: int, wake: Callable[[], None], file: Path) -> None:
        self._timed, self._file = Timed(search), file
        self._asked: list[tuple[float, bool]] = []
        super().__init__(cast(Search, self._timed), depth, wake)

    def next_proposal(self, trial_s: float | None) -> Proposal | None:
        found = super().next_proposal(trial_s)
        self._asked.append((monotonic(), found is not None))
        return found

    def close(self) -> None:
        super().close()
        self._file.write_text(json.dumps({"asked": self._asked, "made": self._timed.made}))


def main() -> None:
    order = Order.given()
    folder = Path(order.folder)
    order.tell_versions("unisono", "optuna")
    with patch("unisono.tuning.tune_job.Prefetcher", partial(Noted, file=folder / "proposals.json")):
        un.tune(
            partial(objective, order),
            order.num_trials,
            order.num_workers,
            folder / "study",
            search=order.search,
            seed=order.seed,
            show=False,
        )


if __name__ == "__main__":
    main()
