"""Starts a training from its options: the configuration, and the processes of its workers. For `unisono train` and `un.train`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unisono.errors import STOPPED_CODE, ReportedElsewhere, TrainingFailed, UsageError
from unisono.launch.worker_options import WorkerOptions
from unisono.task.options import check, option, options_for
from unisono.task.overrides import FLAGS, with_settings
from unisono.task.task import BEST, EXPERIMENT, Task
from unisono.task.task_file import read_pickled
from unisono.task.train_config import TrainConfig

if TYPE_CHECKING:
    from unisono.run import RunResult, Screen
    from unisono.tuning.study.result import BestSettings


@dataclass(frozen=True)
class StudySource:
    """A study from which a training takes the best settings."""

    from_study: str | None = option(
        None, "train with the best settings of a study of `unisono tune`; implies --all-data", "DIR", group=EXPERIMENT
    )
    all_data: bool = option(False, "train on training and validation data together", group=EXPERIMENT)

    def __post_init__(self) -> None:
        check(self)

    def best(self, task_file: str, accept_changes: bool) -> BestSettings | None:
        """Local, blocking: reads the best settings of the study."""
        if self.from_study is None:
            return None
        if not task_file:
            raise UsageError(
                "--from-study compares the task file with the study's, but the task is an object; give the path of its file"
            )
        from unisono.tuning.study.result import best_settings

        return best_settings(Path(self.from_study), Path(task_file), accept_changes)


TRAIN_OPTIONS = (Task, StudySource, TrainConfig, WorkerOptions)
"""The options of `unisono train` and `un.train`."""


def train_config(task_file: str, given: Mapping[str, Any], command: Sequence[str] = ()) -> TrainConfig:
    """Local, blocking where a study must be read: makes the configuration of one training from options by their names."""
    source = StudySource(**options_for(StudySource, given))
    values = options_for(TrainConfig, given)
    found = source.best(task_file, given.get("accept_changes", False))
    changes = with_settings(values.pop("changes", None) or {}, options_for(Task, given))
    is_joined = source.all_data or found is not None
    if is_joined:
        _refuse_goals(changes)
    if found is not None:
        epochs = {} if found.epochs is None else {"epochs": found.epochs}
        changes = {**found.changes, **epochs, **changes}
        values.setdefault("algorithm", found.algorithm)
    if values.get("elastic") is not None:
        values.setdefault("host", _own_address())
    division = {"fold": None} if is_joined else None
    return TrainConfig(task_file=task_file, changes=changes, division=division, command=tuple(command), **values)


def _refuse_goals(given: Mapping[str, Any]) -> None:
    """Refuses goals that need validation data, where these are trained on. Those of the task itself see `prepare`."""
    for name in ("patience", "target", "monitor", "weights"):
        if given.get(name) is not None and (name != "weights" or given[name] == BEST):
            raise UsageError(
                f"{FLAGS[name]} {given[name]} needs validation data, which --all-data and --from-study train on; leave it out, and "
                "give the number of epochs if you like (--epochs)"
            )


def _own_address() -> str | None:
    """Local: the address at which workers on other nodes reach this one; None where there are none."""
    import socket

    from unisono.cluster.resolve import current_topology

    return None if current_topology().one_node else socket.gethostbyname(socket.gethostname())


def work(configure: Callable[[], TrainConfig], start: WorkerOptions, task: Task | None = None) -> RunResult:
    """Collective, blocking: runs as one worker of a training. A mistake in the configuration is reported once, as all others."""
    from unisono.cluster.machine.worker_threads import set_threads
    from unisono.cluster.resolve import current_topology
    from unisono.comm.connect import connect
    from unisono.comm.on_all_ranks import on_all_ranks
    from unisono.launch.orphans import sigterm_if_torchrun_ends
    from unisono.run import execute

    sigterm_if_torchrun_ends(current_topology().launcher)
    with connect(engine=start.engine, allreduce=start.allreduce, quiet=True) as comm:
        on_all_ranks(comm, lambda: start.check(comm.size))
        config = on_all_ranks(comm, configure)
        set_threads(config.threads)
        return execute(config, comm, _terminal_screen(config), task)


def serve(config: TrainConfig) -> RunResult:
    """Local, blocking: runs as the server of workers that may join and leave."""
    from unisono.cluster.machine.worker_threads import set_threads
    from unisono.comm.single_process import single_process_communicator
    from unisono.run import execute

    set_threads(config.threads)
    return execute(config, single_process_communicator(), _terminal_screen(config))


def _terminal_screen(config: TrainConfig) -> Screen | None:
    """Returns the screen on which a training shows its progress; None with --quiet."""
    from unisono.cluster.terminal import terminal
    from unisono.run import Screen

    at = terminal()
    return None if config.quiet else Screen(at.columns, at.colour)


def exit_code(ended: RunResult) -> int:
    """Pure: the exit code of a process whose training is over."""
    return STOPPED_CODE if ended.summary["reason"] == "interrupted" else 0


def work_for_call(file: Path) -> int:
    """Collective, blocking: runs as one worker of a training that `un.train` has launched. Results and errors go to a file."""
    call = read_pickled(file)
    told = Path(call.result_file)
    try:
        ended = work(lambda: call.config, WorkerOptions(), None if isinstance(call.task, str) else call.task)
    except (UsageError, TrainingFailed) as error:
        is_usage = isinstance(error, UsageError)
        told.write_text(json.dumps({"mistake" if is_usage else "failure": str(error)}))
        raise ReportedElsewhere(2 if is_usage else 1) from error
    if ended.rank == 0:
        told.write_text(json.dumps({"out": str(ended.out.resolve()), "stop_reason": ended.stop_reason}))
    return exit_code(ended)
