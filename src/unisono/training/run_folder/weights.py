"""Weights on the disk, as safetensors: plain `model.load_state_dict(safetensors.torch.load_file(path))` reads them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unisono.errors import UsageError, nearest_path
from unisono.files.atomic import atomic_replacement
from unisono.files.tensor_file import write_tensors
from unisono.model.flat import hash_of

INNER_NAMES = ("state_dict", "model_state_dict", "model")
"""Keys under which checkpoints of other programs keep the weights."""
SHOWN = 5
"""Names of each kind in a message."""


def save_weights(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Local, blocking: writes these named tensors, wholly or not at all; returns their sha256, which the file holds too. Equal
    tensors give equal files, byte for byte.

    Tensors that share memory (tied weights, views of a flat vector) are written as copies of their own.
    """
    own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    sha256 = hash_of(own)
    with atomic_replacement(path) as draft:
        write_tensors(draft, own, {"sha256": sha256})
    return sha256


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Local: the tensors of a model that are saved and compared between workers; a module's state may hold other things."""
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def load_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Local, blocking: loads the named tensors of a .safetensors file, or of a .pt file that holds nothing but values, into host
    memory, and the metadata of the file (`sha256` and, from earlier versions, `task` and `step`; empty for .pt)."""
    if not path.is_file():
        raise UsageError(f"there is no weights file {path}; {nearest_path(path)}")
    return _load_safetensors(path) if path.suffix == ".safetensors" else (_load_torch(path), {})


@dataclass(frozen=True)
class Fit:
    """How the names in a file and in a model match."""

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    """Names that are in the model and not in the file."""
    unexpected: tuple[str, ...]
    """Names that are in the file and not in the model."""
    misshaped: tuple[str, ...]
    """Sentences: name and both shapes."""
    near: Mapping[str, str]
    """Missing name -> the nearest unexpected one."""

    @property
    def is_exact(self) -> bool:
        """Whether names and shapes of the file are exactly those of the model."""
        return not (self.missing or self.unexpected or self.misshaped)

    def describe(self) -> str:
        """Pure: describes what does not match, for a message or the log."""
        missing = [f"{name} (near: {self.near[name]})" if name in self.near else name for name in self.missing]
        kinds = (("missing", missing), ("unexpected", self.unexpected), ("of another shape", self.misshaped))
        return "; ".join(f"{len(names)} {kind}: {_join_names(names)}" for kind, names in kinds if names) or "all names agree"


def initialise(model: nn.Module, path: Path, *, strict: bool = True, place: str = "--init-from") -> Fit:
    """Local, blocking: copies the weights of a file into the model, in place.

    With `strict` every name and shape must agree; without, what agrees is taken, which must be something. A weight that is tied to
    one in the file need not be there itself. `place` is for messages.
    """
    tensors, _ = load_weights(path)
    expected = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    found = _compare_names(tensors, expected)
    if strict and not found.is_exact:
        raise UsageError(f"{path} does not fit the model ({place}): {found.describe()}. Give weights that fit")
    if not found.loaded:
        raise UsageError(f"{path} has no weights of the model ({place}): {found.describe()}. Give weights that fit")
    model.load_state_dict({name: tensors[name] for name in found.loaded}, strict=False)
    return found


def _compare_names(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Fit:
    """Returns which tensors of a file fit those the model expects, by name and shape; tied tensors count once."""
    common = [name for name in expected if name in tensors]
    loaded = [name for name in common if tensors[name].shape == expected[name].shape]
    filled = {_memory_key(expected[name]) for name in loaded}
    missing = [name for name in expected if name not in tensors and _memory_key(expected[name]) not in filled]
    unexpected = [name for name in tensors if name not in expected]
    near = {name: found[0] for name in missing if (found := get_close_matches(name, unexpected, 1))}
    misshaped = [
        f"{name} {tuple(tensors[name].shape)} in the file, {tuple(expected[name].shape)} in the model"
        for name in common
        if name not in loaded
    ]
    return Fit(tuple(loaded), tuple(missing), tuple(unexpected), tuple(misshaped), near)


def _memory_key(tensor: Tensor) -> tuple[Any, ...]:
    """Returns a key that is equal for tied weights; an empty tensor has no memory, so its key is only its own."""
    return (tensor.data_ptr() or id(tensor), tensor.device, tuple(tensor.shape), tensor.stride())


def _load_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the tensors and the metadata of a safetensors file; refuses one that cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} cannot be read as safetensors ({error}); it may be cut short: write or copy it again") from error


def _load_torch(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a file of torch.save by name, also of a checkpoint that nests them; runs no code of the file."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"{path} holds Python objects besides tensors, and loading them could run any program "
            f"({str(error).splitlines()[0]}); save only model.state_dict(), with torch.save or safetensors"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(f"{path} cannot be read by torch ({reason}); it may be cut short: write or copy it again") from error
    for name in INNER_NAMES:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if not isinstance(found, Mapping) or not any(isinstance(value, Tensor) for value in found.values()):
        raise UsageError(f"{path} holds no named tensors; save model.state_dict()")
    return {str(name): value for name, value in found.items() if isinstance(value, Tensor)}


def _join_names(names: tuple[str, ...] | list[str]) -> str:
    """Returns the first `SHOWN` names, joined with commas, and how many more there are."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
