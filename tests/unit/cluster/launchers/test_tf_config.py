"""TF_CONFIG: chief and workers count; parameter servers, evaluators and malformed texts are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from unisono.cluster.launchers import tf_config
from unisono.cluster.topology import NotThisLauncher, Overrides, Topology
from unisono.errors import UsageError

NONE = Overrides()
CLUSTER = {"worker": ["n1:2222", "n2:2222", "n2:2223"], "chief": ["n1:2221"]}


def env(cluster: object = CLUSTER, kind: object = "worker", index: object = 0) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def topology(variables: dict[str, str], overrides: Overrides = NONE) -> Topology:
    answer = tf_config.resolve(variables, overrides)
    assert isinstance(answer, Topology), answer
    return answer


def test_the_chief_comes_first_and_hosts_are_nodes() -> None:
    found = [topology(env()) if t is None else topology(env(kind=t[0], index=t[1])) for t in (("chief", 0), None, ("worker", 1))]
    found.append(topology(env(index="2")))
    assert [(t.global_rank, t.local_rank, t.local_size, t.node_rank) for t in found] == [
        (0, 0, 2, 0),
        (1, 1, 2, 0),
        (2, 0, 2, 1),
        (3, 1, 2, 1),
    ]
    assert [(t.task_type, t.task_index) for t in found] == [("chief", 0), ("worker", 0), ("worker", 1), ("worker", 2)]
    assert {(t.world_size, t.num_nodes, t.address, t.port) for t in found} == {(4, 2, "n1", 2221)}
    assert len({t.token for t in found}) == 1


def test_workers_alone_are_enough() -> None:
    found = topology(env({"worker": ["[fe80::1]:2222"], "ps": []}))
    assert (found.world_size, found.address, found.port) == (1, "fe80::1", 2222)


def test_the_port_can_be_given() -> None:
    assert topology(env(), Overrides(port=9000)).port == 9000


def test_another_cluster_has_another_token() -> None:
    assert topology(env()).token != topology(env({"worker": ["n1:2222", "n2:2222"]})).token


@pytest.mark.parametrize("text", ["", " ", "{}"])
def test_an_empty_text_is_none(text: str) -> None:
    assert isinstance(tf_config.resolve({"TF_CONFIG": text}, NONE), NotThisLauncher)
    assert isinstance(tf_config.resolve({}, NONE), NotThisLauncher)


@pytest.mark.parametrize(
    ("variables", "remedy"),
    [
        (env({**CLUSTER, "ps": ["n3:2222"]}), "list these hosts under 'worker'"),
        (env(kind="ps"), "list these hosts under 'worker'"),
        (env({**CLUSTER, "evaluator": ["n3:2222"]}), "leave it out"),
        (env(kind="evaluator"), "leave it out"),
        (env({"master": ["n1:1"], "worker": ["n1:2"]}), "rename it"),
        (env({**CLUSTER, "gardener": ["n1:1"]}), "only chief and worker are known"),
    ],
)
def test_other_kinds_are_refused_with_the_reason(variables: dict[str, str], remedy: str) -> None:
    with pytest.raises(UsageError, match=f"which Unisono does not start: .*{remedy}"):
        tf_config.resolve(variables, NONE)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("worker 0", "it is not JSON"),
        ('{"cluster": ', "it is not JSON"),
        ("[1]", r"it must be an object; received \[1\]"),
        ('{"task": {"type": "worker", "index": 0}}', "'cluster' is missing"),
        ('{"cluster": {"worker": ["a:1"]}}', "'task' is missing"),
        ('{"cluster": [], "task": {}}', r"'cluster' must be an object; received \[\]"),
        (env({}), "'cluster' names no worker"),
        (env({"worker": []}), "'cluster' names no worker"),
        (env({"worker": "n1:2222"}), "'cluster' 'worker' must be a list of host:port"),
        (env({"worker": [1]}), "'cluster' 'worker' must be a list of host:port"),
        (env({"worker": ["n1:1", "n1:1"]}), "names n1:1 more than once"),
        (env({"chief": ["n1:1", "n1:2"]}, "chief"), "'cluster' has 2 chiefs"),
        (env(index=3), "'task' is worker 3 but 'cluster' lists 3 of"),
        (env(index=-1), "'task' is worker -1"),
        (env({"worker": ["n1:1"]}, "chief"), "'task' is chief 0 but 'cluster' lists 0 of"),
        (env(index=None), "'task' 'index' must be a whole number; received null"),
        (env(index=True), "'task' 'index' must be a whole number; received true"),
        (env(index=1.5), "'task' 'index' must be a whole number; received 1.5"),
        (env(kind=None), "'task' 'type' must be one of chief, worker; received null"),
    ],
)
def test_malformed_texts_are_refused(text: Any, fact: str) -> None:
    variables = {"TF_CONFIG": text} if isinstance(text, str) else text
    with pytest.raises(UsageError, match=f"TF_CONFIG is malformed: .*{fact}.*write e.g."):
        tf_config.resolve(variables, NONE)


@pytest.mark.parametrize("address", ["n1", "n1:", "n1:port", "n1:0", "n1:70000", ":22", "::1:22", "[n1]:22", "[]:22", "a b:22", ""])
def test_addresses_must_be_host_and_port(address: str) -> None:
    with pytest.raises(UsageError, match="TF_CONFIG 'cluster' 'worker' must be host:port"):
        tf_config.resolve(env({"worker": [address]}), NONE)
