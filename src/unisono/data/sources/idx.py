"""MNIST's idx files, plain or gzipped: a header of type and sizes, then the numbers."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.sources.arrays import Arrays
from unisono.data.sources.file_list import PathName, file_facts, require_file
from unisono.data.unpacked_size import read_gzip
from unisono.errors import UsageError

TYPES: Mapping[int, str] = MappingProxyType({0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"})
"""Third byte of the header -> type."""


class Idx(Arrays):
    """Samples in idx files, the format of MNIST, plain or gzipped.

    Images come in the type and shape of the file (for MNIST uint8, 28 x 28), labels as int64. The files are read into
    memory. A file that is cut off or of another kind is refused, and so are files with different numbers of samples. Local.

    Example:
        import numpy as np
        import unisono as un

        def write_idx(name, array):  # the header: 0, 0, uint8, number of axes, then the sizes
            sizes = np.array(array.shape, ">u4").tobytes()
            open(name, "wb").write(bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes())

        write_idx("images-idx3-ubyte", np.zeros((20, 28, 28)))
        write_idx("labels-idx1-ubyte", np.arange(20) % 10)
        source = un.Idx("images-idx3-ubyte", "labels-idx1-ubyte")
        source.read([7])[1].tolist()  # -> [7]

    Args:
        images: The file of the images.
        labels: The file of the labels; left out, the samples have none.
    """

    def __init__(self, images: PathName, labels: PathName | None = None) -> None:
        paths = [Path(name).expanduser() for name in (images, labels) if name is not None]
        self.files = file_facts(require_file(path, "an idx file") for path in paths)
        arrays = [read_idx(path) for path in paths]
        if len(arrays) == 2 and len(arrays[0]) != len(arrays[1]):
            raise UsageError(
                f"{paths[0]} holds {len(arrays[0])} samples, {paths[1]} holds {len(arrays[1])}; give images and labels of one set"
            )
        super().__init__(arrays[0], arrays[1].astype(np.int64) if len(arrays) == 2 else None)

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), "files": self.files}


def read_idx(path: Path) -> npt.NDArray[Any]:
    """Local, blocking: reads the array of one idx file, in the byte order of this machine. Refuses a file that is cut off or too
    long."""
    with path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    if not is_packed:
        raw = path.read_bytes()
    else:
        try:
            raw = read_gzip(path)
        except (EOFError, OSError, zlib.error) as error:
            raise UsageError(f"{path} is a broken gzip file ({error}); get it again") from None
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in TYPES or len(raw) < 4 + 4 * raw[3]:
        raise UsageError(f"{path} is not an idx file (its header is {raw[:4].hex()}); give e.g. train-images-idx3-ubyte.gz")
    kind, num_axes = np.dtype(TYPES[raw[2]]), raw[3]
    shape = tuple(int(length) for length in np.frombuffer(raw, ">u4", num_axes, offset=4))
    start = 4 + 4 * num_axes
    if len(raw) - start != prod(shape) * kind.itemsize:
        raise UsageError(
            f"{path} holds {len(raw) - start} bytes of numbers, but its header says {prod(shape) * kind.itemsize} "
            f"({'x'.join(map(str, shape))} {kind.name}); the file is damaged: get it again"
        )
    return np.frombuffer(raw, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="), copy=False)
