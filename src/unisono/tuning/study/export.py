"""Export of a study as a study of Optuna's, so that its plots and optuna-dashboard work with it."""

from __future__ import annotations

import warnings
from datetime import datetime
from pathlib import Path
from typing import Any

from unisono.errors import UsageError
from unisono.tuning.search.distributions import distributions_of
from unisono.tuning.search.search import load_optuna
from unisono.tuning.search.space import space_from_dict
from unisono.tuning.study.result import load_study
from unisono.tuning.study.study import COMPLETE, FAILED, PRUNED, Trial


def to_optuna(folder: Path, storage: str | None = None) -> Any:
    """Returns an Optuna study of all trials that have ended, with the values of their folds. `storage` is the URL of a database
    that does not have the study yet; None keeps the study in memory. Local, blocking."""
    library = load_optuna("random")
    about, study = load_study(folder)
    directions = ["maximize" if one["higher_is_better"] else "minimize" for one in about["objectives"]]
    try:
        made = library.create_study(storage=storage, study_name=folder.resolve().name, directions=directions)
    except library.exceptions.DuplicatedStudyError:
        raise UsageError(f"{storage} has a study {folder.resolve().name!r} already; give another database") from None
    except Exception as error:
        raise UsageError(f"{storage} cannot be opened: {_first_line(error)}; give e.g. sqlite:///study.db") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the names of metrics are new there
        made.set_metric_names([one["metric"] for one in about["objectives"]])
    space = None if about["space"] is None else space_from_dict(about["space"])
    for trial in study.in_state(COMPLETE, PRUNED, FAILED):
        values = trial.values or {}
        distributions = distributions_of(library, space, values, trial.distributions)
        made.add_trial(_trial_of(library, trial, {name: values[name] for name in distributions}, distributions))
    return made


def _first_line(error: Exception) -> str:
    """Returns the first line of an error's message, or the name of its type."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _trial_of(library: Any, trial: Trial, params: dict[str, Any], distributions: dict[str, Any]) -> Any:
    """Makes Optuna's trial of one of ours, with values, reports, times and user attributes."""
    result = trial.result
    assert result is not None
    states = library.trial.TrialState
    began = trial.attempts[result.attempt].began_s if result.attempt in trial.attempts else 0.0
    found = library.trial.create_trial(
        state={COMPLETE: states.COMPLETE, PRUNED: states.PRUNED, FAILED: states.FAIL}[result.state],
        values=list(result.values) if result.state == COMPLETE else None,
        params=params,
        distributions=distributions,
        intermediate_values=dict(trial.reports),
        user_attrs={
            "number": trial.number,
            "reason": result.reason,
            **{k: result.details[k] for k in ("parts", "spread") if k in result.details},
        },
    )
    found.datetime_start = datetime.fromtimestamp(began)
    found.datetime_complete = datetime.fromtimestamp(began + result.took_s)
    return found
