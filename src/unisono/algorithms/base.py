"""The interface of every algorithm, and how one is found by its name.

An algorithm says how workers agree. It is one of two kinds:

    LockStepAlgorithm   (below) all workers take every step, or every round of steps, together
    ServerAlgorithm     (server/server_algorithm.py) workers call a server, which changes its weights by a rule

Adding one is one new file in this folder, whose name users type and which ends with `ALGORITHM = TheClass`; a file elsewhere can be
named by its path or as a module (`find_algorithm`). docs/how-to/extend.md shows how, and the contract suite
(`python -m unisono.testing.algorithm_contract NAME`) checks it.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, NamedTuple

from unisono.algorithms.roles import DEFAULT_LAYOUT, LayoutOptions, LockStepRoles, Roles, lock_step_roles
from unisono.comm.base import Communicator
from unisono.errors import UsageError, unknown_name
from unisono.events import Spans
from unisono.model.base import ModelAdapter, StreamKey
from unisono.model.tail import StepStats
from unisono.registry import load
from unisono.task.options import check

GroupSettings = Sequence[Mapping[str, float]]
"""Learning rate, momentum and other settings of each parameter group of an optimiser."""
Examples = Sequence[Mapping[str, Any]]
"""Settings of a training, as `--set NAME=VALUE` takes them; options of the algorithm have names like algorithm.period."""
Settings = Mapping[str, GroupSettings]
"""The group settings of each part of the model."""


class StepInfo(NamedTuple):
    """Number, random key, settings and votes of the step that an algorithm takes."""

    step: int
    key: StreamKey
    settings: Settings
    num_samples: int
    """Number of samples of this worker."""
    stop: bool = False
    """Whether a stop of this rank was requested; the vote travels with the step."""
    save: bool = False
    """Whether this rank requests a checkpoint after this step; the vote travels likewise."""


@dataclass(frozen=True)
class AlgorithmOptions:
    """Base of an algorithm's options: fields that are made by `option` check themselves, and stand in docs/reference/options.md."""

    def __post_init__(self) -> None:
        check(self, lambda one: f"--set algorithm.{one.field}")


class ModelSize(NamedTuple):
    """Number and bytes of a model's weights."""

    numel: int
    itemsize: int
    """Bytes per weight."""

    @property
    def num_bytes(self) -> int:
        """Size of the model's weights in bytes."""
        return self.numel * self.itemsize


class Traffic(NamedTuple):
    """Bytes of weights and gradients that are sent for one step of one worker, on average. The few numbers beside them (losses,
    metrics, votes) and running statistics are not counted."""

    summed: float = 0.0
    """Bytes summed over all workers by an all-reduce: over a ring each process sends 2 (N - 1) / N times as many."""
    pushed: float = 0.0
    """Bytes sent to the server."""
    pulled: float = 0.0
    """Bytes received from the server."""


