"""`unisono tune` and `un.tune` as users start them: every trial ends once, whatever becomes of it; the same command goes on; and
what cannot work is refused in one line."""

from __future__ import annotations

import importlib
import json
import math
import shutil
import signal
import statistics
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import optuna
import psutil
import pytest

from tests.system.processes import Outcome, Program, plain_environment, run_together, within
from tests.system.studies import SPACE, TASK, UNISONO, all_ended_once, first_steps, records, written_task
from unisono.tuning.search.samplers import make_sampler, num_startup_trials
from unisono.tuning.study.result import load_study
from unisono.tuning.study.study import BEGAN, COMPLETE, FAILED, GIVEN_BACK, LEFT, PRUNED

LIMIT_S = 100.0
STOPPED_CODE = 75
NUM_TRIALS = 6


def tune(*arguments: str) -> list[str]:
    return [UNISONO, "tune", *arguments]


def ran(*commands: list[str], code: int = 0) -> list[Outcome]:
    """Blocking: all of them at the same time, and all with this exit code."""
    outcomes = run_together(commands, plain_environment(), LIMIT_S)
    for outcome in outcomes:
        assert outcome.code == code, str(outcome)
        assert "Traceback" not in outcome.output, str(outcome)
    return outcomes


# ---- a study, from its first command on ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task, a space, and a study of NUM_TRIALS trials, which nobody changes."""
    folder = tmp_path_factory.mktemp("tune")
    written_task(folder)
    (folder / "space.toml").write_text(SPACE)
    (outcome,) = ran([*of(folder), "-n", "2"])
    (folder / "printed.txt").write_text(outcome.output)
    return folder


def of(folder: Path, out: str = "study", trials: int = NUM_TRIALS) -> list[str]:
    given = ("--space", str(folder / "space.toml"), "--trials", str(trials), "--out", str(folder / out))
    return tune(str(folder / "task.py"), *given)


def test_every_trial_ends_once_and_the_best_is_written_down(files: Path) -> None:
    results = all_ended_once(files / "study", NUM_TRIALS)
    assert {result.state for result in results.values()} == {COMPLETE}
    best = max(results, key=lambda number: (results[number].values[0], -number))
    found = tomllib.loads((files / "study" / "best.toml").read_text())
    assert found["lr"]["fixed"] > 0 and found["optimizer"]["fixed"] in ("sgd", "adamw")
    assert ("momentum" in found["optimizer"]) == (found["optimizer"]["fixed"] == "sgd")
    assert set(found) == {"lr", "optimizer", "global_batch", "algorithm", "model"}
    assert (files / "study" / "report.html").read_text().startswith("<!")
    assert {file.parts[-3] for file in (files / "study").rglob("*.safetensors")} == {f"{best:06d}"}, "other models are of no use"
    printed = (files / "printed.txt").read_text()
    assert printed.count("2 ranks: 2 trials at a time on 1 rank each") == 1, printed
    for number in range(NUM_TRIALS):
        assert printed.count(f"trial {number}: val_accuracy ") == 1, printed
    assert f"done: {NUM_TRIALS} complete; report in " in printed
    assert f"best: trial {best}, val_accuracy {results[best].values[0]:.5g}" in printed
    assert "--from-study" in printed.splitlines()[-1]


def test_a_condition_of_the_space_holds_in_every_trial(files: Path) -> None:
    for asked in records(files / "study", "asked"):
        values = asked["values"]
        assert ("optimizer.momentum" in values) == (values["optimizer"] == "sgd"), asked
        assert 2 <= values["model.width"] <= 8 and values["global_batch"] in (6, 12) and 1e-3 <= values["lr"] <= 1.0, asked


