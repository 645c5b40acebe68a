"""NIfTI volumes (`.nii`, `.nii.gz`): whole ones, or patches cut out on a regular grid as they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from unisono.data.batch import batch_of
from unisono.data.sharding_plan import Windows
from unisono.data.source import Indices, Source
from unisono.data.sources.file_list import Files, expand, file_facts, unreadable
from unisono.data.sources.label_maps import as_label_map
from unisono.data.sources.optional_packages import load
from unisono.data.sources.paired_files import expand_labels
from unisono.data.sources.patch_grid import corners, crop_or_pad, cut_out
from unisono.data.sources.recent_reads import RecentlyUsed
from unisono.data.unpacked_size import most_bytes, unpacks_to_too_much
from unisono.errors import UsageError

MOST_SHIFT = 0.1
"""Of a voxel, by which labels may lie beside their volume: programs round the affine."""


class NIfTI(Source):
    """Medical volumes in NIfTI files (.nii, .nii.gz): whole volumes, or patches on a regular grid.

    Inputs are float32 of shape (channels, x, y, z), targets int64 of shape (x, y, z). A fourth axis of a file is its
    channels. With `patch` a sample is a patch; together the patches cover the volume, the last along each axis is moved
    back to end with it, and a volume smaller than a patch is filled with zeros. `groups()` is the number of the volume, so
    `how="group"` of `un.split` keeps the patches of a volume together. Needs the package nibabel. Local.

    Whole volumes of different sizes need `shape` or `patch`. Volumes and labels are paired by the part of their names that
    varies, lists by their order. Refused are different numbers, names that do not tell or that contradict a list, labels of
    another size or affine than their volume, and labels that are not whole numbers.

    Example:
        import nibabel
        import numpy as np
        import unisono as un

        for number in range(2):
            voxels = np.zeros((20, 24, 16), np.float32)
            nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), f"scan-{number}.nii.gz")
            nibabel.save(nibabel.Nifti1Image((voxels > 0).astype(np.uint8), np.eye(4)), f"mask-{number}.nii.gz")
        source = un.NIfTI("scan-*.nii.gz", "mask-*.nii.gz", patch=(16, 16, 16))
        len(source), source.read([0])[0].shape  # -> (8, (1, 1, 16, 16, 16))

    Args:
        volumes: A path, a pattern such as "images/*.nii.gz" (sorted by name), a list of these, or a `.txt` file with one
            path on each line.
        labels: The files of the label maps, in the same forms, a list in the same order; or an array with one row for each volume,
            for example the class of a patient; left out, the samples have no target.
        patch: The size of a patch (x, y, z); left out, a sample is a whole volume.
        stride: The steps between patches (x, y, z); left out, the size of a patch, so that patches do not overlap more than
            they must.
        shape: The size (x, y, z) to which every volume is cut or filled with zeros, around its centre, before patches are
            taken.
        cached_volumes: Number of volumes that are kept in memory.
    """

    def __init__(
        self,
        volumes: Files,
        labels: Files | npt.NDArray[Any] | None = None,
        patch: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        shape: Sequence[int] | None = None,
        cached_volumes: int = Windows.num_chunks,
    ) -> None:
        self.volumes = expand(volumes, "NIfTI volumes")
        per_volume = isinstance(labels, np.ndarray)
        self.labels = () if labels is None or per_volume else expand_labels(cast(Files, labels), self.volumes, "NIfTI labels")
        self._values = cast("npt.NDArray[Any]", labels) if per_volume else None
        num_labels = len(self.volumes) if labels is None else len(cast(npt.NDArray[Any], labels) if per_volume else self.labels)
        if num_labels != len(self.volumes):
            raise UsageError(
                f"there are {len(self.volumes)} volumes but {num_labels} labels; give one for each volume, in the same order"
            )
        self.shapes = [_shape_of_file(path) for path in self.volumes]
        for volume, label, found in zip(self.volumes, self.labels, self.shapes, strict=False):
            if _shape_of_file(label)[:3] != found[:3]:
                raise UsageError(
                    f"{volume} has {found[:3]} voxels but its labels {label} have {_shape_of_file(label)[:3]}; "
                    "give volumes and labels in the same order"
                )
            _expect_same_place(volume, label)
        for path, found in zip(self.volumes, self.shapes, strict=True):
            if found[3:] != self.shapes[0][3:]:
                raise UsageError(
                    f"{path} has shape {found}, {self.volumes[0]} has {self.shapes[0]}; all need the same number of channels"
                )
        self.shape = _three_sizes("shape", shape)
        self.patch = _three_sizes("patch", patch)
        self.stride = _three_sizes("stride", stride) or self.patch
        if stride is not None and patch is None:
            raise UsageError("stride is the step between patches and has no effect without patch; give patch=(x, y, z) too")
        sizes = [self.shape or found[:3] for found in self.shapes]
        if self.patch is None and len(set(sizes)) > 1:
            raise UsageError(
                f"the volumes differ in size ({min(sizes)} to {max(sizes)}), so whole volumes cannot form a batch; "
                "give shape=(x, y, z) to cut or pad them, or patch=(x, y, z)"
            )
        places = [
            (number, *corner)
            for number, size in enumerate(sizes)
            for corner in (corners(size, self.patch, self.stride) if self.patch and self.stride else [(0, 0, 0)])
        ]
        self.places = np.array(places, dtype=np.int64)
        """For each sample the number of its volume and the corner of its patch there."""
        if self.patch:
            self.chunk_samples = int(np.bincount(self.places[:, 0]).max())
        self._recent: RecentlyUsed[int, tuple[Any, Any]] = RecentlyUsed(cached_volumes)

    def __len__(self) -> int:
        return len(self.places)

    def read(self, indices: Indices) -> Any:
        places = self.places[indices]
        inputs: list[Any] = [None] * len(places)
        targets: list[Any] = [None] * len(places)
        # By volume, those kept first, so that each is read once for a batch.
        for at in sorted(range(len(places)), key=lambda at: (int(places[at, 0]) not in self._recent, int(places[at, 0]))):
            number, corner = int(places[at, 0]), places[at, 1:].tolist()
            volume, label = self._recent.get(number, partial(self._load_volume, number))
            inputs[at] = cut_out(volume, corner, self.patch) if self.patch else volume
            if label is not None:
                targets[at] = cut_out(label, corner, self.patch) if self.patch else label
        if self._values is not None:
            return batch_of(np.stack(inputs), self._values[places[:, 0]])
        return batch_of(np.stack(inputs), np.stack(targets) if self.labels else None)

    def groups(self) -> npt.NDArray[Any] | None:
        return self.places[:, 0]

    def targets(self) -> npt.NDArray[Any] | None:
        return None if self._values is None else self._values[self.places[:, 0]]

    def describe(self) -> Mapping[str, Any]:
        facts = {
            "files": file_facts(self.volumes),
            "labels": file_facts(self.labels),
            "shapes": sorted({min(self.shapes), max(self.shapes)}),
        }
        return {**super().describe(), **facts, "patch": self.patch, "stride": self.stride, "shape": self.shape}

    def close(self) -> None:
        self._recent.clear()

    def _load_volume(self, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
        """Returns volume (channels first) and labels of this number, cropped or padded to `shape`; without labels None."""
        volume = _voxels(self.volumes[number]).astype(np.float32)
        volume = np.moveaxis(volume, 3, 0) if volume.ndim == 4 else volume[None]
        label = as_label_map(_voxels(self.labels[number]), self.labels[number]).reshape(volume.shape[1:]) if self.labels else None
        if self.shape:
            return crop_or_pad(volume, self.shape), None if label is None else crop_or_pad(label, self.shape)
        return volume, label


def _three_sizes(name: str, sizes: Sequence[int] | None) -> tuple[int, ...] | None:
    """Returns the sizes as a tuple, None for None; refuses others than three of at least 1."""
    if sizes is not None and (len(sizes) != 3 or min(sizes) < 1):
        raise UsageError(f"{name} of NIfTI volumes needs three sizes of at least 1; received {tuple(sizes)}")
    return None if sizes is None else tuple(sizes)


def _shape_of_file(path: Path) -> tuple[int, ...]:
    """Returns the shape in this file's header; refuses one that has not three or four axes."""
    shape = tuple(int(length) for length in _open_file(path).shape)
    if len(shape) not in (3, 4):
        raise UsageError(f"{path} has {len(shape)} axes {shape}; a volume has three, or four with channels")
    if path.suffix == ".gz" and prod(shape) * _open_file(path).get_data_dtype().itemsize > most_bytes(path):
        raise unpacks_to_too_much(path)
    return shape


