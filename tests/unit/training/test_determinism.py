"""The conditions of the same bits: set and given back, recorded, compared; operations that cannot keep them are named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from unisono.errors import UsageError
from unisono.training.determinism import DESCRIPTIONS, SWITCHES, conditions, describe_changes, explain_errors, set_switches

CPU = torch.device("cpu")


def switches() -> dict[str, Any]:
    return {name: switch.read() for name, switch in SWITCHES.items()}


NEEDED = {name: switch.needed for name, switch in SWITCHES.items()}


@pytest.fixture
def other_settings() -> Iterator[dict[str, Any]]:
    """A process whose user has set everything otherwise."""
    before = switches()
    others = {"deterministic_algorithms": 1, **dict.fromkeys((name for name in SWITCHES if name.endswith("precision")), "tf32")}
    for name, switch in SWITCHES.items():
        switch.write(others.get(name, not switch.needed))
    yield switches()
    for name, switch in SWITCHES.items():
        switch.write(before[name])


def test_all_is_set_within_and_as_it_was_afterwards(other_settings: dict[str, Any]) -> None:
    assert not [name for name in NEEDED if other_settings[name] == NEEDED[name]], "the fixture sets all otherwise"
    with set_switches(CPU):
        assert switches() == NEEDED
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert switches() == other_settings
    with pytest.raises(KeyError), set_switches(CPU):
        raise KeyError
    assert switches() == other_settings


def test_on_a_gpu_the_workspace_of_cublas_must_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = switches()
    for value in (None, ":0:0"):
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
        if value is not None:
            monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
        with (
            pytest.raises(UsageError, match=rf"CUBLAS_WORKSPACE_CONFIG must be :4096:8 or :16:8; it is {value or 'not set'}"),
            set_switches(torch.device("cuda", 0)),
        ):
            pytest.fail("refused before")
    assert switches() == before
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with set_switches(torch.device("cuda", 0)):
        assert switches() == NEEDED


def test_an_operation_without_a_deterministic_version_is_named() -> None:
    pooled, places = torch.nn.functional.max_pool2d(torch.rand(1, 1, 4, 4), 2, return_indices=True)
    with (
        pytest.raises(
            UsageError, match=r"^max_unpooling2d\w*, .* has no deterministic version.*another operation.*leave --shards out"
        ),
        set_switches(CPU),
        explain_errors(),
    ):
        torch.nn.functional.max_unpool2d(pooled, places, (2, 2))
    with explain_errors():
        torch.nn.functional.max_unpool2d(pooled, places, (2, 2))


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), explain_errors():
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_conditions_are_plain_and_of_this_process() -> None:
    with set_switches(CPU):
        found = conditions(CPU)
    assert json.loads(json.dumps(found)) == found
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert {name: found[name] for name in SWITCHES} == NEEDED
    assert (found["rounding"], found["flush_denormals"], found["device"]) == ("nearest", False, "cpu")
    assert found["cpu"]
    assert found["torch_build"]
    assert set(found) <= {*DESCRIPTIONS, "cpu_name"}
    assert conditions(CPU)["deterministic_algorithms"] == 0, "as they are, not as they should be"


HERE: Mapping[str, Any] = {
    **dict.fromkeys(DESCRIPTIONS, "a"),
    "portable": None,
    "cpu": "GenuineIntel 6 106",
    "cpu_name": "Ice Lake",
    "cpu_vendor": "GenuineIntel",
    "cpu_has_fma": True,
    "cpu_capability": "AVX512",
}


def test_nothing_is_broken_by_the_same() -> None:
    assert describe_changes(HERE, HERE) == []
    assert describe_changes(HERE, {**HERE, "cpu_name": "the same with another name"}) == []
    assert describe_changes({}, HERE) == [], "one that knows nothing"
    assert describe_changes({**HERE, "numpy": None}, HERE) == [], "not loaded there"


@pytest.mark.parametrize("name", [name for name in DESCRIPTIONS if name not in ("cpu", "cpu_vendor", "cpu_has_fma", "portable")])
def test_each_condition_counts(name: str) -> None:
    (sentence,) = describe_changes({**HERE, name: "b"}, HERE)
    assert sentence == f"{DESCRIPTIONS[name]} b before, {HERE[name]} now"


def test_another_cpu_counts_unless_both_are_capped_alike() -> None:
    other = {**HERE, "cpu": "GenuineIntel 6 85", "cpu_name": "Cascade Lake"}
    assert describe_changes(other, HERE) == ["the CPU Cascade Lake (GenuineIntel 6 85) before, Ice Lake (GenuineIntel 6 106) now"]
    assert describe_changes({**other, "portable": "avx2"}, {**HERE, "portable": "avx2"}) == []
    sentences = describe_changes({**other, "portable": "avx2"}, HERE)
    assert [sentence.split(" before")[0] for sentence in sentences] == [
        "--portable avx2",
        "the CPU Cascade Lake (GenuineIntel 6 85)",
    ]
    assert describe_changes({**other, "portable": "avx2"}, {**HERE, "portable": "baseline"})


def test_fma_and_the_maker_count_where_the_cpu_does_not() -> None:
    here = {**HERE, "portable": "baseline"}
    old = {**here, "cpu": "GenuineIntel 6 26", "cpu_has_fma": False}
    assert describe_changes(old, here) == ["whether the CPU has FMA False before, True now"]
    other = {**here, "cpu": "AuthenticAMD 25 1", "cpu_vendor": "AuthenticAMD"}
    assert describe_changes(other, here) == ["the maker of the CPU AuthenticAMD before, GenuineIntel now"]


def test_another_version_is_reported_once() -> None:
    assert describe_changes({**HERE, "torch": "2.9.0", "torch_build": "b"}, HERE) == ["PyTorch 2.9.0 before, a now"]
