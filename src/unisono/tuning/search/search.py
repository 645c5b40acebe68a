"""The search: proposes points and prunes trials, by Optuna's ask and tell. The only file that loads Optuna for a search.

Numbers of trials are those of our study; Optuna's own never leave this file. A proposal that is not used is withdrawn and is then
as if it had never been made.
"""

from __future__ import annotations

import importlib
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unisono.errors import UsageError, unknown_name
from unisono.task.task import Choice
from unisono.tuning.search.distributions import distributions_of
from unisono.tuning.search.grid import grid
from unisono.tuning.search.samplers import PRUNERS, RUNG, SEARCHES, completed_rungs, make_pruner, make_sampler, num_startup_trials
from unisono.tuning.search.space import Dimension, Space
from unisono.tuning.study.study import COMPLETE, PRUNED, Trial

if TYPE_CHECKING:
    import optuna

MAX_REDRAWS = 10
"""Draws of a point that was tried before, after which it is tried again: a small space may have no other."""
LEAST_ALIKE = 2
"""Trials of an objective that must want to know the same before it is proposed to others."""
EXTRA_PACKAGES: Mapping[str, str] = {"cmaes": "cmaes", "gp": "scipy"}
"""What a search needs besides Optuna."""


@dataclass(frozen=True)
class Proposal:
    """A point that may be tried."""

    values: Mapping[str, Any]
    trial: Any
    """As Optuna has it."""


