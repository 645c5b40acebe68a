"""Strangers at the ports of a job: what they send, how they behave, and how many come."""

from __future__ import annotations

import os
import pickle
import random
import secrets
import selectors
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

import psutil

from unisono.comm.control_plane.handshake import MAGIC, NONCE_BYTES, PROOF_BYTES
from unisono.comm.control_plane.plain import encode

NUM_ATTACKS = 200
"""On each port."""
AT_ONCE = 20
"""Of a port that begin together."""
CONNECT_S = 0.3
OF_SLURM = ("srun", "slurmstepd")
"""Programs whose ports are not ours to guard: srun, which SLURM wrote, crashes at junk."""
Address = tuple[str, int]


class Harm:
    """An object whose pickle makes a folder where it is opened."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self.folder,)


def messages(draw: random.Random, harm: str) -> Mapping[str, bytes]:
    """What strangers say: nothing, junk, halves and wholes of greetings, lengths that no memory holds, other protocols."""
    greeting = struct.pack("<Q", len(MAGIC) + NONCE_BYTES) + MAGIC + draw.randbytes(NONCE_BYTES)
    hello = encode({"rank": draw.randrange(3), "size": 2, "left_s": 9.0, "who": "a stranger", "info": {}})
    proof = struct.pack("<Q", PROOF_BYTES + len(hello)) + draw.randbytes(PROOF_BYTES) + hello
    pickled = pickle.dumps(Harm(harm))
    return {
        "silence": b"",
        "junk": draw.randbytes(draw.randrange(1, 5000)),
        "half a greeting": greeting[: draw.randrange(1, len(greeting))],
        "a greeting": greeting,
        "a wrong proof": greeting + proof,
        "a proof without a greeting": proof,
        "a huge length": struct.pack("<Q", 1 << 62) + bytes(1000),
        "a large length": struct.pack("<Q", 1 << 40) + draw.randbytes(100),
        "a negative length": struct.pack("<q", -1) + draw.randbytes(100),
        "a short huge length": struct.pack(">I", 0xFFFFFFFF) + bytes(1000),
        "a length of nothing": bytes(8) * 20,
        "a pickle": pickled,
        "a pickle with its length": struct.pack("<Q", len(pickled)) + pickled,
        "a pickle with its length, reversed": struct.pack(">I", len(pickled)) + pickled,
        "a browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(500),
        "ZeroMQ without keys": b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48) + b"\x04\x19\x05READY\x0bSocket-Type",
        "half of ZeroMQ": b"\xff" + bytes(8) + b"\x7f\x03",
        "ZeroMQ with wrong keys": b"\xff"
        + bytes(8)
        + b"\x7f\x03\x00CURVE"
        + bytes(47)
        + b"\x04\xc8\x05HELLO"
        + draw.randbytes(194),
        "JSON": b'{"rank": 1, "size": 2}\n' * 50,
    }


def listening_ports(mark: str) -> dict[Address, str]:
    """Local: the addresses at which the processes with this variable in their environment listen, and which process each is of."""
    found: dict[Address, str] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if mark not in process.environ() or process.name() in OF_SLURM:
                continue
            for one in process.net_connections("tcp"):
                if one.status == psutil.CONN_LISTEN:
                    here = {"::": "::1", "0.0.0.0": "127.0.0.1"}.get(one.laddr.ip, one.laddr.ip)
                    found[here, one.laddr.port] = " ".join(process.cmdline())[-120:]
    return found


def besiege(mark: str, seed: int, harm: str, is_over: Callable[[], bool]) -> Mapping[Address, str]:
    """Local, blocking: so many attacks on every port of a job, also on those that it opens meanwhile. All connections that the
    job leaves open stay open until the end. Returns the ports."""
    draw, num, seen = random.Random(seed), Counter[Address](), dict[Address, str]()
    with ExitStack() as held:
        selector = held.enter_context(selectors.DefaultSelector())
        slow: list[tuple[socket.socket, bytes]] = []
        while not is_over():
            ports = listening_ports(mark)
            seen |= ports
            if not (attacked := [address for address in sorted(ports) if num[address] < NUM_ATTACKS]):
                break
            for address in attacked * AT_ONCE:
                num[address] += 1
                sock = held.enter_context(socket.socket(_family(address), socket.SOCK_STREAM))
                sock.setblocking(False)
                sock.connect_ex(address)
                selector.register(sock, selectors.EVENT_WRITE)
            for key, _ in _writable(selector):
                assert isinstance(key.fileobj, socket.socket)
                _act(draw, key.fileobj, harm, slow)
            for key in tuple(selector.get_map().values()):
                selector.unregister(key.fileobj)
            slow = [(sock, rest[1:]) for sock, rest in slow if rest and _send(sock, rest[:1])]
    return seen


def _family(address: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET


def _writable(selector: selectors.BaseSelector) -> Iterator[tuple[selectors.SelectorKey, int]]:
    """Yields the connections that stand, each once, until no more come."""
    while ready := selector.select(CONNECT_S) if selector.get_map() else []:
        for key, events in ready:
            selector.unregister(key.fileobj)
            yield key, events


def _act(draw: random.Random, sock: socket.socket, harm: str, slow: list[tuple[socket.socket, bytes]]) -> None:
    """Says something, and stays, goes, goes rudely, or says it byte by byte."""
    said = draw.choice(list(messages(draw, harm).values()))
    how = draw.choice(("stay", "stay", "leave", "half", "reset", "slow"))
    if how == "slow":
        slow.append((sock, said))
        return
    _send(sock, said)
    with suppress(OSError):
        if how == "half":
            sock.shutdown(socket.SHUT_WR)
        if how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how in ("leave", "reset"):
        sock.close()


def _send(sock: socket.socket, data: bytes) -> bool:
    try:
        sock.send(data)
    except BlockingIOError:
        pass
    except OSError:
        return False
    return True


@contextmanager
def marked(environment: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """A variable by whose name the processes of one job are found, whoever starts them, and the environment with it."""
    mark = f"BESIEGED_{secrets.token_hex(8)}"
    yield mark, {**environment, mark: "1"}


def with_few_files(command: Sequence[str]) -> list[str]:
    """Pure: the command in a shell whose processes may open 256 files each."""
    return ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", *command]