def test_more_trials_by_two_jobs_at_once(files: Path, tmp_path: Path) -> None:
    """Another command works at the same study, with one more comment in its task; both take part, and no trial is done twice."""
    shutil.copy(files / "space.toml", tmp_path)
    (tmp_path / "task.py").write_text(f"{TASK}# accuracy is measured on 12 samples\n")
    study, trials = tmp_path / "study", NUM_TRIALS + 8
    shutil.copytree(files / "study", study)
    with Program(tune("--join", str(study), "--trials", str(trials)), plain_environment()) as joined:
        (files / "hold").touch()  # of the file that the study knows
        try:
            with Program([*of(tmp_path, trials=trials), "-n", "2", "--accept-changes"], plain_environment()) as more:
                (tmp_path / "hold").touch()
                both = 1 + 2  # the job that was, and these
                assert within(LIMIT_S, lambda: more.is_over() or joined.is_over() or len(writers(study)) == both)
                (tmp_path / "hold").unlink()
                (files / "hold").unlink()
                outcomes = [more.finish(LIMIT_S), joined.finish(LIMIT_S)]
        finally:
            (files / "hold").unlink(missing_ok=True)
    for outcome in outcomes:
        assert outcome.code == 0, str(outcome)
        assert f"resumed {study}: {NUM_TRIALS} complete" in outcome.output, str(outcome)
        assert f"done: {trials} complete" in outcome.output, str(outcome)
    assert "warning: files of the task have changed since the study was made: sources.task.py " in outcomes[0].output
    grows = f"the study grows from {NUM_TRIALS} to {trials} trials"
    assert any(grows in outcome.output for outcome in outcomes), "".join(map(str, outcomes))
    all_ended_once(study, trials)
    assert f"{trials} of {trials} trials" in (study / "report.html").read_text()


def writers(study: Path) -> set[str]:
    """Jobs that have begun a trial."""
    return {one["who"].partition("/")[0] for one in records(study, BEGAN)}


# ---- what cannot work ------------------------------------------------------------------------------------------------


REFUSED = {
    "a setting that the task has not": (("--space", "unknown.toml"), "model.depth", "model.width"),
    "an empty range": (("--space", "empty.toml"), "lr in", "a Range needs low < high; received 1.0 and 1.0"),
    "a metric that is not reported": (("--metric", "val_f1"), "does not report 'val_f1' (--metric)", "val_accuracy, val_loss"),
    "more ranks than a block can use": (("-n", "6", "--workers", "4"), "1 would have nothing to do", "use -n 4, 5 or 8"),
    "more blocks than trials": (("-n", "4", "--trials", "3"), "4 ranks make 4 blocks, but 3 trials can use only 3", "use -n 3"),
    "a study of another task": ((), "holds another task", "give another --out"),
    "a study of another space": ((), "holds a study with another space", "give another --out"),
}