@dataclass
class Search:
    """One study as Optuna sees it. One thread may call `propose` and `withdraw`, another thread everything else."""

    space: Space | None
    """None: the dimensions are those that an objective asks for."""
    name: str
    higher_is_better: Sequence[bool]
    seed: int = 0
    prune: str = "none"
    num_steps: int = 1
    """Most reports of one trial, from which the rungs of successive halving follow."""
    num_trials: int = 100
    has_fallback: bool = False
    """Whether TPE may propose where this search would keep a block waiting."""
    first_point: Mapping[str, Any] | None = None
    """Tried before all others, e.g. the task's own settings."""
    is_sequential: bool = False
    """Whether trials run one after the other. An objective then draws each value when it asks for it, as in Optuna, and no trial is
    sent before the previous one has ended, so that the seed decides all points."""
    _trials: dict[int, Any] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)
    _num_results: int = 0
    _fallback: Any = None
    """The same study with another search."""

    def __post_init__(self) -> None:
        if self.name not in SEARCHES:
            raise unknown_name("search", self.name, ("auto", *SEARCHES), "(--search)")
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"--seed must lie in 0..{2**32 - 1}; received {self.seed}")
        if self.prune not in PRUNERS:
            raise unknown_name("pruner", self.prune, PRUNERS, "(--prune)")
        if self.prune != "none" and len(self.higher_is_better) > 1:
            raise UsageError(
                f"--prune {self.prune} needs a single metric, and {len(self.higher_is_better)} are given; leave out --prune, or "
                "all but one --metric"
            )
        if self.name == "cmaes" and len(self.higher_is_better) > 1:
            raise UsageError("--search cmaes is for one metric; use tpe, gp or evolution for several")
        if self.name == "grid" and self.space is None:
            raise UsageError("--search grid needs a space, and an objective declares none; use another search")
        self._optuna = load_optuna(self.name)
        conditional = self.space is not None and any(one.when for one in self.space.dimensions)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that some of its samplers are experimental is not for the user of ours
            self._study = self._optuna.create_study(
                directions=["maximize" if one else "minimize" for one in self.higher_is_better],
                sampler=make_sampler(self._optuna, self.name, self.seed, self._num_startup_trials, conditional),
                pruner=make_pruner(self._optuna, self.prune, self.num_steps),
            )
        self._grid = grid(self.space, self.num_trials) if self.name == "grid" and self.space is not None else []

    @property
    def learns(self) -> bool:
        """Whether results influence the next proposals: not in a random or grid search, and not among the first draws."""
        return self.name not in ("random", "grid") and self._num_results >= self._num_startup_trials

    def draws_independently(self, num_trials: int) -> bool:
        """Whether the next `num_trials` points are drawn without regard to results. Pure."""
        return self.name in ("random", "grid") or self._num_results + num_trials <= self._num_startup_trials

    def warm_up(self) -> None:
        """Loads the modules that the first proposal with results would load. Local, blocking for seconds."""
        if self.name == "gp":
            with suppress(ImportError):  # a part of Optuna that is its own; then the first proposal takes longer
                importlib.import_module("optuna._gp.gp")

    def propose(self) -> Proposal:
        """Proposes another point; the points of a grid come from `grid_point`. Local, blocking for milliseconds, with `gp` for
        seconds."""
        if self.first_point is not None:
            self._study.enqueue_trial(dict(self.first_point))
            self.first_point = None
        for _ in range(MAX_REDRAWS):
            proposal = self._ask()
            if self.space is None or _key(proposal.values) not in self._seen:  # a point that was tried gives nothing new
                break
            self._discard(proposal)
        else:
            proposal = self._ask()
        self._seen.add(_key(proposal.values))
        return proposal

    def propose_by_fallback(self) -> Proposal:
        """Proposes another point by TPE, from the same results; may be called beside `propose`. Local, blocking for
        milliseconds."""
        if self._fallback is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                sampler = self._optuna.samplers.TPESampler(seed=(self.seed + 1) % 2**32)  # else both draw the same at first
                self._fallback = self._optuna.load_study(
                    study_name=self._study.study_name, storage=self._study._storage, sampler=sampler
                )
        proposal = self._ask(self._fallback)
        self._seen.add(_key(proposal.values))
        return proposal

    def grid_point(self, number: int) -> Proposal | None:
        """Returns the point that belongs to a trial number in a grid, which several jobs share; None in other searches. Local."""
        if self.name != "grid":
            return None
        self._study.enqueue_trial(self._grid[number])
        return self._ask()

    def _ask(self, study: Any = None) -> Proposal:
        """Returns a proposal of Optuna's sampler, from `study` if given; without a space, values for the names asked for so far."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = (study or self._study).ask()
            if self.space is None:
                known = {} if self.is_sequential else self._common_names()
                return Proposal({name: trial._suggest(name, one) for name, one in known.items()}, trial)
            values: dict[str, Any] = {}
            for dimension in self.space.dimensions:
                if self.space.is_active(dimension, values):
                    values[dimension.name] = _suggest(trial, dimension)
        return Proposal(values, trial)

    def _common_names(self) -> Mapping[str, Any]:
        """Returns the names, with their distributions, that all trials of an objective have asked for so far."""
        found: Mapping[str, Any] = self._optuna.search_space.intersection_search_space(self._study.get_trials(deepcopy=False))
        return found

    def suggest(self, number: int, name: str, distribution: str) -> Any:
        """Suggests one more value for a running trial, from a distribution in Optuna's JSON form. Raises `ValueError` for a
        distribution that contradicts an earlier one. Local."""
        wanted = self._optuna.distributions.json_to_distribution(distribution)
        storage, key = self._study._storage, self._trials[number]._trial_id
        trial = storage.get_trial(key)
        if trial.distributions.get(name) == wanted:
            return trial.params[name]
        if isinstance(self._trials[number], self._optuna.trial.Trial) and name not in trial.distributions:
            return self._trials[number]._suggest(name, wanted)
        # Proposed in advance in another range, or a trial of an earlier job: Optuna would insist on what it has.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = self._study.sampler.sample_independent(self._study, trial, name, wanted)
        storage.set_trial_param(key, name, wanted.to_internal_repr(value), wanted)
        return value

    def suggest_known_names(self, number: int) -> dict[str, Any]:
        """Suggests the values that other trials have asked for so far, for a trial that was proposed before any had asked.
        Local."""
        trials = [one for one in self._study.get_trials(deepcopy=False) if one.distributions]
        others = [one.distributions for one in trials if one.state.is_finished()] or [one.distributions for one in trials]
        if self.is_sequential or len(others) < LEAST_ALIKE:
            return {}  # one may have asked for what only it wants to know
        wanted = (
            [(name, one) for name, one in others[0].items() if all(other.get(name) == one for other in others)] if others else []
        )
        return {name: self._trials[number]._suggest(name, one) for name, one in wanted}

    def distributions(self, number: int) -> dict[str, str]:
        """Returns the distributions of the values suggested for a trial so far, as JSON. Local."""
        found = self._frozen(number).distributions
        return {name: self._optuna.distributions.distribution_to_json(one) for name, one in found.items()}

    def withdraw(self, proposal: Proposal) -> None:
        """Takes back a proposal that will not be tried. Local."""
        self._discard(proposal)
        self._seen.discard(_key(proposal.values))

    def _discard(self, proposal: Proposal) -> None:
        """Ends a proposal in Optuna's study as failed."""
        self._study.tell(proposal.trial, state=self._optuna.trial.TrialState.FAIL)

    def start_trial(self, number: int, proposal: Proposal) -> None:
        """Notes that a proposal is tried under this trial number. Local."""
        self._trials[number] = proposal.trial

    def add_known_trial(self, trial: Trial) -> None:
        """Adds a trial from the journal, of an earlier or another job; call it again when more of the trial is known. Local."""
        if trial.number in self._ended or trial.values is None:
            return
        self._seen.add(_key(trial.values))
        if trial.number not in self._trials:
            self._add(trial)
            return
        known = self._frozen(trial.number)
        for step, value in trial.reports.items():
            if step not in known.intermediate_values:
                self._study._storage.set_trial_intermediate_value(known._trial_id, step, value)
        for name, value in self._rungs(trial).items():
            self._study._storage.set_trial_system_attr(known._trial_id, name, value)
        if trial.result is not None:
            self.tell(trial.number, trial.result.state, trial.result.values)

    def _frozen(self, number: int) -> Any:
        """Returns Optuna's record of a trial, with its reports."""
        return self._study._storage.get_trial(self._trials[number]._trial_id)

    def tell(self, number: int, state: str, values: Sequence[float]) -> None:
        """Tells the search how a trial ended; telling it a second time has no effect. Local."""
        if number in self._ended or number not in self._trials:
            return
        self._ended.add(number)
        self._num_results += state in (COMPLETE, PRUNED)
        ended = self._state_of(state, values)
        is_complete = ended == self._optuna.trial.TrialState.COMPLETE
        self._study.tell(self._trials[number].number, list(values) if is_complete else None, ended)

    def _state_of(self, state: str, values: Sequence[float]) -> Any:
        """The state in Optuna's terms, where a result without finite numbers is a failure."""
        states = self._optuna.trial.TrialState
        if state == COMPLETE:
            return states.COMPLETE if self._is_valid(values) else states.FAIL
        return states.PRUNED if state == PRUNED else states.FAIL

    def report(self, number: int, step: int, value: float) -> None:
        """Reports the value of the objective at a step of a running trial. Local."""
        if number in self._trials and number not in self._ended:
            self._study._storage.set_trial_intermediate_value(self._trials[number]._trial_id, step, value)

    def should_prune(self, number: int) -> bool:
        """Whether a trial should be pruned after its last report. Local."""
        if self.prune == "none" or number not in self._trials:
            return False
        trial = self._frozen(number)
        if not trial.intermediate_values:
            return False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bool(self._study.pruner.prune(self._study, trial))

    def _add(self, trial: Trial) -> None:
        """Adds a trial to Optuna's study in its present state, with the rungs that pruning needs."""
        assert trial.values is not None
        result = trial.result
        state = self._state_of(result.state, result.values) if result is not None else self._optuna.trial.TrialState.RUNNING
        distributions = distributions_of(self._optuna, self.space, trial.values, trial.distributions)
        if result is not None:
            self._ended.add(trial.number)
            self._num_results += result.state in (COMPLETE, PRUNED)
        frozen = self._optuna.trial.create_trial(
            state=state,
            values=list(result.values) if result is not None and state == self._optuna.trial.TrialState.COMPLETE else None,
            params={name: value for name, value in trial.values.items() if name in distributions},
            distributions=distributions,
            intermediate_values=dict(trial.reports),
            system_attrs=self._rungs(trial),
        )
        storage = self._study._storage
        self._trials[trial.number] = storage.get_trial(storage.create_new_trial(self._study._study_id, template_trial=frozen))

    def _is_valid(self, values: Sequence[float]) -> bool:
        """Whether there is one finite value for each objective."""
        return len(values) == len(self.higher_is_better) and all(math.isfinite(one) for one in values)

    def num_rungs(self, number: int) -> int | None:
        """Returns how many rungs of successive halving a running trial has passed; None for other pruning. Local."""
        if self.prune != "asha" or number not in self._trials:
            return None
        return sum(str(name).startswith(RUNG) for name in self._frozen(number).system_attrs)

    def _rungs(self, trial: Trial) -> dict[str, float]:
        """Returns the rungs of successive halving that a trial has passed; none for other pruning."""
        return completed_rungs(trial.reports, trial.rungs, self.num_steps) if self.prune == "asha" else {}

    @property
    def _num_startup_trials(self) -> int:
        """Number of results that the search needs before they influence it."""
        return num_startup_trials(self.name, self.num_trials)


def _key(values: Mapping[str, Any]) -> str:
    """Returns the values as a text that is equal for equal values."""
    return json.dumps(dict(values), sort_keys=True)


def _suggest(trial: optuna.Trial, dimension: Dimension) -> Any:
    """Asks Optuna's trial for a value of this dimension."""
    values = dimension.values
    if isinstance(values, Choice):
        return trial.suggest_categorical(dimension.name, values.values)
    if dimension.is_integer:
        return trial.suggest_int(dimension.name, int(values.low), int(values.high), log=values.log)
    return trial.suggest_float(dimension.name, values.low, values.high, log=values.log)


def load_optuna(search: str) -> Any:
    """Imports Optuna and the packages that this search needs, and silences its log. Local."""
    missing = []
    for package in ("optuna", *([EXTRA_PACKAGES[search]] if search in EXTRA_PACKAGES else [])):
        try:
            __import__(package)
        except ImportError:
            missing.append(package)
    if missing:
        raise UsageError(f"--search {search} needs {' and '.join(missing)}, which is not installed; pip install 'unisono[tune]'")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
