"""Weights that load without Unisono, and weights of others that load here or say why not."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from torch import nn

from unisono.errors import UsageError
from unisono.model.flat import hash_of
from unisono.training.run_folder.weights import initialise, load_weights, save_weights


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 4, bias=False)
        self.decoder = nn.Linear(3, 4, bias=False)
        self.decoder.weight = self.encoder.weight
        self.norm = nn.BatchNorm1d(4)


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def equal(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_plain_torch_reads_tied_weights_and_views_of_one_vector(tmp_path: Path) -> None:
    model, other, file = Tied(), Tied(), tmp_path / "weights.safetensors"
    flat = torch.randn(16)
    model.encoder.weight.data = flat[2:14].view(4, 3)
    digest = save_weights(file, model.state_dict())
    other.load_state_dict(load_file(file))
    assert equal(values(model), values(other))
    tensors, about = load_weights(file)
    assert about == {"format": "pt", "sha256": digest}
    assert hash_of(tensors) == digest == hash_of(model.state_dict())


def test_every_type_shape_and_stride_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    tensors = {
        "bf16": torch.randn(3).bfloat16(),
        "f64": torch.randn(2, 2, dtype=torch.float64),
        "count": torch.tensor(5),
        "empty": torch.zeros(0, 3),
        "mask": torch.tensor([True, False]),
        "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "turned": torch.randn(3, 4).t(),
    }
    save_weights(file, tensors)
    assert equal(load_weights(file)[0], tensors)


def test_equal_weights_give_equal_files(tmp_path: Path) -> None:
    tensors = {name: torch.ones(size) for size, name in enumerate(("b", "a", "d", "c"), 1)}
    for number, names in enumerate(("abcd", "dcba", "badc", "cdab")):
        save_weights(tmp_path / f"{number}.safetensors", {name: tensors[name].clone() for name in names})
    assert len({file.read_bytes() for file in tmp_path.iterdir()}) == 1
    assert load_file(tmp_path / "0.safetensors").keys() == tensors.keys()


def test_writing_again_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    for value in (1.0, 2.0):
        save_weights(file, {"w": torch.full((2,), value)})
    assert load_file(file)["w"].tolist() == [2.0, 2.0]
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.safetensors"]
    with pytest.raises(UsageError, match=r"cannot write .*missing/a.safetensors"):
        save_weights(tmp_path / "missing" / "a.safetensors", {"w": torch.ones(1)})


def test_others_may_read_what_they_may_read_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    save_weights(tmp_path / "a.safetensors", {"w": torch.ones(1)})
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_weights_that_do_not_fit_on_the_disk_leave_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_weights(file, {"w": torch.ones(2)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(UsageError, match=f"cannot write {file}: File too large; free some space"):
            save_weights(file, {"w": torch.ones(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert load_file(file)["w"].tolist() == [1.0, 1.0]
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.safetensors"]


def save_torch(value: Any, file: Path) -> Path:
    torch.save(value, file)
    return file


@pytest.mark.parametrize(
    "wrap", [lambda state: state, lambda state: {"state_dict": state, "epoch": 3}, lambda state: {"model": state}]
)
def test_initialise_from_torch_files(tmp_path: Path, wrap: Any) -> None:
    source, model = Tied(), Tied()
    before = model.encoder.weight
    assert initialise(model, save_torch(wrap(source.state_dict()), tmp_path / "a.pt")).is_exact
    assert equal(values(source), values(model))
    assert model.encoder.weight is before is model.decoder.weight, "in place: views of flat vectors stay views"


def test_a_tied_weight_need_be_in_the_file_once_only(tmp_path: Path) -> None:
    source, model = Tied(), Tied()
    save_model(source, str(tmp_path / "a.safetensors"))
    assert len(load_file(tmp_path / "a.safetensors")) == len(source.state_dict()) - 1
    assert initialise(model, tmp_path / "a.safetensors").is_exact
    assert equal(values(source), values(model))


def test_what_does_not_fit_is_listed_with_the_nearest_names(tmp_path: Path) -> None:
    first, file = nn.Linear(2, 3), tmp_path / "a.safetensors"
    model = nn.Sequential(first, nn.Linear(3, 1))
    before = values(model)
    save_file({"0.weights": torch.ones(3, 2), "0.bias": torch.ones(3), "1.weight": torch.ones(5, 5), "1.bias": torch.ones(1)}, file)
    with pytest.raises(UsageError) as caught:
        initialise(model, file)
    told = str(caught.value)
    assert "1 missing: 0.weight (near: 0.weights)" in told
    assert "1 unexpected: 0.weights" in told
    assert "1 of another shape: 1.weight (5, 5) in the file, (1, 3) in the model" in told
    assert equal(before, values(model)), "nothing is loaded by halves"
    found = initialise(model, file, strict=False)
    assert found.loaded == ("0.bias", "1.bias")
    assert first.bias.tolist() == [1.0, 1.0, 1.0]
    assert torch.equal(before["0.weight"], first.weight)


def test_a_file_with_nothing_for_the_model_is_refused_even_when_not_strict(tmp_path: Path) -> None:
    save_file({"x": torch.ones(1)}, tmp_path / "a.safetensors")
    with pytest.raises(UsageError, match="has no weights of the model"):
        initialise(nn.Linear(1, 1), tmp_path / "a.safetensors", strict=False)


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.99])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_file_cut_short_is_refused(tmp_path: Path, kept: float, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    save_file({"w": torch.ones(1000)}, file) if suffix == ".safetensors" else torch.save({"w": torch.ones(1000)}, file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(UsageError, match=rf"a{suffix} .*cut short"):
        load_weights(file)


class Program:
    def __reduce__(self) -> Any:
        return (print, ("ran",))


def test_a_torch_file_never_runs_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"holds Python objects besides tensors.*state_dict"):
        load_weights(save_torch({"w": Program()}, tmp_path / "a.pt"))
    assert capsys.readouterr().out == ""


def test_no_file_and_no_tensors(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").touch()
    with pytest.raises(UsageError, match=r"there is no weights file .*did you mean .*weights.safetensors"):
        load_weights(tmp_path / "weight.safetensors")
    with pytest.raises(UsageError, match="there is no weights file"):
        load_weights(tmp_path / "no" / "folder.pt")
    with pytest.raises(UsageError, match="no named tensors"):
        load_weights(save_torch([1, 2], tmp_path / "a.pt"))
