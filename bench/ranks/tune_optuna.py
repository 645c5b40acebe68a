"""Optuna by itself: one process with its study in memory (`alone`, `threads`), or processes that share a `journal` or `sqlite`."""

from __future__ import annotations

import multiprocessing
import sys
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend

from bench.ranks.tune_trial import Order, objective

NAME = "study"


def main() -> None:
    order, how = Order.given(), sys.argv[7]
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    order.tell_versions("optuna", *(["SQLAlchemy"] if how == "sqlite" else []))
    if how in ("alone", "threads"):
        study = optuna.create_study(sampler=order.sampler())
        study.optimize(partial(objective, order), order.num_trials, n_jobs=order.num_workers if how == "threads" else 1)
        return
    optuna.create_study(study_name=NAME, storage=storage_of(order, how))
    context = multiprocessing.get_context("fork")  # the quickest start
    workers = [context.Process(target=work, args=(order, how, rank)) for rank in range(order.num_workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.exit(max(abs(worker.exitcode or 0) for worker in workers))


def work(order: Order, how: str, rank: int) -> None:
    """Blocking: one of the processes."""
    study = optuna.load_study(study_name=NAME, storage=storage_of(order, how), sampler=order.sampler(rank))
    study.optimize(partial(objective, order), order.num_trials // order.num_workers)


def storage_of(order: Order, how: str) -> Any:
    """Local: opened anew in every process."""
    if how == "sqlite":
        return optuna.storages.RDBStorage(f"sqlite:///{Path(order.folder) / 'study.db'}")
    return optuna.storages.JournalStorage(JournalFileBackend(str(Path(order.folder) / "study.journal")))


if __name__ == "__main__":
    main()
