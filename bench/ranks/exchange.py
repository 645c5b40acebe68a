"""A rank of Unisono's exchange, started by `unisono run` or mpirun: `... SOCKET GROUP mapped|plain|zmq [CONNECTION_FILE]`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import unisono as un
from bench.ranks.serving import Ends, Serving
from bench.ranks.slot import attend
from unisono.comm.exchange.base import Caller, Server
from unisono.comm.exchange.over_comm import MessageServer, open_exchange
from unisono.comm.exchange.zmq_caller import ZmqCaller
from unisono.comm.exchange.zmq_server import ZmqServer

LIMIT_S = 120.0


class UnisonoEnds(Ends):
    def __init__(self, end: Server | Caller, comm: un.Communicator) -> None:
        self._end = end
        self._comm = comm

    def call(self, vector: Tensor) -> Tensor:
        assert isinstance(self._end, Caller)
        answered = self._end.call(0, vector).vector
        assert answered is not None
        return answered

    def receive(self) -> tuple[int, Tensor]:
        assert isinstance(self._end, Server)
        request = None
        while request is None:
            request = self._end.receive(LIMIT_S)
        assert request.vector is not None
        return request.caller, request.vector

    def answer(self, worker: int, centre: Tensor) -> None:
        assert isinstance(self._end, Server)
        self._end.reply(worker, 0, centre)

    def close(self) -> None:
        if isinstance(self._end, Caller):
            self._end.close()
        self._comm.barrier()
        self._end.close()


def over_messages(comm: un.Communicator, mapped: bool, numel: int) -> tuple[Ends, Tensor]:
    """Collective: over the communicator; a vector in memory from `empty` or in ordinary memory."""
    end = open_exchange(comm, mapped_bytes=4 * numel if mapped else 0)
    if isinstance(end, MessageServer):
        return UnisonoEnds(end, comm), torch.empty(numel)
    return UnisonoEnds(end[0], comm), end[0].empty(numel)


def over_zmq(comm: un.Communicator, connection_file: Path, numel: int) -> tuple[Ends, Tensor]:
    """Collective: over ZeroMQ, encrypted as always."""
    if comm.rank == 0:
        server = ZmqServer(connection_file, max_vector_bytes=4 * numel, say=print)
        server.open()
        comm.barrier()
        while server.next_number < comm.size - 1:  # they join
            server.receive(0.01)
        return UnisonoEnds(server, comm), torch.empty(numel)
    comm.barrier()  # the connection file is that of this server, not of the one before
    caller = ZmqCaller(connection_file, say=print)
    caller.join(LIMIT_S)
    return UnisonoEnds(caller, comm), caller.empty(numel)


def main() -> None:
    with un.connect(quiet=True) as comm:
        how = sys.argv[3]
        opened: Callable[[int], tuple[Ends, Tensor]] = (
            partial(over_zmq, comm, Path(sys.argv[4])) if how == "zmq" else partial(over_messages, comm, how == "mapped")
        )
        versions = {"unisono": un.__version__, "torch": torch.__version__, "how": comm.origin}
        attend(comm.rank, comm.size, versions, Serving(comm.rank, comm.size, opened).actions())


if __name__ == "__main__":
    main()