@dataclass
class Algorithm(ABC):
    """Base of every algorithm: what trainers, checkpoints and the summary of a run use of it. An object is one rank's part of a
    training; the class methods are pure and need no training.

    Methods are collective over `comm`, and blocking, unless they say otherwise."""

    Options: ClassVar[type[Any]]
    """The class of its options, an `AlgorithmOptions`: the names of `--set algorithm.NAME=VALUE`."""
    examples: ClassVar[Examples] = (MappingProxyType({}),)
    """The settings with which the contract suite tests it."""
    older_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Options whose default was another in earlier versions, with that default. The record of a run says of these only what
    differs from it."""
    has_server: ClassVar[bool] = False
    keeps_equal: ClassVar[bool] = False
    """Whether replicas are equal after every step, running statistics too."""
    has_own_replicas: ClassVar[bool] = False
    """Whether workers may hold different weights and optimiser states between two exchanges; a checkpoint then has those of
    each."""
    takes_group: ClassVar[bool] = False
    """Whether a worker may be a group of processes (`--group`)."""

    comm: Communicator
    """The processes that hold what a checkpoint saves."""
    adapter: ModelAdapter
    options: Any
    spans: Spans | None = None
    group: int = 1
    """Processes of `comm` that form one worker."""
    shard_state: Any = field(default=None, init=False)
    """Of an algorithm that computes shard by shard: the state with which every shard begins."""

    # ---- known before a training -------------------------------------------------------------------------------------

    @classmethod
    def name(cls) -> str:
        """Pure: the name that users type, which is the name of its file."""
        return cls.__module__.rpartition(".")[2]

    @classmethod
    @abstractmethod
    def plan(cls, options: Any, size: int, layout: LayoutOptions = DEFAULT_LAYOUT) -> Roles:
        """Pure: the roles of `size` processes; refuses what cannot be divided and what has no effect."""

    @classmethod
    @abstractmethod
    def traffic(cls, options: Any, weights: ModelSize) -> Traffic:
        """Pure: its cost in bytes per step. The contract suite compares it with what is sent."""

    @classmethod
    def equals_plain_training(cls, options: Any) -> bool:  # noqa: ARG003 - most do with any
        """Pure: whether one worker gives the weights of plain training with SGD, up to rounding."""
        return True

    # ---- one rank's part of a training -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """Local: number of workers, each of which computes a part of every batch; a group of processes counts once."""

    @property
    def num_working(self) -> int:
        """Local: number of processes that are workers, or members of one."""
        return self.num_workers * self.group

    @property
    def num_servers(self) -> int:
        """Local: number of processes that serve: they hold the weights on which the workers agree."""
        return 0

    @property
    def replicas_differ(self) -> bool:
        """Local: whether a checkpoint must now hold the state of every worker; the same on all ranks."""
        return self.has_own_replicas

    @property
    def depends_on_call_order(self) -> bool:
        """Local: whether the result depends on chance, because workers call a server in no fixed order."""
        return False

    @abstractmethod
    def start(self) -> None:
        """Collective, blocking: makes all replicas equal."""

    @abstractmethod
    def synchronise(self) -> None:
        """Collective, blocking: makes all replicas equal where they may differ between steps (running statistics, or the
        weights of workers that take steps by themselves). Called before an evaluation, and at the end."""

    def summary(self) -> Mapping[str, Any]:
        """Local: the entries that it adds to the summary of a run."""
        return {}

    def state(self) -> dict[str, Any]:
        """Local, after the sums of all steps are known: what a checkpoint must hold besides the replicas; the same on all ranks
        unless `replicas_differ`. Tensors are not copied."""
        return {}

    def takes_own_states(self, state: Mapping[str, Any], step: int) -> bool:  # noqa: ARG002 - most need not know
        """Local, before `start`: whether every worker can resume with weights and an optimiser of its own, saved after `step` steps
        with this `state`, maybe by another algorithm. If not, all resume from their mean."""
        return self.has_own_replicas

    def restore(self, state: Mapping[str, Any], size: int) -> None:  # noqa: B027 - most have no state
        """Collective, after `start`: resumes with what `state` gave, of this or of another algorithm, in a training of `size`
        ranks."""


@dataclass
class LockStepAlgorithm(Algorithm):
    """Base of algorithms whose workers take every step at the same time."""

    suspects: set[int] = field(default_factory=set, init=False)
    """Steps whose update was left out on this rank and whose sums `step` has not returned yet."""

    @classmethod
    def plan(cls, options: Any, size: int, layout: LayoutOptions = DEFAULT_LAYOUT) -> LockStepRoles:  # noqa: ARG003
        return lock_step_roles(cls.name(), cls.takes_group, size, layout)

    @property
    def num_workers(self) -> int:
        return self.comm.size // self.group

    @abstractmethod
    def step(self, micro_batches: Sequence[Any], at: StepInfo) -> Sequence[StepStats]:
        """Makes one update from this worker's part of the batch, which may be empty. Returns the sums of the steps that are known
        by now: this one, or on a GPU the one before, or those of a round at its end; the same on all ranks."""

    def flush_stats(self) -> Sequence[StepStats]:
        """Returns the sums of the steps that `step` has not returned yet. Replicas stay as they are."""
        return ()

    def finish(self) -> None:
        """Ends all communication: no message stays in flight."""


def lr_of_group(settings: GroupSettings) -> float:
    """Pure: the learning rate of the first group, for rules that use a single one."""
    return settings[0]["lr"]


def is_finite(stats: StepStats) -> bool:
    """Pure: whether the loss of every worker was finite."""
    return not stats.num_not_finite and math.isfinite(stats.loss_sum)


# ---- by name -----------------------------------------------------------------------------------------------------------


def known_algorithms() -> tuple[str, ...]:
    """Local: the names of algorithms that users may type: those of the files beside this one that define ALGORITHM."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return tuple(file.stem for file in files if "\nALGORITHM = " in file.read_text())


def find_algorithm(name: str) -> type[Algorithm]:
    """Local: the algorithm class of a name. `my_package.my_algorithm` is a module of the user, `folder/my_algorithm.py` a file;
    each has its class in the constant ALGORITHM."""
    if name.endswith(".py"):
        module = _import_file(Path(name))
    elif "." in name:
        module = _import_module(name)
    else:
        module = load("unisono.algorithms", name, known_algorithms(), "--algorithm")
    found = getattr(module, "ALGORITHM", None)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise UsageError(f"{name} (--algorithm) must set ALGORITHM to a subclass of Algorithm; received {found!r}")
    return found


def make_options(algorithm: type[Algorithm], name: str, values: Mapping[str, Any]) -> Any:
    """Local: the options of an algorithm from --set algorithm.NAME=VALUE; refuses names that it does not have."""
    known = [entry.name for entry in fields(algorithm.Options)]
    for key in values:
        if key not in known:
            raise unknown_name("option", key, known, f"of --algorithm {name} (--set algorithm.{key})")
    return algorithm.Options(**values)


def _import_module(name: str) -> ModuleType:
    """Imports the module of this name; refuses a name that is not found."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # something that the module itself imports
        raise UsageError(
            f"there is no module {name} (--algorithm) on Python's path; install it, or give the path of its file"
        ) from None


def _import_file(file: Path) -> ModuleType:
    """Imports this file as a module, once; refuses a file that does not exist."""
    if not file.is_file():
        raise UsageError(f"there is no file {file} (--algorithm); check the path")
    held = next((one for one in tuple(sys.modules.values()) if getattr(one, "__file__", None) == str(file.resolve())), None)
    if held is not None:
        return held
    is_free = file.stem not in sys.modules and file.stem not in sys.stdlib_module_names
    name = file.stem if is_free else f"algorithm_file_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # else the next try would find half of it
        raise
    return module