def _expect_same_place(volume: Path, label: Path) -> None:
    """Refuses labels whose header puts their voxels elsewhere in space than those of the volume, e.g. mirrored."""
    image, map_ = _open_file(volume), _open_file(label)
    ends = np.array([(*corner, 1) for corner in product(*((0, length - 1) for length in image.shape[:3]))]).T
    apart = np.linalg.norm(((image.affine - map_.affine) @ ends)[:3], axis=0).max()
    if not apart <= MOST_SHIFT * np.linalg.norm(image.affine[:3, :3], axis=0).min():
        raise UsageError(
            f"the voxels of {volume} and of its labels {label} lie up to {apart:.3g} mm apart (their affines differ); resample the "
            "labels to the volume, or if they fit voxel by voxel, save them with the affine of the volume"
        )


def _voxels(path: Path) -> npt.NDArray[Any]:
    """Returns the voxels of this file as an array; refuses a file that is cut off."""
    try:
        return np.asarray(_open_file(path).dataobj)
    except (OSError, EOFError, ValueError) as error:
        raise UsageError(f"the voxels of {path} cannot be read ({error}); the file is truncated: get it again") from None


def _open_file(path: Path) -> Any:
    """Opens the file with nibabel, which reads no voxels yet; refuses one that is not NIfTI."""
    nibabel = load("nibabel", "NIfTI volumes")
    try:
        return nibabel.load(path)
    except (nibabel.filebasedimages.ImageFileError, OSError, EOFError) as error:
        raise unreadable(path, "NIfTI", error) from None
