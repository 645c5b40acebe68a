"""Workers that join, leave and die: the join info in the run directory, and how they join with it (`unisono join RUN`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from time import monotonic, sleep

from unisono.algorithms.server.protocol import most_numbers
from unisono.algorithms.server.server_algorithm import ServerAlgorithm
from unisono.cluster.machine.worker_threads import set_threads
from unisono.comm.exchange.base import UnknownWorker
from unisono.comm.exchange.zmq_caller import ZmqCaller
from unisono.comm.single_process import single_process_communicator
from unisono.data.data_differences import REMEDY, Fingerprint, describe_other_data
from unisono.data.fingerprint import fingerprints
from unisono.errors import UsageError
from unisono.stopping.stop_request import StopRequest
from unisono.task.train_config import TrainConfig
from unisono.training.prepare import prepare
from unisono.training.server.server_parts import WorkerMaker, like, replica_of
from unisono.training.server.server_trainer import CONNECTION_FILE
from unisono.training.server.worker_connection import WorkerConnection, WorkerLeft
from unisono.training.training_parts import EarlierAttempt

JOIN_FILE = "join.json"
"""Join info: what a worker must know of the training."""
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
SAMPLES = "samples"
"""Beside the configuration: the fingerprints of the data."""
POLL_S = 0.2

Say = Callable[[str], object]


def write_join_info(directory: Path, config: TrainConfig, samples: Mapping[str, Fingerprint]) -> None:
    """Local: writes what workers need to join into the run directory, before the server accepts any. `samples`: the fingerprints
    of the server's data, which are to be theirs."""
    held = {one.name: getattr(config, one.name) for one in fields(config) if one.name not in NOT_FOR_WORKERS}
    held["task_file"] = str(Path(config.task_file).resolve())
    if config.init_from is not None:  # of the weights that do not learn, which no reply brings
        held["init_from"] = str(Path(config.init_from).resolve())
    held[SAMPLES] = samples
    try:
        text = json.dumps(held, indent=1)
    except TypeError as error:
        raise UsageError(
            f"the changes of the task (--set) cannot be sent to workers that join: {error}; use plain values"
        ) from error
    draft = directory / f".{JOIN_FILE}"
    draft.write_text(text)
    draft.replace(directory / JOIN_FILE)


def read_join_info(directory: Path, wait_s: float, is_enough: Callable[[], bool]) -> tuple[TrainConfig, Mapping[str, Fingerprint]]:
    """Local, blocking: the configuration with which to join, and the fingerprints of the data; waits up to `wait_s` for a server
    that is about to start. Raises `WorkerLeft` once `is_enough` is true."""
    path, until = directory / JOIN_FILE, monotonic() + wait_s
    while not path.exists():
        if is_enough():
            raise WorkerLeft
        if monotonic() >= until:
            raise UsageError(
                f"there is no {path}, so no server has started there; start one: unisono train TASK.py --elastic W "
                f"--algorithm gem --out {directory}"
            )
        sleep(POLL_S)
    try:
        held = json.loads(path.read_text())
        samples = held.pop(SAMPLES)
        return TrainConfig(**held, out=str(directory)), samples
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} is damaged ({error}); start the server again with --fresh") from error


def join(directory: Path, *, say: Say, threads: int | None = None, device: str = "auto", wait_s: float = 0.0) -> int:
    """Local, blocking: works as one worker until the training is over or a stop of this process is requested. Returns how many
    batches it has done."""
    with StopRequest() as stop:
        try:
            config, samples = read_join_info(directory, wait_s, stop.requested)
        except WorkerLeft:
            return 0
        set_threads(threads)
        comm = single_process_communicator()
        parts = prepare(replace(config, device=device), comm, None, None, EarlierAttempt()).parts
        if other := describe_other_data(samples, fingerprints(parts.splits.parts())):
            raise UsageError(f"this worker holds other data than the server: {other}; {REMEDY}")
        assert isinstance(parts.algorithm, ServerAlgorithm)
        replica = replica_of(parts.adapter, comm)
        workers = WorkerMaker(parts.algorithm, replica, parts.loader, parts.settings, parts.task.seed)
        start = replica.copy_worker()
        caller = ZmqCaller(directory / CONNECTION_FILE, say=say)
        num_done = 0
        try:
            while True:
                number = caller.join()
                say(f"joined as worker {number}")
                connection = WorkerConnection(
                    comm, caller, like(replica), most_numbers(replica.num_sums, replica.num_tensors), stop.requested
                )
                worker = workers.make(connection.out())
                try:
                    connection.drive(worker.run())
                except UnknownWorker:
                    num_done += worker.num_steps
                    replica.reset(start)
                    say(
                        f"warning: the server no longer knows worker {number}; its unfinished batches are lost here, and it "
                        "joins again"
                    )
                    continue
                except WorkerLeft:
                    say("stop requested; left the run")
                return num_done + worker.num_steps
        finally:
            caller.close()
