"""Another user of the machines, who sees all that is public of a job, tries to become one of its ranks."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import cloudpickle
import psutil
import pytest

from tests.system.ports import free_port
from tests.system.processes import Program, plain_environment, within
from tests.system.slurm import SlurmCluster
from tests.unit.cluster import environments as envs
from unisono.cluster.job_secret import with_secret
from unisono.cluster.rendezvous import ports
from unisono.cluster.resolve import resolve
from unisono.cluster.topology import Topology
from unisono.comm import connect
from unisono.comm.control_plane.guests import SPARE_GUESTS
from unisono.comm.control_plane.handshake import MAGIC, NONCE_BYTES
from unisono.comm.control_plane.plain import encode
from unisono.errors import CollectiveTimeout
from unisono.horovod._impl.elastic.driver_service import Service
from unisono.tuning.workers.all_workers import AllWorkers, receive_messages
from unisono.tuning.workers.worker_slots import WorkerSlots

LIMIT_S = 20.0
LATE = str(Path(__file__).parent / "programs" / "horovod_late_rank.py")
TF_CONFIG = {"TF_CONFIG": '{"cluster": {"worker": ["n1:2222", "n2:2222"]}, "task": {"type": "worker", "index": 0}}'}
BY_HAND = {name: value for name, value in envs.own(0).items() if name != "UNISONO_TOKEN"}


def ask_for_place(port: int, key: str, label: bytes, rank: int, size: int) -> bytes:
    """What a hub at this port says to a member that proves `key`; nothing if it hangs up."""
    hello = encode({"rank": rank, "size": size, "left_s": LIMIT_S, "who": "a stranger", "info": {}})
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as sock:
        nonce = secrets.token_bytes(NONCE_BYTES)
        sock.sendall(struct.pack("<Q", len(MAGIC) + NONCE_BYTES) + MAGIC + nonce)
        (length,) = struct.unpack("<Q", sock.recv(8, socket.MSG_WAITALL))
        reply = sock.recv(length, socket.MSG_WAITALL)
        assert reply.startswith(MAGIC)
        theirs = reply[len(MAGIC) : len(MAGIC) + NONCE_BYTES]
        proof = hmac.new(key.encode(), label + b"\n" + port.to_bytes(4, "little") + nonce + theirs + hello, hashlib.sha256)
        sock.sendall(struct.pack("<Q", 32 + len(hello)) + proof.digest() + hello)
        try:
            return sock.recv(65536)
        except ConnectionResetError:
            return b""


def try_to_join(at: Topology) -> None:
    """As rank 1, with all that anybody can compute; every proof must be refused."""
    candidates = ports(at.port, at.token)
    assert within(60.0, lambda: is_open(candidates[0])), candidates
    for label in (b"member", b"member by name", b"hub", b"hub by name"):
        for key in (at.token, "", at.job, str(at.port)):
            assert ask_for_place(candidates[0], key, label, 1, at.world_size) == b"", (label, key)


def is_open(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def in_thread(body: Callable[[], Any], found: list[Any]) -> threading.Thread:
    def run() -> None:
        try:
            found.append(body())
        except Exception as error:  # noqa: BLE001 -- looked at by the test
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


LAUNCHERS = {
    "srun": envs.srun(0),
    "torchrun": envs.torchrun(0),
    "openmpi": envs.open_mpi_in_sbatch(0),
    "intel": envs.intel_mpi(0),
    "tf_config": TF_CONFIG,
    "run --nodes": BY_HAND,
}


def public_part(env: Mapping[str, str]) -> Topology:
    """What anybody can compute of a job, reduced to two ranks on this machine."""
    at = resolve(env)
    return replace(at, address="127.0.0.1", port=free_port(), world_size=2, global_rank=0, local_rank=0, local_size=1)


def with_home(at: Topology, home: Path) -> Topology:
    home.mkdir(exist_ok=True)
    return with_secret(at, {"HOME": str(home)})


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_stranger_who_knows_all_that_is_public_does_not_become_a_rank(launcher: str, tmp_path: Path) -> None:
    """He comes before rank 1, which he does not disturb."""
    public = public_part(LAUNCHERS[launcher])
    own = with_home(public, tmp_path)
    found: list[Any] = []
    first = in_thread(lambda: connect._meet(own, LIMIT_S, None), found)
    try_to_join(public)
    second = in_thread(lambda: connect._meet(replace(own, global_rank=1), LIMIT_S, None), found)
    for thread in (first, second):
        thread.join(LIMIT_S)
    assert len(found) == 2 and not any(isinstance(one, Exception) for one in found), found
    assert all(job.control.known_by_name == () for job in found)
    closing = [in_thread(job.control.close, []) for job in found]
    for thread in closing:
        thread.join(LIMIT_S)


def test_a_stranger_who_listens_in_the_place_of_rank_0_takes_in_nobody(tmp_path: Path) -> None:
    public = public_part(envs.srun(0))
    met: list[Any] = []
    rank_0 = in_thread(lambda: connect._meet(with_home(public, tmp_path / "stranger"), 2.0, None), met)
    with pytest.raises(CollectiveTimeout, match="has the name of this job but not its secret"):
        connect._meet(replace(with_home(public, tmp_path / "user"), global_rank=1), 1.0, None)
    rank_0.join(LIMIT_S)
    assert isinstance(met[0], CollectiveTimeout)


def test_without_a_common_secret_rank_0_says_so_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    public = public_part(envs.srun(0))
    found: list[Any] = []
    ranks = (replace(public, global_rank=rank, no_secret="no home") for rank in (0, 1))
    threads = [in_thread(partial(connect._meet, at, LIMIT_S, None), found) for at in ranks]
    for thread in threads:
        thread.join(LIMIT_S)
    assert sorted(job.control.known_by_name for job in found) == [(), (1,)], found
    assert (
        "rank 1 joined by the public name of this job, as its processes have no common secret: no home." in capsys.readouterr().err
    )
    for thread in [in_thread(job.control.close, []) for job in found]:
        thread.join(LIMIT_S)


@pytest.mark.slurm
def test_a_stranger_in_a_horovod_job_under_slurm_cannot_run_code(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    """Rank 1 comes late, so that there is time to take its place with the numbers of job and step, which squeue shows to all."""
    go, public = tmp_path / "go", tmp_path / "public"
    command = ["srun", "-N2", "-n2", sys.executable, LATE, str(go), str(public)]
    with Program(command, slurm_cluster.environment) as program:
        assert within(60.0, public.exists), program.finish(1.0)
        at = resolve(json.loads(public.read_text()))
        try_to_join(at)
        go.touch()
        done = program.finish(60.0)
    assert done.code == 0, str(done)
    assert done.output.count("objects [0, 1]") == 2, str(done)


class Harm:
    """An object whose pickle runs code where it is opened."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.file,)


