"""Rendezvous: rank 0 listens on the first free port of a sequence that all ranks know, and the others connect to it there."""

from __future__ import annotations

import errno
import ipaddress
import itertools
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from unisono.comm.control_plane.channel import AUTHENTICATED_LIMIT_BYTES, Channel, set_tcp_options
from unisono.comm.control_plane.handshake import HandshakeFailed, authenticate
from unisono.comm.control_plane.job_pass import Pass
from unisono.errors import CollectiveTimeout, CommError, UsageError

CONNECT_WAIT_S = 1.0
"""Time in which a host must accept before the next port is tried; it may drop packets rather than refuse."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.25
RESOLVE_WAIT_S = 10.0
"""Time for which a name server may be unavailable before the name counts as unknown."""
HUB_GRACE_S = 2.0
"""The hub ends the wait of all members at the same time; a member waits a little longer for its message."""


def listen(address: str, ports: Sequence[int], backlog: int) -> socket.socket:
    """Local: returns a listening socket on the first free port; on loopback alone where `address` is one, otherwise on all
    interfaces.

    A host name is not looked up: many hosts resolve their own name to loopback, where no other node would get through.
    """
    loopback = _loopback_of(address)
    for port in ports:
        try:
            if loopback is not None:
                family = socket.AF_INET6 if ":" in loopback else socket.AF_INET
                listener = socket.create_server((loopback, port), family=family, backlog=backlog)
            else:
                listener = _on_all_interfaces(port, backlog)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                continue
            raise UsageError(
                f"rank 0 cannot listen on {loopback or 'any interface'}, port {port}: {error.strerror}; "
                "give an address of this node (--rendezvous host:port)"
            ) from error
        listener.setblocking(False)
        return listener
    raise UsageError(
        f"rank 0 found {show_ports(ports)} on {socket.gethostname()} all taken or forbidden; "
        "give another first port (--rendezvous host:port)"
    )


def connect_to_hub(
    rank: int,
    address: str,
    ports: Sequence[int],
    own: Pass,
    hello: Mapping[str, Any],
    deadline: float,
    timeout_s: float,
    job: str = "",
    attend: Callable[[], None] | None = None,
) -> Channel:
    """Blocking: returns an authenticated connection to the hub of this job. Tries the ports again and again until the deadline."""
    met: dict[int, str] = {}
    pause_s = FIRST_PAUSE_S
    resolve_by = min(deadline, monotonic() + RESOLVE_WAIT_S)
    # Rounds grow from the first port alone to all of them: rank 0 most likely has one of the first, and where packets are
    # dropped rather than refused, a round over all ports takes a minute.
    lengths = itertools.cycle([2**power for power in range((len(ports) - 1).bit_length())] + [len(ports)])
    for length in lengths:
        for family, target in _resolve_addresses(rank, address, resolve_by):
            for port in ports[:length]:
                if attend is not None:
                    attend()  # not once for each round: a long one would keep us from hearing that nobody will come
                channel = _try_port(family, (target[0], port, *target[2:]), own, hello, deadline, met)
                if channel is not None:
                    return channel
                if monotonic() >= deadline:
                    break
        left_s = deadline - monotonic()
        if left_s <= 0:
            raise CollectiveTimeout([0], _not_found_message(rank, named_job(job), address, ports, timeout_s, met))
        time.sleep(min(pause_s, left_s))  # nothing tells when a port begins to listen
        pause_s = min(1.5 * pause_s, LONGEST_PAUSE_S)
    raise AssertionError("this loop never ends")


def is_loopback(address: str) -> bool:
    """Whether a numeric address reaches this node only."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def on_one_machine(here: str, there: str) -> bool:
    """Whether both ends of a connection, given as numeric addresses, are on this machine: the other may have chosen any of its
    addresses, and only those of this machine can be bound here."""
    if here == there or is_loopback(plain_address(there)):
        return True
    try:
        with socket.socket(socket.AF_INET6 if ":" in there else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((there, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


def plain_address(address: str) -> str:
    """Returns a numeric address without the mapping that a socket for both families gives to IPv4."""
    return address.removeprefix("::ffff:") if "." in address else address


def named_job(job: str) -> str:
    """Returns 'job train' for messages, or 'this job' where it has no name."""
    return f"job {job!r}" if job else "this job"


def show_ports(ports: Sequence[int]) -> str:
    """Returns text for messages: 'port 29500' or 'ports 29500-29515, 30100'."""
    runs: list[list[int]] = []
    for port in sorted(ports):
        if runs and port == runs[-1][-1] + 1:
            runs[-1][1:] = [port]
        else:
            runs.append([port])
    return f"port{'s' if len(ports) != 1 else ''} " + ", ".join("-".join(map(str, run)) for run in runs)


def _loopback_of(address: str) -> str | None:
    """Returns the numeric loopback address that `address` means; None where it is another address or a name."""
    if address == "localhost":
        return "127.0.0.1"
    try:
        return address if is_loopback(address) else None
    except ValueError:  # a name
        return None


def _on_all_interfaces(port: int, backlog: int) -> socket.socket:
    """Returns a socket that listens on all interfaces, for IPv6 and IPv4 where the system can."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    return socket.create_server(("", port), backlog=backlog)


def _resolve_addresses(rank: int, address: str, resolve_by: float) -> list[tuple[int, Any]]:
    """Returns (family, address) of all addresses of a host; none if the name server does not answer yet. Raises `UsageError` for an
    unknown name.
    """
    try:
        found = socket.getaddrinfo(_loopback_of(address) or address, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN and monotonic() < resolve_by:  # the name server does not answer now
            return []
        raise UsageError(
            f"host name {address!r} of rank 0 does not resolve on {socket.gethostname()} (rank {rank}): {error.strerror}; "
            "give a host name or an IP address that all nodes can reach (--rendezvous host:port)"
        ) from error
    return [(family, target) for family, _, _, _, target in found]


def _try_port(
    family: int, target: tuple[Any, ...], own: Pass, hello: Mapping[str, Any], deadline: float, met: dict[int, str]
) -> Channel | None:
    """Makes one attempt to connect; what it met is noted for the error message."""
    port = target[1]
    sock = socket.socket(family, socket.SOCK_STREAM)
    taken = False
    try:
        sock.settimeout(max(0.01, min(CONNECT_WAIT_S, deadline - monotonic())))
        sock.connect(target)
        if sock.getsockname() == sock.getpeername():
            # Where nobody listens, the kernel may by chance choose the same port for our end, and we would meet ourselves.
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        set_tcp_options(sock)
        channel = Channel(sock)
        is_here = on_one_machine(sock.getsockname()[0], sock.getpeername()[0])
        answer = authenticate(channel, own, is_here, port, hello, deadline, deadline + HUB_GRACE_S)
        match answer:
            case ("joined",):
                channel.limit_bytes = AUTHENTICATED_LIMIT_BYTES
                taken = True
                return channel
            case ("refused", str(text)):
                raise UsageError(text)
            case ("later", str(text)):
                met[port] = text
            case _:
                raise CommError(
                    f"rank 0 at port {port} sent an invalid answer; check that all ranks run the same version of unisono"
                )
    except (HandshakeFailed, EOFError, OSError) as error:
        text = getattr(error, "strerror", None) or str(error)
        if monotonic() < deadline:
            met[port] = text
        else:  # cut short, so what was met before says more
            met.setdefault(port, text)
    finally:
        if not taken:
            sock.close()
    return None


def _not_found_message(rank: int, job: str, address: str, ports: Sequence[int], timeout_s: float, met: dict[int, str]) -> str:
    """Returns the message that no rank 0 was found in time, with what was met at each port."""
    by_outcome: dict[str, list[int]] = {}
    for port, outcome in met.items():
        by_outcome.setdefault(outcome, []).append(port)
    seen = "; ".join(f"{show_ports(at)}: {outcome}" for outcome, at in by_outcome.items()) or "no name server answered"
    return (
        f"rank {rank} found no rank 0 of {job} at {address}, {show_ports(ports)}, within {timeout_s:g} s ({seen}); "
        f"check that rank 0 runs and that {socket.gethostname()} reaches {address} (firewall, interface), "
        "or give another address of its node (--rendezvous host:port)"
    )
