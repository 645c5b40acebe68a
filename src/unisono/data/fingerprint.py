"""Fingerprints of data: small, cheap for large sources, and equal for equal data. They show whether workers hold the same data, and
whether data are still those of a training.

Labels, and the order of the samples, count exactly. Of the values of all samples, weighted sums over some samples count, within
rounding: other CPUs round otherwise where data are computed, e.g. scaled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.batch import as_array
from unisono.data.checks import before_changes, ids_in_data_set, is_changed, origin, sample_ids
from unisono.data.data_differences import Fingerprint, is_far
from unisono.data.random_streams import seeded_generators
from unisono.data.source import Indices, Mapped, Source, Subset
from unisono.data.sources.arrays import Arrays
from unisono.data.tree import leaves

MOST_ROWS, MOST_ROWS_IN_MEMORY = 32, 256
MOST_BYTES = 1 << 26
"""Of one part that are read for its fingerprint, but at least two samples are."""
MOST_VALUES = 4096
"""Of one array of one sample."""
NUM_SUMS = 8
DATASETS = "unisono.data.sources.sequence"
"""The module of sources that call a data set of a user."""
STRIDE = np.uint64(0x9E3779B97F4A7C15)


def fingerprint(part: Source, most_rows: int | None = None) -> dict[str, Any]:
    """Local, blocking for a pass over the labels and a few reads of some samples: the fingerprint of samples in their order."""
    order, labels = _numbers_of(part), part.targets()
    source, (values, form) = before_changes(part), _values(part, most_rows)
    return {
        "num_samples": len(part),
        "description": _sha256(json.dumps(without_folders(part.describe()), sort_keys=True, default=str).encode()),
        "order": None if order is None else _sha256(order.astype("<i8")),
        # Numbers that were computed may be rounded otherwise elsewhere; they are among the values.
        "labels": None if labels is None or labels.dtype.kind not in "biu" else _sha256(labels),
        "values": values,
        "source": values if not is_changed(part) else _values(source, most_rows)[0],
        "is_stored": not runs_user_code(source) and not isinstance(source.source if isinstance(source, Subset) else source, Arrays),
        **form,
    }


def fingerprints(parts: Mapping[str, Source]) -> dict[str, Fingerprint]:
    """Local, blocking as `fingerprint`: that of each part of the data, by its name."""
    return {name: fingerprint(part) for name, part in parts.items()}


def hashes_of(parts: Mapping[str, Source]) -> tuple[str, dict[str, str]]:
    """Local, blocking for one read of the labels: the hash of all parts together, and that of each."""
    together, alone = hashlib.sha256(), dict[str, str]()
    for name, part in parts.items():
        own = hashlib.sha256()
        for piece in (*_samples_of(name, part), *_samples_in_data_set(part)):
            together.update(piece)
            own.update(piece)
        alone[name] = own.hexdigest()
    return together.hexdigest(), alone


def earlier_hash_of(parts: Mapping[str, Source]) -> str:
    """Local, blocking as `hashes_of`: that of all parts in records of earlier versions, which took the samples of a Subset of
    torch for a data set of their own."""
    together = hashlib.sha256()
    for piece in (piece for name, part in parts.items() for piece in _samples_of(name, part)):
        together.update(piece)
    return together.hexdigest()


def without_folders(value: Any) -> Any:
    """Returns a description without folders: data are the same in whichever folder they are, e.g. after staging to a local disk."""
    if isinstance(value, Mapping):
        return {str(key): without_folders(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_folders(part) for part in value]
    if isinstance(value, PurePath) or (isinstance(value, str) and "/" in value):
        return PurePath(value).name
    return value


def sampled_rows(part: Source, most_rows: int | None = None) -> Indices:
    """Local, blocking for the read of one sample: places in the part of some samples, which do not depend on its order."""
    whole, indices = origin(part)[0], _numbers_of(part)
    numbers = np.arange(len(part), dtype=np.int64) if indices is None else indices
    if most_rows is None:
        most_rows = MOST_ROWS_IN_MEMORY if part.in_memory and not runs_user_code(part) else MOST_ROWS
    with np.errstate(over="ignore"):
        keys = numbers.view(np.uint64) * STRIDE
    near = np.flatnonzero(keys < np.uint64(min(0.99, 8 * most_rows / len(keys)) * 2**64))  # a sort of all would take seconds
    chosen = near if len(near) >= most_rows else np.arange(len(keys))
    chosen = chosen[np.argsort(keys[chosen], kind="stable")][:most_rows]
    with seeded_generators(0):
        num_bytes = sum(getattr(leaf, "nbytes", 0) for _, leaf in leaves(part.read(chosen[:1])))
    return chosen[: max(2, MOST_BYTES // max(1, num_bytes * (whole.chunk_samples or 1)))]


def runs_user_code(part: Source) -> bool:
    """Pure: whether reading may do more than give what is stored: it goes through a function, a data set or a source of a user."""
    while isinstance(part, Subset):
        part = part.source
    module = type(part).__module__
    return isinstance(part, Mapped) or not module.startswith("unisono.") or module == DATASETS


def sums_of(batch: Any) -> Iterator[tuple[str, list[float]]]:
    """Yields for each array of numbers the size of the sums, and the sums: each over every eighth sample."""
    for place, leaf in leaves(batch if isinstance(batch, tuple) else (batch,)):
        values = _numbers(leaf)
        if values is None:
            continue
        weights = 1.0 + np.arange(values.shape[1]) * 0.6180339887498949 % 1.0
        weighted = np.arcsinh(values) * weights  # so that a few large numbers do not hide all others
        sums = [weighted[start::NUM_SUMS] for start in range(NUM_SUMS)]
        yield place, [max(float(np.abs(one).sum()) for one in sums), *(float(one.sum()) for one in sums)]


def _samples_of(name: str, part: Source) -> Iterator[bytes]:
    """Yields description, numbers and labels of the samples of a part."""
    whole, indices = sample_ids(part)
    indices = _ascending(indices)
    yield json.dumps([name, without_folders(whole.describe()), len(whole), len(indices)], sort_keys=True, default=str).encode()
    yield indices.astype("<i8").tobytes()
    labels = whole.targets()
    if labels is not None:
        yield np.ascontiguousarray(labels[indices]).tobytes()


def _samples_in_data_set(part: Source) -> Iterator[bytes]:
    """Yields the data set of a Subset of torch, and the numbers of its samples in it; nothing for others."""
    found = ids_in_data_set(part)
    if found is not None:
        holder, numbers = found
        yield json.dumps([f"{type(holder).__module__}.{type(holder).__qualname__}", len(holder)]).encode()
        yield _ascending(numbers).astype("<i8").tobytes()


def _ascending(numbers: Indices) -> Indices:
    """Returns the numbers in ascending order."""
    return np.sort(numbers) if (numbers[1:] < numbers[:-1]).any() else numbers


def _values(part: Source, most_rows: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the sums of each array of a batch by its place; None for one that is another in a second reading, although the
    generators of the process are seeded alike. Beside them the form of the targets."""
    rows = sampled_rows(part, most_rows)
    with seeded_generators(0):
        batch = part.read(rows)
    found: dict[str, Any] = dict(sums_of(batch))
    if runs_user_code(part):
        with seeded_generators(0):
            again = dict(sums_of(part.read(rows)))
        found = {place: sums if not is_far(sums, again.get(place)) else None for place, sums in found.items()}
    parts = batch if isinstance(batch, tuple) else (batch,)
    shape = getattr(parts[1], "shape", None) if len(parts) > 1 else None
    return found, {"target_shape": None if shape is None else [int(side) for side in shape[1:]], "has_weights": len(parts) > 2}


