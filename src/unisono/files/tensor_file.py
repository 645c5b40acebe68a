"""Writes named tensors into a safetensors file while a training continues in another thread.

The bytes go out in pieces, written and hashed without the interpreter's lock. safetensors' own writer holds that lock for the
whole file up to its version 0.7, and stops a training for 0.1 to 0.3 s for each 100 MB.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unisono.errors import UsageError

TYPE_NAMES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
ALIGN_BYTES = 8
PIECE_BYTES = 16 << 20
"""After each piece the interpreter's lock is taken, which takes 5 ms while a training computes in Python."""


@dataclass(frozen=True)
class FileDigest:
    """Hash and size of a file."""

    sha256: str
    num_bytes: int


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> FileDigest:
    """Local, blocking: writes a file with these tensors of the host's memory; it is on the disk when this returns. `about` becomes
    part of its metadata. Equal tensors give equal files, byte for byte."""
    return write_pieces(path, _pieces(tensors, about or {}))


def write_pieces(path: Path, pieces: Iterator[bytes | memoryview]) -> FileDigest:
    """Local, blocking: writes a file of these bytes; it is on the disk when this returns."""
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("wb", buffering=0) as file:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[file.write(rest) :]  # a disk that is nearly full takes a part
            digest.update(piece)
            num_bytes += len(piece)
        os.fsync(file.fileno())
    return FileDigest(digest.hexdigest(), num_bytes)


def _pieces(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yields the length of the header, the header, and all values: those of wide types first, so that every tensor is aligned."""
    for name, tensor in tensors.items():
        if tensor.dtype not in TYPE_NAMES:
            raise UsageError(f"{name} is of type {tensor.dtype}, which a safetensors file cannot hold; use another type")
    ordered = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, object] = {"__metadata__": {"format": "pt", **about}}
    offset = 0
    for name in ordered:
        tensor, start = tensors[name], offset
        offset += tensor.nbytes
        header[name] = {"dtype": TYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, offset]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGN_BYTES)
    yield len(text).to_bytes(8, "little") + text
    for name in ordered:
        values = tensors[name].detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
        for start in range(0, len(values), PIECE_BYTES):
            yield values[start : start + PIECE_BYTES]
