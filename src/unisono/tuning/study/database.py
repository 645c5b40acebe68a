"""The journal and the claims of a study in a database, through Optuna's own storage (`--storage`), for sites that have one.

A record is an attribute of Optuna's study, so that nothing is known here that the journal in files does not know. Trials are also
written as Optuna's trials, under the same numbers, so that its dashboard shows them while they run. The job that
creates a trial has its first attempt; a later attempt belongs to the job that creates a study of that name, as names are unique
there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from unisono.errors import UsageError
from unisono.files.journal import Damage, Record, plain
from unisono.tuning.search.distributions import distributions_of
from unisono.tuning.search.search import load_optuna
from unisono.tuning.search.space import space_from_dict
from unisono.tuning.study.study import COMPLETE, ENDED, FAILED, PROPOSED, PRUNED


class Database:
    """One study in a database. Local; every method blocks for as long as the database takes."""

    def __init__(self, url: str, name: str, about: Mapping[str, Any]) -> None:
        self.library = load_optuna("random")
        directions = ["maximize" if one["higher_is_better"] else "minimize" for one in about["objectives"]]
        try:
            self.study = self.library.create_study(storage=url, study_name=name, directions=directions, load_if_exists=True)
        except Exception as error:
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise UsageError(
                f"the database {url} cannot be used (--storage): {why}; give e.g. sqlite:///study.db, or leave it out: a folder is "
                "enough"
            ) from error
        self.storage, self.key = self.study._storage, self.study._study_id
        self.space = None if about["space"] is None else space_from_dict(about["space"])
        self.trials: dict[int, int] = {}
        """Number -> the key of Optuna's trial."""

    def key_of(self, number: int) -> int | None:
        """Returns Optuna's key of a trial; None where the database has no such trial yet."""
        if number not in self.trials:
            try:
                self.trials[number] = self.storage.get_trial_id_from_study_id_trial_number(self.key, number)
            except KeyError:
                return None
        return self.trials[number]


@dataclass
class DatabaseClaims:
    """The claims of a study in a database; same interface as `Claims`."""

    database: Database

    def claim(self, trial: int, attempt: int, claimant: str) -> bool:
        """Claims an attempt at a trial for `claimant`; returns whether it owns it. Of several jobs exactly one wins."""
        storage = self.database.storage
        if attempt:
            try:
                key = storage.create_new_study(self.database.study.directions, self._name(trial, attempt))
            except self.database.library.exceptions.DuplicatedStudyError:
                return self.owner(trial, attempt) == claimant
            storage.set_study_user_attr(key, "who", claimant)
            return True
        while self.database.key_of(trial) is None:
            key = storage.create_new_trial(self.database.key)
            storage.set_trial_user_attr(key, "who", claimant)
        return self.owner(trial, 0) == claimant

    def owner(self, trial: int, attempt: int) -> str | None:
        """Returns who has claimed an attempt; None if nobody has."""
        storage = self.database.storage
        if not attempt:
            key = self.database.key_of(trial)
            return None if key is None else str(storage.get_trial(key).user_attrs.get("who", ""))
        try:
            key = storage.get_study_id_from_name(self._name(trial, attempt))
        except KeyError:
            return None
        return str(storage.get_study_user_attrs(key).get("who", ""))

    def _name(self, trial: int, attempt: int) -> str:
        """Returns the name of the Optuna study whose existence marks the claim of a later attempt."""
        return f"{self.database.study.study_name}: trial {trial}, attempt {attempt}"


@dataclass
class DatabaseWriter:
    """The journal of one job in a database; same interface as `journal.Writer`."""

    database: Database
    name: str
    _number: int = 0

    def append(self, value: Mapping[str, Any], later: bool = False) -> None:  # noqa: ARG002 - a database keeps what it has taken
        """Writes a record to the database, and shows points and results in Optuna's own trials."""
        text = json.dumps(value, default=plain)
        self.database.storage.set_study_user_attr(self.database.key, f"{self.name}/{self._number:06d}", text)
        self._number += 1
        if value.get("event") == PROPOSED and self.database.space is not None:  # an objective may not want all that was proposed
            self._show_point(value["trial"], value["values"], {})
        elif value.get("event") == ENDED:
            self._show_result(value)

    def flush_to_disk(self) -> None:
        """Does nothing: a database keeps each record at once."""

    def close(self) -> None:
        """Does nothing: no file is open."""

    def _show_point(self, trial: int, values: Mapping[str, Any], ranges: Mapping[str, str]) -> None:
        """Writes the point as parameters of Optuna's trial at once, so that a later attempt or another job that ends the trial need
        not know it."""
        library, storage, key = self.database.library, self.database.storage, self.database.key_of(trial)
        if key is None or storage.get_trial(key).state.is_finished():
            return
        for name, found in distributions_of(library, self.database.space, values, ranges).items():
            with suppress(ValueError):  # Optuna knows the name with another kind of range, which an objective may change
                storage.set_trial_param(key, name, found.to_internal_repr(values[name]), found)

    def _show_result(self, value: Mapping[str, Any]) -> None:
        """Writes the result as the state of Optuna's trial; a later result does not replace it."""
        storage, states = self.database.storage, self.database.library.trial.TrialState
        key = self.database.key_of(value["trial"])
        if key is None or storage.get_trial(key).state.is_finished():
            return
        details = value.get("details", {})
        self._show_point(value["trial"], details.get("asked", {}), details.get("distributions", {}))
        storage.set_trial_user_attr(key, "reason", value.get("reason", ""))
        state = {COMPLETE: states.COMPLETE, PRUNED: states.PRUNED, FAILED: states.FAIL}[value["state"]]
        storage.set_trial_state_values(key, state, list(value["values"]) if state == states.COMPLETE else None)


@dataclass
class DatabaseReader:
    """The journals of all jobs in a database; same interface as `journal.Reader`."""

    database: Database
    without: str = ""
    damages: list[Damage] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def read(self, is_over: bool = False) -> list[Record]:  # noqa: ARG002 - a database has whole records only
        """Returns the records of other writers that were not read before, in order."""
        found = []
        for name, text in self.database.storage.get_study_user_attrs(self.database.key).items():
            writer, _, number = name.rpartition("/")
            if name not in self._seen and writer and writer != self.without:
                self._seen.add(name)
                found.append(Record(writer, int(number), json.loads(text)))
        return sorted(found, key=lambda record: (record.writer, record.number))
