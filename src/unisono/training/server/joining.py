"""Workers that come, go and die: what the server leaves in the run directory for them, and how they join (`unisono join RUN`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from time import monotonic, sleep

from unisono.algorithms.server.protocol import most_numbers
from unisono.algorithms.server.server_algorithm import ServerAlgorithm
from unisono.cluster.machine.worker_threads import set_threads
from unisono.comm.exchange.base import UnknownWorker
from unisono.comm.exchange.zmq_caller import ZmqCaller
from unisono.comm.single_process import single_process_communicator
from unisono.errors import UsageError
from unisono.stopping.stop_request import StopRequest
from unisono.task.train_config import TrainConfig
from unisono.training.prepare import prepare
from unisono.training.server.calling import Calling, Left
from unisono.training.server.server_parts import WorkerMaker, like, replica_of
from unisono.training.server.server_trainer import CONNECTION_FILE

INVITATION = "join.json"
"""What a worker must know of the training."""
NOT_FOR_WORKERS = (
    "out",
    "host",
    "fresh",
    "accept_changes",
    "quiet",
    "command",
    "replay",
    "max_steps",
    "time_limit_s",
    "threads",
)
POLL_S = 0.2

Say = Callable[[str], object]


def write_invitation(directory: Path, config: TrainConfig) -> None:
    """Local: before the door opens."""
    held = {one.name: getattr(config, one.name) for one in fields(config) if one.name not in NOT_FOR_WORKERS}
    held["task_file"] = str(Path(config.task_file).resolve())
    if config.init_from is not None:  # of the weights that do not learn, which no reply brings
        held["init_from"] = str(Path(config.init_from).resolve())
    try:
        text = json.dumps(held, indent=1)
    except TypeError as error:
        raise UsageError(f"a worker that joins cannot be told the changes of the task: {error}; use plain values") from error
    draft = directory / f".{INVITATION}"
    draft.write_text(text)
    draft.replace(directory / INVITATION)


def read_invitation(directory: Path, wait_s: float, is_enough: Callable[[], bool]) -> TrainConfig:
    """Local, blocking: what the server has left there; waits for a server that is about to start."""
    path, until = directory / INVITATION, monotonic() + wait_s
    while not path.exists():
        if is_enough():
            raise Left
        if monotonic() >= until:
            raise UsageError(
                f"there is no {path}, so no server has started there; start one: unisono train TASK.py --elastic W "
                f"--algorithm gem --out {directory}"
            )
        sleep(POLL_S)
    try:
        return TrainConfig(**json.loads(path.read_text()), out=str(directory))
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} is damaged ({error}); start the server again with --fresh") from error


def join(directory: Path, *, say: Say, threads: int | None = None, device: str = "auto", wait_s: float = 0.0) -> int:
    """Local, blocking: be one worker until the training is over, or until a stop of this process is requested. Gives how many
    batches it has done."""
    with StopRequest() as stop:
        try:
            config = replace(read_invitation(directory, wait_s, stop.requested), device=device)
        except Left:
            return 0
        set_threads(threads)
        comm = single_process_communicator()
        parts = prepare(config, comm, None, None, resumes=False).parts
        assert isinstance(parts.algorithm, ServerAlgorithm)
        replica = replica_of(parts.adapter, comm)
        workers = WorkerMaker(parts.algorithm, replica, parts.loader, parts.settings, parts.task.seed)
        start = replica.home()
        caller = ZmqCaller(directory / CONNECTION_FILE, say=say)
        num_done = 0
        try:
            while True:
                number = caller.join()
                say(f"joined as worker {number}")
                calling = Calling(comm, caller, like(replica), most_numbers(replica.num_sums, replica.num_tensors), stop.requested)
                worker = workers.make(calling.out())
                try:
                    calling.drive(worker.run())
                except UnknownWorker:
                    num_done += worker.num_steps
                    replica.reset(start)
                    say(f"warning: the server does not know worker {number} any more; what it had in hand is lost, it joins again")
                    continue
                except Left:
                    say("stop requested; left the run")
                return num_done + worker.num_steps
        finally:
            caller.close()
