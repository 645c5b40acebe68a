"""A plain objective of Optuna's, unchanged, as the work of a study: `def objective(trial): x = trial.suggest_float("x", -1, 1)`.

Its trial asks the coordinator for values that were not proposed in advance; after the first few trials there are none.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from unisono.errors import TrainingFailed, UsageError
from unisono.files.atomic import atomic_replacement, explain_os_errors
from unisono.files.journal import plain
from unisono.training.run_folder.provenance import source_of, versions
from unisono.tuning.workers.captured import captured_by
from unisono.tuning.workers.messages import Message, MessageQueue
from unisono.tuning.workers.trial_worker import TrialRunner

Ranges = dict[str, tuple[Any, str]]
"""The limits that an objective has asked for -> Optuna's distribution, and the same as JSON."""


class ObjectiveUnpickler(pickle.Unpickler):
    """Finds public names of this package also where an earlier version kept them in another module."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns the class or function; raises as usual if it is nowhere."""
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            package = sys.modules[__name__.partition(".")[0]]
            if module.partition(".")[0] != package.__name__ or name not in package.__all__:
                raise
            return getattr(package, name)


@dataclass
class ObjectiveTrialRunner(TrialRunner):
    """Runs trials of an objective: calls of a function."""

    objective: Callable[[Any], Any]
    name: str
    sha256: str | None
    captured: Mapping[str, str] | None = None
    """What it is beyond its source text; None where an earlier version has written it."""
    leaves_files: ClassVar[bool] = False
    _ranges: Ranges = field(default_factory=dict)

    @classmethod
    def load_from(cls, file: str) -> ObjectiveTrialRunner:
        """Returns the runner of an objective that `write_objective` has written, and extends sys.path by the paths of that process.
        Local."""
        paths, name, sha256, value, *captured = pickle.loads(Path(file).read_bytes())
        sys.path.extend(path for path in paths if path not in sys.path)
        return cls(ObjectiveUnpickler(io.BytesIO(value)).load(), name, sha256, *captured)

    def load(self) -> None:
        """Imports what trials need, once for all workers; the function itself is loaded already. Local."""
        importlib.import_module("optuna.distributions")
        importlib.import_module("optuna.exceptions")

    def describe(self) -> dict[str, Any]:
        return {
            "task": self.name,
            "space": None,
            "fixed": {},
            "first": {},
            "epochs": 1,
            "metrics": {},
            "monitor": None,
            "fold_by": None,
            "num_samples": {},
            "samples": {},
            "warnings": [],
            "sources": {self.name: self.sha256},
            "captured": self.captured,
            "versions": versions(),
        }

    def run(self, command: Message, messages: MessageQueue) -> dict[str, Any]:
        from optuna.exceptions import TrialPruned

        trial = ObjectiveTrial(command, messages, self._ranges)
        try:
            value = self.objective(trial)
        except TrialPruned:
            return {"reason": "pruned", "values": [], "params": trial.params, "user": trial.user_attrs}
        values = list(value) if isinstance(value, Sequence) else [value]
        try:
            found = [float(one) for one in values]
        except (TypeError, ValueError):
            raise TrainingFailed(f"the objective must return a number, or several; it returned {value!r}") from None
        return {"reason": "", "values": found, "params": trial.params, "user": trial.user_attrs}


@dataclass
class ObjectiveTrial:
    """The trial that an objective receives: the part of Optuna's `Trial` that objectives use."""

    _command: Message
    _mailbox: MessageQueue
    _ranges: Ranges = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    user_attrs: dict[str, Any] = field(default_factory=dict)
    distributions: dict[str, Any] = field(default_factory=dict)
    datetime_start: datetime = field(default_factory=datetime.now)
    _should_prune: bool = False

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"trial.{name} is not available in un.tune, where trials run in processes of their own, without Optuna's study; use "
            "number, params, user_attrs, suggest_float, suggest_int, suggest_categorical, report, should_prune and set_user_attr"
        )

    @property
    def number(self) -> int:
        """The number of the trial in the study."""
        return int(self._command["number"])

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False) -> float:
        """Returns a real number from `low` to `high`, as in Optuna. Blocks where the coordinator must be asked."""
        return float(self._suggest(name, "FloatDistribution", low, high, log, step))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Returns a whole number from `low` to `high`, as in Optuna. Blocks where the coordinator must be asked."""
        return int(self._suggest(name, "IntDistribution", low, high, log, step))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Returns one of the choices, as in Optuna. Blocks where the coordinator must be asked."""
        return self._suggest(name, "CategoricalDistribution", tuple(choices))

    def report(self, value: float, step: int) -> None:
        """Reports the objective at a step. Blocks until the coordinator answers."""
        self._mailbox.send({"is": "report", "id": self._command["id"], "step": int(step), "value": float(value)})
        self._should_prune = not self._mailbox.wait_for_answer()["go"]

    def should_prune(self) -> bool:
        """Whether the last report showed that the trial should be pruned."""
        return self._should_prune

    def set_user_attr(self, key: str, value: Any) -> None:
        """Keeps a value with the result of the trial; refuses one that JSON cannot hold."""
        try:
            self.user_attrs[key] = json.loads(json.dumps(value, default=plain))
        except TypeError as error:
            raise TypeError(
                f"user attribute {key!r} cannot be written as JSON: {error}; give numbers, texts, lists or dicts"
            ) from None

    def _suggest(self, name: str, *limits: Any) -> Any:
        """Returns the value of a name: one suggested before, one sent with the trial, or one that the coordinator is asked for."""
        if name in self.params:
            return self.params[name]
        distribution, text = self._range(limits)
        values: Mapping[str, Any] = self._command["values"]
        known: Mapping[str, str] = self._command["distributions"]
        if name in values and known.get(name, text) == text:
            found = values[name]
        else:
            self._mailbox.send({"is": "suggest", "id": self._command["id"], "name": name, "distribution": text})
            found = self._mailbox.wait_for_answer()["value"]
        self.params[name], self.distributions[name] = found, distribution
        return found

    def _range(self, limits: tuple[Any, ...]) -> tuple[Any, str]:
        """Optuna's distribution for these limits, and the same as JSON; made once in a process, as the next trial asks for the
        same."""
        key = repr(limits)  # 1 and 1.0 are equal, and another range
        if key not in self._ranges:
            from optuna import distributions

            kind, *values = limits
            made = getattr(distributions, kind)(*values)
            self._ranges[key] = (made, distributions.distribution_to_json(made))
        return self._ranges[key]


def write_objective(objective: Callable[[Any], Any], folder: Path) -> Path:
    """Writes an objective to a file from which any process can call it, and returns the path; functions of a notebook are pickled
    by value. Local, blocking."""
    import cloudpickle

    name = getattr(objective, "__name__", type(objective).__name__)
    text = source_of(objective)
    sha256 = None if text is None else hashlib.sha256(text.encode()).hexdigest()
    try:
        value = cloudpickle.dumps(objective)
    except (TypeError, pickle.PicklingError) as error:
        raise UsageError(
            f"the objective cannot be sent to its workers: {error}; open files, locks and the like inside the function"
        ) from error
    file = folder / f"objective-{hashlib.sha256(value).hexdigest()[:8]}.cloudpickle"
    with explain_os_errors(file):
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_replacement(file) as draft:
            draft.write_bytes(pickle.dumps((list(sys.path), name, sha256, value, captured_by(objective))))
    return file