def test_objects_without_the_seal_of_the_job_are_not_unpickled(tmp_path: Path) -> None:
    """A stranger who gets bytes into an engine's connections, which ask nobody for a secret."""
    import torch

    from unisono.errors import UsageError
    from unisono.horovod._impl.job.process_state import PROCESS
    from unisono.horovod._impl.torch import object_exchange

    forged = cloudpickle.dumps(Harm(str(tmp_path / "harm")))
    PROCESS.begin()
    try:
        assert object_exchange.allgather_object({"mine": 1}) == [{"mine": 1}]
        for sealed in (forged, bytes(32) + forged):
            with pytest.raises(UsageError, match="were received, but not unpickled"):
                object_exchange._unpickled(torch.frombuffer(bytearray(sealed), dtype=torch.uint8))
    finally:
        PROCESS.end()
    assert not (tmp_path / "harm").exists()


def listening_ports(pids: Sequence[int]) -> set[tuple[str, int]]:
    found = (one for pid in pids for one in psutil.Process(pid).net_connections("tcp") if one.status == psutil.CONN_LISTEN)
    return {("::1" if one.laddr.ip == "::" else one.laddr.ip, one.laddr.port) for one in found}


def test_a_crowd_of_strangers_on_every_port_does_not_end_a_gloo_job(tmp_path: Path) -> None:
    """With few files to open, and a file opened between two sums: what keeps its visitors leaves none for the job. gloo itself
    ends the process then."""
    besieged = str(Path(__file__).parent / "programs" / "besieged.py")
    launcher = Path(sys.executable).with_name("unisono")
    counts = [tmp_path / f"count-{rank}" for rank in (0, 1)]

    def progress() -> int:
        return min(int(count.read_text()) if count.exists() else 0 for count in counts)

    command = [str(launcher), "run", "-n", "2", besieged, str(tmp_path)]
    with Program(command, plain_environment()) as program, ExitStack() as stack:
        assert within(60.0, lambda: program.is_over() or progress() > 0)
        ranks = [one.pid for one in psutil.Process(program.pid).children(recursive=True) if besieged in one.cmdline()]
        ports = listening_ports(ranks)
        assert len(ports) >= 2, "of the hub, and for messages"
        for address in sorted(ports) * 300:
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.setblocking(False)
            sock.connect_ex(address)
        now = progress()
        assert within(30.0, lambda: program.is_over() or progress() > now + 20)
        (tmp_path / "go").touch()
        done = program.finish(30.0)
    assert done.code == 0, str(done)
    assert done.output.count("sums were right") == 2


def test_a_crowd_of_strangers_on_the_port_of_a_search_leaves_files_for_it(tmp_path: Path) -> None:
    """A search under mpirun or srun, whose coordinator listens for the supervisors of other nodes."""
    at = with_home(public_part(envs.srun(0)), tmp_path)
    place = {"node": "n", "gpus": (), "our_gpus": (), "threads": 1}
    before = psutil.Process().num_fds()
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        workers = AllWorkers(cast(WorkerSlots, Mock()), {0: place}, selector, at, "127.0.0.1")
        workers.listen()
        stack.callback(workers.close)
        strangers = []
        for _ in range(100):
            strangers.append(stack.enter_context(socket.create_connection(("127.0.0.1", at.port), LIMIT_S)))
            list(receive_messages(selector, 0.0))
            workers.flush()
        assert within(LIMIT_S, lambda: not list(receive_messages(selector, 0.0)) and is_closed(strangers[0]))
        assert psutil.Process().num_fds() - before <= len(strangers) + SPARE_GUESTS + at.world_size + 4


def is_closed(sock: socket.socket) -> bool:
    sock.settimeout(0.01)
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False


@pytest.mark.parametrize("num_remote", [0, 1])
def test_the_elastic_driver_listens_beyond_this_machine_only_for_workers_elsewhere(num_remote: int) -> None:
    with selectors.DefaultSelector() as selector:
        service = Service(selector, "secret", 2, lambda *_: None)
        try:
            ports = [service.port(everywhere=number < num_remote) for number in range(2)]
            found = {one.laddr.port: one.laddr.ip for one in psutil.Process().net_connections("tcp") if one.laddr.port in ports}
            assert [found[port] == "127.0.0.1" for port in ports] == [number >= num_remote for number in range(2)]
            assert service.port(everywhere=False) == ports[1]
        finally:
            service.close()
