"""A server that doubles vectors; calls of kind 9 it never answers. Arguments: connection file, first number of its workers."""

from __future__ import annotations

import sys
from pathlib import Path

from unisono.comm.exchange.zmq_server import ZmqServer

server = ZmqServer(Path(sys.argv[1]), max_vector_bytes=1 << 20, first_number=int(sys.argv[2]), silence_s=10.0, say=print)
server.open()
while True:
    request = server.receive()
    if request is not None and request.kind != 9:
        server.reply(request.caller, request.kind, None if request.vector is None else request.vector * 2, request.tail)
