"""The ways to search that `bench.tune` compares. What they run is in `bench/ranks/tune_*.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bench.contenders.contender import NOISE, nothing
from bench.environments import Environment
from bench.groups import ROOT, Launch
from bench.ranks.tune_trial import Order

PROPULATE = Environment("propulate", ("propulate", "mpi4py", "mpich"), constraints=ROOT / "bench" / "constraints_propulate.txt")
"""With its own versions: its GPy needs a SciPy and a NumPy that are older than ours."""
RAY = Environment("ray", ("ray[tune]",), sees_main=True)
"""With the Optuna of our own environment."""

Start = Callable[[Order], Launch]


@dataclass(frozen=True)
class Way:
    """One way to search. `kind` is `ours`, `noise`, `tpe` for those that search as we do, or `other`."""

    name: str
    kind: str
    about: str
    start: Start
    prepare: Callable[[], None] = field(default=nothing)
    is_serial: bool = False
    """One trial at a time."""


def start_unisono(order: Order) -> Launch:
    return Launch([sys.executable, "-m", "bench.ranks.tune_unisono", *order.arguments])


def start_optuna(how: str) -> Start:
    def start(order: Order) -> Launch:
        return Launch([sys.executable, "-m", "bench.ranks.tune_optuna", *order.arguments, how])

    return start


def start_propulate(order: Order) -> Launch:
    run = [PROPULATE.program("mpiexec"), "-n", str(order.num_workers)]
    return Launch([*run, PROPULATE.python, "-m", "bench.ranks.tune_propulate", *order.arguments], PROPULATE.variables)


def start_ray(order: Order) -> Launch:
    own = {"HOME": order.folder, "RAY_TMPDIR": order.folder}  # it writes to both, and leaves it there
    return Launch([RAY.python, "-m", "bench.ranks.tune_ray", *order.arguments], {**RAY.variables, **own})


OURS = Way("unisono", "ours", "`un.tune(objective, blocks=4)`, journal and claims on the disk", start_unisono)
JOURNAL = Way(
    "optuna journal",
    "tpe",
    "`study.optimize` in 4 processes that share a `JournalStorage(JournalFileBackend)`",
    start_optuna("journal"),
)
WAYS: Sequence[Way] = (
    OURS,
    replace(OURS, name="unisono A/A", kind="noise", about=NOISE),
    Way(
        "optuna alone",
        "tpe",
        "`study.optimize` in one process, one trial at a time, the study in memory; its trials wait a quarter as long",
        start_optuna("alone"),
        is_serial=True,
    ),
    Way("optuna threads", "tpe", "the same with `n_jobs=4`: four threads of one process", start_optuna("threads")),
    JOURNAL,
    Way("optuna sqlite", "tpe", "the same with an `RDBStorage` in a file of SQLite", start_optuna("sqlite")),
    Way(
        "ray tune",
        "tpe",
        "`Tuner` with `OptunaSearch`, `max_concurrent_trials=4`, `reuse_actors=True`",
        start_ray,
        RAY.make,
    ),
    Way(
        "propulate",
        "other",
        "`Propulator` with its default propagator, 4 ranks of MPICH from PyPI. It breeds and does not model: no TPE, and nobody "
        "coordinates. With Open MPI from PyPI, tried before, many of its gaps lasted as long as a trial; why was not looked "
        "into, and it has the MPI that suits it better",
        start_propulate,
        PROPULATE.make,
    ),
)