@pytest.fixture(scope="module")
def refusals(files: Path) -> Mapping[str, Outcome]:
    """Of REFUSED, and of the same command as before, which has nothing to do: all at the same time, as most of it is starting."""
    (files / "unknown.toml").write_text("[model.depth]\nlow = 1\nhigh = 3\n")
    (files / "empty.toml").write_text("[lr]\nlow = 1.0\nhigh = 1.0\n")
    (files / "other.py").write_text(TASK)
    (files / "wider.toml").write_text(SPACE.replace("0.99", "0.999"))
    task, study = str(files / "task.py"), str(files / "study")
    commands = {
        name: tune(task, *(str(files / word) if word.endswith(".toml") else word for word in words), "--out", str(files / "new"))
        for name, (words, *_) in REFUSED.items()
        if words
    }
    commands["a study of another task"] = tune(str(files / "other.py"), "--space", str(files / "space.toml"), "--out", study)
    commands["a study of another space"] = tune(task, "--space", str(files / "wider.toml"), "--out", study)
    commands["nothing to do"] = of(files)
    outcomes = run_together(list(commands.values()), plain_environment(), LIMIT_S)
    return dict(zip(commands, outcomes, strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line(name: str, refusals: Mapping[str, Outcome], files: Path) -> None:
    outcome = refusals[name]
    _, *texts = REFUSED[name]
    assert outcome.code == 2, str(outcome)
    told = [line for line in outcome.output.splitlines() if " ranks: " not in line]
    assert len(told) == 1 and told[0].startswith("unisono: error: "), str(outcome)
    assert all(text in told[0] for text in texts), str(outcome)
    assert not (files / "new").exists()


def test_the_same_command_says_that_it_is_done(refusals: Mapping[str, Outcome], files: Path) -> None:
    outcome = refusals["nothing to do"]
    assert outcome.code == 0, str(outcome)
    assert f"resumed {files / 'study'}: {NUM_TRIALS} complete" in outcome.output
    assert f"done: {NUM_TRIALS} complete" in outcome.output and "best: trial " in outcome.output
    all_ended_once(files / "study", NUM_TRIALS)
    assert len(records(files / "study", LEFT)) == 2  # those who were refused have written nothing


# ---- folds, random starts, workers -----------------------------------------------------------------------------------


def test_folds_with_pruning_and_random_starts(tmp_path: Path) -> None:
    task, folds, starts = written_task(tmp_path), tmp_path / "folds", tmp_path / "starts"
    pruned = ("--folds", "3", "--prune", "asha", "--metric", "val_loss", "--trials", "9")
    ran(
        tune(task, "-n", "2", *pruned, "--out", str(folds)),
        tune(task, "--repeats", "2", "--trials", "2", "--out", str(starts)),
    )
    results = all_ended_once(folds, 9)
    states = [result.state for result in results.values()]
    assert set(states) == {COMPLETE, PRUNED}, "one in three goes on at each rung"
    for result in results.values():
        parts = result.details["parts"]
        assert [part["fold"] for part in parts] == [0, 1, 2][: len(parts)]
        if result.state == COMPLETE:
            assert len(parts) == 3
            assert math.isclose(result.values[0], statistics.fmean(part["values"][0] for part in parts))
    for number, result in all_ended_once(starts, 2).items():
        parts = result.details["parts"]
        assert [(part["fold"], part["repeat"]) for part in parts] == [(0, 0), (0, 1)]
        assert [first_steps(starts, number, f"fold-0-start-{start}") for start in (0, 1)] == [[0], [0]]


def test_two_workers_of_a_model_and_two_folds_at_a_time(tmp_path: Path) -> None:
    study = tmp_path / "study"
    layout = ("-n", "5", "--workers", "2", "--parallel-folds", "2", "--folds", "2")
    (outcome,) = ran(tune(written_task(tmp_path), *layout, "--trials", "2", "--out", str(study)))
    assert "5 ranks: 1 trial at a time on 4 ranks (2 workers per model, 2 folds at a time); rank 0 only" in outcome.output
    for number, result in all_ended_once(study, 2).items():
        assert result.state == COMPLETE
        assert [part["fold"] for part in result.details["parts"]] == [0, 1]
        for fold in (0, 1):
            text = (study / "trials" / f"{number:06d}" / f"fold-{fold}" / "summary.json").read_text()
            assert '"num_workers": 2' in text and '"replicas_equal": true' in text


def test_the_last_training_ends_where_the_best_trial_was_best(tmp_path: Path) -> None:
    """Though it has no validation data by which it could stop: its weights are those of a plain run of so many epochs."""
    task, study = written_task(tmp_path), tmp_path / "study"
    stops = ("--set", "patience=2", "--set", "monitor=val_loss", "--set", "lr=1.5", "--set", "epochs=40")
    ran(tune(task, "--folds", "2", "--trials", "1", *stops, "--out", str(study)))
    (result,) = all_ended_once(study, 1).values()
    summaries = [json.loads((study / "trials/000000" / f"fold-{fold}" / "summary.json").read_text()) for fold in (0, 1)]
    assert any(one["epochs"] < 40 for one in summaries) and all(one["best_epoch"] + 1 < one["epochs"] for one in summaries)
    best = round(statistics.fmean(one["best_epoch"] + 1 for one in summaries) + 1e-9)
    train, settings = [UNISONO, "train", task], {**result_settings(study), "lr": 1.5}
    plain = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    last, same = ran(
        [*train, "--from-study", str(study), "--out", str(tmp_path / "last")],
        [*train, "--all-data", *plain, "--epochs", str(best), "--out", str(tmp_path / "same")],
    )
    assert len({(tmp_path / run / "weights.safetensors").read_bytes() for run in ("last", "same")}) == 1
    assert (
        f"--all-data or --from-study patience 2, monitor val_loss of the task has no effect; it trains {best} epochs" in last.output
    )
    parts = result.details["parts"]
    assert [(one["best_epoch"], one["epochs"]) for one in parts] == [(one["best_epoch"], one["epochs"]) for one in summaries]
    assert "has no effect" not in same.output
    (refused,) = ran([*train, "--all-data", "--set", "name=x", "--out", str(tmp_path / "none"), *stops[:2]], code=2)
    assert "--patience 2 needs validation data" in refused.output
    stopping = tmp_path / "stopping.py"
    stopping.write_text(Path(task).read_text().replace("epochs=2)", "epochs=2, patience=3)"))
    (refused,) = ran([UNISONO, "train", str(stopping), "--all-data", "--out", str(tmp_path / "none")], code=2)
    assert (
        "the task ends its training by validation data (patience 3), by which --all-data does not end; give the" in refused.output
    )


def result_settings(study: Path) -> Mapping[str, Any]:
    """What the search has chosen in its only trial."""
    return load_study(study)[1].trials[0].values or {}


# ---- an objective of Optuna's ----------------------------------------------------------------------------------------


def script(folder: Path, objective: str, options: str) -> list[str]:
    """A program that calls `un.tune`."""
    body = f"import os, sys, time\nimport unisono as un\n\n{dedent(objective)}\n\nprint(un.tune(objective, {options}))\n"
    (folder / "search.py").write_text(body)
    return [sys.executable, str(folder / "search.py")]


WHAT_HAPPENS = """
def objective(trial):
    import optuna

    x = trial.suggest_float("x", -1.0, 1.0)
    kind = trial.suggest_categorical("kind", ["a", "b"])
    steps = trial.suggest_int("steps", 1, 3) if kind == "a" else 0
    if trial.number == 0:
        raise ValueError("x is of no use")
    if trial.number == 1:
        os._exit(7)
    if trial.number == 2:
        while True:
            time.sleep(1)
    if trial.number == 3:
        raise MemoryError
    if trial.number == 4:
        raise optuna.TrialPruned
    if trial.number == 5:
        return "nothing"
    if trial.number == 6:
        return float("nan")
    return x * x + steps
"""
REASONS = {
    0: "ValueError: x is of no use",
    1: "its process ended by exit code 7",
    2: "it ran past its limit of 5 s",
    3: "out of memory (MemoryError)",
    5: "the objective must return a number, or several; it returned 'nothing'",
    6: "value has no value (nan)",
}


def test_what_an_objective_does_ends_nothing_but_its_trial(tmp_path: Path) -> None:
    study = tmp_path / "study"
    options = f"trials=14, blocks=2, out={str(study)!r}, trial_limit='5s'"
    (outcome,) = ran(script(tmp_path, WHAT_HAPPENS, options))
    results = all_ended_once(study, 14)
    assert sorted(one["trial"] for one in records(study, BEGAN)) == list(range(14)), "none is begun twice"
    for number, result in results.items():
        expected = PRUNED if number == 4 else FAILED if number in REASONS else COMPLETE
        assert result.state == expected, f"trial {number}: {result}"
        assert REASONS.get(number, "") in result.reason, f"trial {number}: {result}"
        if number in REASONS:
            assert f"trial {number}: failed: {REASONS[number]}" in outcome.output, str(outcome)
    for result in results.values():
        if result.state == COMPLETE:
            asked = result.details["asked"]
            assert ("steps" in asked) == (asked["kind"] == "a")
            assert result.values == (asked["x"] ** 2 + asked.get("steps", 0),)
    assert "done: 7 complete, 1 pruned, 6 failed" in outcome.output, str(outcome)
    best = min((result.values[0], number) for number, result in results.items() if result.state == COMPLETE)[1]
    assert f"best_number={best})" in outcome.output, str(outcome)


def test_an_objective_with_its_study_in_a_database(tmp_path: Path) -> None:
    study, url = tmp_path / "study", f"sqlite:///{tmp_path / 'studies.db'}"
    options = f"trials=6, blocks=2, out={str(study)!r}, storage={url!r}, search='random'"
    ran(script(tmp_path, "def objective(trial):\n    return trial.suggest_float('x', -1.0, 1.0)", options))
    (found,) = (one for one in optuna.get_all_study_summaries(url) if ": trial " not in one.study_name)
    trials = optuna.load_study(study_name=found.study_name, storage=url).get_trials()
    assert [one.state.name for one in trials] == ["COMPLETE"] * 6
    assert all(one.values == [one.params["x"]] for one in trials), "Optuna's tools see what it asked for"
    assert not list((study / "journal").glob("*")), "nothing is in files"
    results = {number: trial.result for number, trial in load_study(study)[1].trials.items()}
    assert {number: one.values for number, one in results.items() if one is not None} == {
        number: (one.params["x"],) for number, one in enumerate(trials)
    }
    assert "6 of 6 trials" in (study / "report.html").read_text()


SEEDED = """
import sys, un_objective
import unisono as un

for name in sys.argv[2:]:
    un.tune(un_objective.objective, 24, out=f"{sys.argv[1]}/{name}", search=name, seed=5, show=False)
"""
TO_SEARCH = """
import optuna


def objective(trial):
    x = trial.suggest_float("x", -5, 5)
    kind = trial.suggest_categorical("kind", ["a", "b"])
    n = trial.suggest_int("n", 1, 9) if kind == "a" else 3
    y = trial.suggest_float("y", 0.1, 10, log=True)
    trial.report(y, 1)
    if trial.should_prune():
        raise optuna.TrialPruned
    return (x - 2) ** 2 + n * y
"""


def test_a_seed_gives_an_objective_on_one_block_the_points_of_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it asks for a value only in some trials, and prunes."""
    names = ["random", "tpe", "evolution"]
    (tmp_path / "un_objective.py").write_text(TO_SEARCH)
    (tmp_path / "seeded.py").write_text(SEEDED)
    ran([sys.executable, str(tmp_path / "seeded.py"), str(tmp_path), *names])
    monkeypatch.syspath_prepend(tmp_path)
    objective = importlib.import_module("un_objective").objective
    for name in names:
        sampler = make_sampler(optuna, name, 5, num_startup_trials(name, 24), conditional=False)
        study = optuna.create_study(sampler=sampler, pruner=optuna.pruners.MedianPruner(n_startup_trials=5))
        study.optimize(objective, n_trials=24)
        found = load_study(tmp_path / name)[1].trials
        assert [found[number].values for number in range(24)] == [one.params for one in study.trials], name
        assert [found[number].state == PRUNED for number in range(24)] == [one.state.name == "PRUNED" for one in study.trials]


CLOSURES = """
import sys
import unisono as un


def make(target):
    def objective(trial):
        return (trial.suggest_float("x", -5, 5) - target) ** 2

    return objective


def tuned(target, out):
    try:
        return un.tune(make(target), 5, out=f"{sys.argv[1]}/{out}", search="random", seed=3, show=False).best_value
    except un.UsageError as error:
        return str(error)


print(tuned(-3, "study"), tuned(-3, "study"), tuned(4, "other"), tuned(4, "study"), sep="\\n")
"""


def test_another_objective_of_the_same_source_does_not_get_the_result_of_the_study(tmp_path: Path) -> None:
    (tmp_path / "closures.py").write_text(CLOSURES)
    (outcome,) = ran([sys.executable, str(tmp_path / "closures.py"), str(tmp_path)])
    first, again, other, refused = outcome.output.splitlines()
    for target, found in ((-3, first), (-3, again), (4, other)):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3))
        xs = [study.ask().suggest_float("x", -5, 5) for _ in range(5)]
        assert float(found) == min((x - target) ** 2 for x in xs)
    assert refused.startswith(f"the objective has changed since the study {tmp_path / 'study'} was made: captured.target ")


# ---- stopped and resumed ---------------------------------------------------------------------------------------------


def test_sigterm_saves_and_the_same_command_resumes(tmp_path: Path) -> None:
    study, slow = tmp_path / "study", tmp_path / "slow"
    task = written_task(tmp_path)
    command = tune(task, "-n", "2", "--trials", "3", "--epochs", "30", "--search", "tpe", "--out", str(study))
    slow.touch()
    with Program(command, plain_environment()) as program:
        assert within(LIMIT_S, lambda: program.is_over() or first_steps(study, 0) == first_steps(study, 1) == [0])
        assert not program.is_over(), program.finish(LIMIT_S)
        expect_a_light_supervisor(psutil.Process(program.pid))
        program.send(signal.SIGTERM)
        outcome = program.finish(LIMIT_S)
    assert outcome.code == STOPPED_CODE, str(outcome)
    assert "stopping (SIGTERM); running trials are saved" in outcome.output, str(outcome)
    assert "run the same command to resume" in outcome.output, str(outcome)
    assert sorted(one["trial"] for one in records(study, GIVEN_BACK)) == [0, 1]
    all_ended_once(study, 0)
    slow.unlink()
    ran(command)
    results = all_ended_once(study, 3)
    for number in (0, 1):
        assert results[number].attempt == 1
        first, again = first_steps(study, number)
        assert first == 0 < again, "it goes on from its checkpoint"


def expect_a_light_supervisor(coordinator: psutil.Process) -> None:
    """The process that coordinates has no PyTorch; those that train have."""
    (fork_server,) = coordinator.children()
    assert "libtorch" not in Path(f"/proc/{coordinator.pid}/maps").read_text()
    for process in (fork_server, *fork_server.children()):
        assert "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


CALLS = """
import json, os, signal, sys, time
from pathlib import Path

import optuna
import unisono as un
from unisono.stopping.deadline import Deadline

FOLDER, PID = Path(sys.argv[1]), os.getpid()
Deadline.is_due = lambda self, now=None: (FOLDER / "due").exists()


def worse_and_worse(trial):
    trial.report(float(trial.number), 0)
    if trial.should_prune():
        raise optuna.TrialPruned
    return float(trial.number)


def until(happens):
    def objective(trial):
        if trial.number:
            happens()
            while True:
                time.sleep(0.01)
        return trial.suggest_float("x", 0.0, 1.0)

    return objective


def called(name, objective, **options):
    try:
        found = un.tune(objective, out=FOLDER / name, show=False, **options)
        results[name] = [found.best_number, found.best_value]
    except BaseException as error:
        results[name] = [type(error).__name__, getattr(error, "code", None)]


results = {}
called("pruned", worse_and_worse, trials=8)
called("interrupted", until(lambda: os.kill(PID, signal.SIGINT)), trials=3)
called("terminated", until(lambda: os.kill(PID, signal.SIGTERM)), trials=3)
called("limited", until(lambda: (FOLDER / "due").touch()), trials=3, time_limit="1h")
(FOLDER / "results.json").write_text(json.dumps(results))
"""


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Any]]:
    """The studies of a program that calls `un.tune` several times, and what each call returned or raised."""
    folder = tmp_path_factory.mktemp("calls")
    (folder / "calls.py").write_text(CALLS)
    ran([sys.executable, str(folder / "calls.py"), str(folder)])
    return folder, json.loads((folder / "results.json").read_text())


def states(study: Path) -> list[str]:
    return [trial.result.state for _, trial in sorted(load_study(study)[1].trials.items()) if trial.result is not None]


def test_a_call_prunes_as_optuna_does_by_default(calls: tuple[Path, Mapping[str, Any]]) -> None:
    """From the sixth trial on, those that are below the median of the others."""
    folder, results = calls
    assert results["pruned"] == [0, 0.0]
    assert states(folder / "pruned") == [COMPLETE] * 5 + [PRUNED] * 3


def test_the_time_limit_of_a_call_ends_it_normally(calls: tuple[Path, Mapping[str, Any]]) -> None:
    folder, results = calls
    assert results["limited"][0] == 0 and 0.0 <= results["limited"][1] <= 1.0, results
    assert states(folder / "limited") == [COMPLETE] and len(records(folder / "limited", GIVEN_BACK)) == 1


def test_a_signal_raises_in_a_call_when_all_is_saved(calls: tuple[Path, Mapping[str, Any]]) -> None:
    folder, results = calls
    assert results["interrupted"] == ["KeyboardInterrupt", None] and results["terminated"] == ["SystemExit", STOPPED_CODE]
    for name in ("interrupted", "terminated"):
        assert states(folder / name) == [COMPLETE] and len(records(folder / name, GIVEN_BACK)) == 1


HELD = """
def objective(trial):
    x = trial.suggest_float("x", -1.0, 1.0)
    while os.path.exists({hold!r}):
        time.sleep(0.01)
    return x
"""


def test_the_time_limit_gives_back_and_another_command_finishes(tmp_path: Path) -> None:
    study, hold = tmp_path / "study", tmp_path / "hold"
    hold.touch()
    options = f"trials=6, blocks=2, out={str(study)!r}, time_limit='5s'"
    (outcome,) = ran(script(tmp_path, HELD.format(hold=str(hold)), options), code=1)
    assert f"the study {study} was stopped before its end; make the same call again to resume it" in outcome.output, str(outcome)
    join = tune("--join", str(study), "-n", "2", "--time-limit", "5s")
    (outcome,) = ran(join, code=STOPPED_CODE)
    assert "stopping (time limit); running trials are saved" in outcome.output, str(outcome)
    begun, back = ([(one["trial"], one["attempt"]) for one in records(study, event)] for event in (BEGAN, GIVEN_BACK))
    assert len(begun) == 4 and set(begun) <= set(back), "some were claimed and not begun"
    hold.unlink()
    ran(join[:-2])
    results = all_ended_once(study, 6)
    assert all(result.values == (result.details["asked"]["x"],) for result in results.values())
