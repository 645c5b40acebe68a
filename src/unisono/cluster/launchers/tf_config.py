"""Topology by TF_CONFIG, for users of tf.distribute: the chief first, then the workers. Pure.

Unisono has no processes beside its workers: an asynchronous algorithm makes servers of some of them, and every worker
evaluates its share. So parameter servers and evaluators are refused rather than left waiting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from unisono.cluster.rendezvous import host_port, job_token
from unisono.cluster.topology import NotThisLauncher, Overrides, Topology
from unisono.errors import UsageError

KINDS = ("chief", "worker")
"""Kinds of processes that count, in the order of ranks."""

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "ps": "asynchronous algorithms turn some workers into servers; list these hosts under 'worker'",
        "evaluator": "every worker evaluates its share; leave it out",
        "master": "it is called 'chief' now; rename it",
    }
)

EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'


def resolve(env: Mapping[str, str], overrides: Overrides) -> Topology | NotThisLauncher:
    """Returns the topology of this process of TF_CONFIG; the reason if the variable is not set. Raises `UsageError` for a malformed
    value, or kinds of processes that we do not start.
    """
    text = env.get("TF_CONFIG", "").strip()
    if text in ("", "{}"):
        return NotThisLauncher("TF_CONFIG is not set or empty")
    config = _require_object(_parsed_json(text), "it")
    processes = _processes(_require_object(config.get("cluster"), "'cluster'"))
    kind, index = _task_of(_require_object(config.get("task"), "'task'"), processes)
    ranks = [(other, position) for other, addresses in processes.items() for position in range(len(addresses))]
    rank = ranks.index((kind, index))
    hosts = [host for addresses in processes.values() for host, _ in addresses]
    nodes = list(dict.fromkeys(hosts))
    ports = [port for addresses in processes.values() for _, port in addresses]
    return Topology(
        launcher="tf_config",
        global_rank=rank,
        world_size=len(hosts),
        local_rank=hosts[:rank].count(hosts[rank]),
        local_size=hosts.count(hosts[rank]),
        node_rank=nodes.index(hosts[rank]),
        num_nodes=len(nodes),
        address=hosts[0],
        port=overrides.port or ports[0],
        token=job_token("tf_config", json.dumps(processes, sort_keys=True)),
        job=f"TF_CONFIG {hosts[0]}:{ports[0]}",
        task_type=kind,
        task_index=index,
    )


def _parsed_json(text: str) -> object:
    """Returns the value of a JSON text; raises `UsageError` if it is none."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise _malformed(f"it is not JSON ({error})") from None


def _require_object(value: object, what: str) -> dict[str, Any]:
    """Returns the value if it is a JSON object; raises `UsageError` that names `what` otherwise."""
    if not isinstance(value, dict):
        shown = "is missing" if value is None else f"must be an object; received {json.dumps(value)}"
        raise _malformed(f"{what} {shown}")
    return value


def _processes(cluster: dict[str, Any]) -> dict[str, list[tuple[str, int]]]:
    """Returns the addresses of the processes of each kind, in the order of ranks."""
    for kind, addresses in cluster.items():
        if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
            raise _malformed(f"'cluster' {kind!r} must be a list of host:port; received {json.dumps(addresses)}")
        if kind not in KINDS and addresses:
            raise _refused_kind("'cluster' has", kind)
    processes = {
        kind: [host_port(address, f"TF_CONFIG 'cluster' {kind!r}") for address in cluster[kind]]
        for kind in KINDS
        if cluster.get(kind)
    }
    everyone = [address for addresses in processes.values() for address in addresses]
    if not everyone:
        raise _malformed("'cluster' names no worker")
    if len(processes.get("chief", [])) > 1:
        raise _malformed(f"'cluster' has {len(processes['chief'])} chiefs; only one is allowed")
    twice = next((address for address in everyone if everyone.count(address) > 1), None)
    if twice:
        raise _malformed(f"'cluster' names {twice[0]}:{twice[1]} more than once")
    return processes


def _task_of(task: dict[str, Any], processes: dict[str, list[tuple[str, int]]]) -> tuple[str, int]:
    """Returns kind and index of this process; raises `UsageError` if 'cluster' does not list it."""
    kind, index = task.get("type"), task.get("index")
    if not isinstance(kind, str):
        raise _malformed(f"'task' 'type' must be one of {', '.join(KINDS)}; received {json.dumps(kind)}")
    if kind not in KINDS:
        raise _refused_kind("'task' says", kind)
    if isinstance(index, str) and index.isascii() and index.isdigit():  # some schedulers write it as text
        index = int(index[:9])
    if not isinstance(index, int) or isinstance(index, bool):
        raise _malformed(f"'task' 'index' must be a whole number; received {json.dumps(index)}")
    count = len(processes.get(kind, []))
    if not 0 <= index < count:
        raise _malformed(f"'task' is {kind} {index} but 'cluster' lists {count} of this type")
    return kind, index


def _refused_kind(where: str, kind: str) -> UsageError:
    """Returns the error for a kind of process that Unisono does not start."""
    why = REFUSED.get(kind, f"only {' and '.join(KINDS)} are known; rename it")
    return UsageError(f"TF_CONFIG {where} {kind!r}, which Unisono does not start: {why} (environment)")


def _malformed(why: str) -> UsageError:
    """Returns the error for a malformed TF_CONFIG."""
    return UsageError(f"TF_CONFIG is malformed: {why} (environment); unset it or write e.g. {EXAMPLE}")
