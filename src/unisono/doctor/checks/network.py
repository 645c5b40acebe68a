"""Checks which interface each engine uses, how fast it is, and whether a faster one lies idle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from unisono.doctor.checks import links
from unisono.doctor.facts import Facts, Interface, Job, Measurement
from unisono.doctor.finding import FAIL, OK, WARN, Finding, finding_from_error

PORT = 15000
"""An example for messages: the first of those that Unisono takes by itself."""

CHOOSERS: Mapping[str, str] = {
    "OMPI_MCA_btl_tcp_if_include": "Open MPI",
    "UCX_NET_DEVICES": "UCX (below MPI)",
    "FI_TCP_IFACE": "libfabric (below MPI)",
    "NCCL_SOCKET_IFNAME": "NCCL",
}
"""Variables that name an interface, and who reads them."""


def check(job: Job) -> Iterator[Finding]:
    """Yields the interfaces of each node, what gloo, MPI and NCCL choose among them, the engine, and each measured link."""
    for node, ranks in job.nodes.items():
        first = ranks[0]
        yield Finding(OK, "network", links.describe_all(first.interfaces), node=node)
        if len(job.nodes) > 1:
            yield _gloo(node, first, job.ranks[0])
            yield from _libraries(node, first)
    if job.origin:
        yield Finding(OK, "engine", job.origin)
    for measured in job.measurements:
        yield _check_measurement(measured, job)


def _gloo(node: str, facts: Facts, rank_0: Facts) -> Finding:
    """Returns a finding on the interface that gloo and the control plane use: that through which the ranks meet."""
    now = links.interface_in_use(facts)
    if now is None:
        return Finding(OK, "network", f"gloo uses the interface of {facts.address}", node=node)
    fact, better = f"gloo uses {links.describe(now)}", links.faster_interface(facts, now)
    unread = facts.variables.get("GLOO_SOCKET_IFNAME", now.name)
    if better is None and now.name not in unread.split(","):
        fact = f"GLOO_SOCKET_IFNAME={unread} is set but has no effect: {fact}, through which the ranks connected"
        return Finding(WARN, "network", fact, _meet_at(rank_0, unread), node)
    if better is None:
        return Finding(OK, "network", fact, node=node)
    fact = f"{fact}, though {links.describe(better)} is up"
    if better.addresses:
        return Finding(WARN, "network", fact, _meet_at(rank_0, better.name), node)
    remedy = "it has no IP address, so only MPI and NCCL can use it: start with mpirun and mpi4py, or set up an address (IPoIB)"
    return Finding(WARN, "network", fact, remedy, node)


def _meet_at(rank_0: Facts, name: str) -> str:
    """Returns the remedy that lets ranks meet, and send data, through the interface of this name."""
    address = next((one.addresses[0] for one in rank_0.interfaces if one.name == name and one.addresses), "ADDRESS")
    return f"connect through {name}, also for the data: export UNISONO_RENDEZVOUS={address}:{PORT} (rank 0's address there)"


def _libraries(node: str, facts: Facts) -> Iterator[Finding]:
    """Yields findings on the interfaces of MPI and NCCL, which choose for themselves unless variables name one."""
    names = {one.name: one for one in facts.interfaces}
    rdma = [one for one in facts.interfaces if one.kind == "rdma"]
    present = {"MPI": bool(facts.mpi.launcher and facts.mpi.library), "NCCL": bool(facts.our_gpus)}
    for reader in (name for name, there in present.items() if there):
        told = {name: facts.variables[name] for name, who in CHOOSERS.items() if reader in who and name in facts.variables}
        for name, value in told.items():
            yield _check_setting(node, name, value, facts, names)
        if reader == "NCCL" and rdma and facts.variables.get("NCCL_IB_DISABLE", "0") != "0":
            fact = f"NCCL_IB_DISABLE is set, so NCCL does not use {links.describe(rdma[0])}"
            yield Finding(WARN, "network", fact, "unset NCCL_IB_DISABLE", node)
        elif not told:
            choice = f"{links.describe(rdma[0])}, if it was built for it" if rdma else "any interface that reaches the others"
            yield Finding(OK, "network", f"{reader} chooses its interface itself: {choice}", node=node)


def _check_setting(node: str, name: str, value: str, facts: Facts, names: Mapping[str, Interface]) -> Finding:
    """Checks a variable that names interfaces: fails if there is none of that name, warns if a faster one is up."""
    words = [word.lstrip("=").partition(":")[0] for word in value.lstrip("^").split(",")]
    now = [names[word] for word in words if word in names]
    fact = f"{CHOOSERS[name]} follows {name}={value}"
    if not names or value == "all" or value.startswith("^") or "/" in value:  # an exclusion, or a network by its numbers
        return Finding(OK, "network", fact, node=node)
    if not now and not any(known.startswith(tuple(words)) for known in names):
        others = ", ".join(sorted(set(names) - {"lo"})) or "none"
        return Finding(
            FAIL, "network", f"{name}={value} names no interface of this node", f"unset it, or use one of: {others}", node
        )
    better = links.faster_interface(facts, now[0]) if now else None
    if better is not None:
        fact = f"{fact}: {links.describe(now[0])}, though {links.describe(better)} is up"
        return Finding(WARN, "network", fact, f"unset {name}, or set it to {better.name}", node)
    return Finding(OK, "network", fact, node=node)


def _check_measurement(measured: Measurement, job: Job) -> Finding:
    """Returns a measured link as a finding: its speed, or why the measurement failed."""
    nodes = {facts.rank: facts.node for facts in job.ranks}
    left, right = measured.ranks
    if measured.error:
        remedy = "see the other findings, or try engine gloo, which has the fewest requirements (export UNISONO_ENGINE=gloo)"
        level = FAIL if measured.chosen else WARN
        return finding_from_error(
            level, "bandwidth", f"engine {measured.engine}, ranks {left} and {right}: {measured.error}", remedy
        )
    together = job.started or nodes.get(left) == nodes.get(right)
    where = "on one node" if together else f"from {nodes.get(left)} to {nodes.get(right)}"
    speed = f"{measured.gb_per_s:.3g} GB/s, {measured.latency_us:.0f} us"
    return Finding(
        OK,
        "bandwidth",
        f"engine {measured.engine}: {speed} between ranks {left} and {right}, {where}{_interface_of(measured, job)}",
    )


def _interface_of(measured: Measurement, job: Job) -> str:
    """Returns the interface that carried a measurement, in words; empty where that is not known."""
    if measured.engine != "gloo":
        return ""
    ends = [links.interface_in_use(facts) for facts in job.ranks if facts.rank in measured.ranks]
    names = list(dict.fromkeys(one.name for one in ends if one is not None))
    return f", over {' and '.join(names)}" if names else ""