def _numbers_of(part: Source) -> Indices | None:
    """Returns the numbers of samples in their source, or in the data set of a Subset of torch; None for all, in order."""
    found = ids_in_data_set(part)
    return origin(part)[1] if found is None else found[1]


def _numbers(leaf: Any) -> npt.NDArray[np.float64] | None:
    """Returns an array of a batch as rows of finite numbers, of long ones every so many; None where it holds none."""
    if hasattr(leaf, "detach"):
        leaf = leaf.detach().cpu()
        leaf = leaf.double() if leaf.is_floating_point() else leaf
    array = as_array(leaf)
    if not array.ndim or array.dtype.kind not in "biufc":
        return None
    rows = array.reshape(len(array), -1) if array.size else np.zeros((len(array), 1))
    rows = rows[:, :: -(-rows.shape[1] // MOST_VALUES)]
    if rows.dtype.kind == "c":
        rows = np.concatenate([rows.real, rows.imag], axis=1)
    return np.nan_to_num(rows.astype(np.float64), posinf=np.finfo(np.float64).max, neginf=np.finfo(np.float64).min)


def _sha256(data: Any) -> str:
    """Returns a hash of bytes or of the bytes of an array."""
    return hashlib.sha256(data if isinstance(data, bytes) else np.ascontiguousarray(data).view(np.uint8).data).hexdigest()[:16]
