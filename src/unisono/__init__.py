"""Unisono trains, tunes, measures and applies neural networks on many workers. Heavy packages load at use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from unisono.version import __version__

if TYPE_CHECKING:
    from unisono import keras
    from unisono.api import train, tune
    from unisono.comm.base import ANY, MAX, MIN, SUM, Communicator, Op
    from unisono.comm.connect import connect
    from unisono.data import augmentations as augment
    from unisono.data.catalogue import locate
    from unisono.data.fitted_inputs import map_fitted
    from unisono.data.node_staging import stage
    from unisono.data.sample_random import SampleRandom
    from unisono.data.scale import Scale
    from unisono.data.source import Source
    from unisono.data.sources.arrays import Arrays
    from unisono.data.sources.digits import digits
    from unisono.data.sources.hdf5 import HDF5
    from unisono.data.sources.idx import Idx
    from unisono.data.sources.images import ImageFolder, ImageTable
    from unisono.data.sources.matlab import Scene
    from unisono.data.sources.nifti import NIfTI
    from unisono.data.sources.open_source import as_source
    from unisono.data.sources.sat6 import SAT6
    from unisono.data.sources.tiff import TIFF
    from unisono.data.sources.zarr import Zarr
    from unisono.data.splits import Splits, folds, split
    from unisono.errors import CollectiveTimeout, CommError, MismatchedCall, PeerLost, UnisonoError, UsageError
    from unisono.model.torch.own_step import OwnStep
    from unisono.own_loop import DistributedOptimizer, ShardedLoader
    from unisono.task.task import Choice, Range, Task

_HOMES: Mapping[str, str] = {
    "connect": "unisono.comm.connect",
    "digits": "unisono.data.sources.digits",
    "locate": "unisono.data.catalogue",
    "as_source": "unisono.data.sources.open_source",
    "Arrays": "unisono.data.sources.arrays",
    "HDF5": "unisono.data.sources.hdf5",
    "Idx": "unisono.data.sources.idx",
    "ImageFolder": "unisono.data.sources.images",
    "ImageTable": "unisono.data.sources.images",
    "NIfTI": "unisono.data.sources.nifti",
    "SAT6": "unisono.data.sources.sat6",
    "Scene": "unisono.data.sources.matlab",
    "TIFF": "unisono.data.sources.tiff",
    "Zarr": "unisono.data.sources.zarr",
    "Source": "unisono.data.source",
    "SampleRandom": "unisono.data.sample_random",
    "Scale": "unisono.data.scale",
    "OwnStep": "unisono.model.torch.own_step",
    **dict.fromkeys(("train", "tune"), "unisono.api"),
    **dict.fromkeys(("DistributedOptimizer", "ShardedLoader"), "unisono.own_loop"),
    **dict.fromkeys(("Splits", "folds", "split"), "unisono.data.splits"),
    "map_fitted": "unisono.data.fitted_inputs",
    "stage": "unisono.data.node_staging",
    **dict.fromkeys(("Choice", "Range", "Task"), "unisono.task.task"),
    **dict.fromkeys(("ANY", "MAX", "MIN", "SUM", "Communicator", "Op"), "unisono.comm.base"),
    **dict.fromkeys(
        ("CollectiveTimeout", "CommError", "MismatchedCall", "PeerLost", "UnisonoError", "UsageError"), "unisono.errors"
    ),
}

_MODULES: Mapping[str, str] = {"augment": "unisono.data.augmentations", "keras": "unisono.keras"}

__all__ = [
    "ANY",
    "Arrays",
    "Choice",
    "CollectiveTimeout",
    "CommError",
    "Communicator",
    "DistributedOptimizer",
    "HDF5",
    "Idx",
    "ImageFolder",
    "ImageTable",
    "MAX",
    "MIN",
    "MismatchedCall",
    "NIfTI",
    "Op",
    "OwnStep",
    "PeerLost",
    "Range",
    "SAT6",
    "SUM",
    "SampleRandom",
    "Scale",
    "Scene",
    "ShardedLoader",
    "Source",
    "Splits",
    "TIFF",
    "Task",
    "UnisonoError",
    "UsageError",
    "Zarr",
    "__version__",
    "as_source",
    "augment",
    "connect",
    "digits",
    "folds",
    "keras",
    "locate",
    "map_fitted",
    "split",
    "stage",
    "train",
    "tune",
]


def __getattr__(name: str) -> object:
    # Importing the package costs nothing; the first use of a name loads what it needs.
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'unisono' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
