"""A fit in plain values: what all workers must give alike, and the record of a fit with a backup: what may not change when the
script is started again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from unisono.data.source import Source
from unisono.data.sources.arrays import Arrays
from unisono.data.tree import leaves
from unisono.model.keras.pure import layers_of
from unisono.training.run_folder.run_directory import as_json
from unisono.training.run_folder.run_record import as_plain

if TYPE_CHECKING:
    from unisono.keras._impl.fitting import Fit

SAMPLED = 1000
"""Samples of arrays of which the values count; of more samples, so many at equal distances. Labels count all."""
UNNAMED = ("name", "registered_name", "build_config", "shared_object_id")
"""Entries of a configuration that differ between two processes or do not matter."""


def record_of_fit(fit: Fit) -> dict[str, Any]:
    """Local, blocking for a read of the labels and some samples: the model, what it was compiled with, the data, and how it is
    trained. Not its length: more epochs continue a fit."""
    data, strategy, model = fit.data, fit.strategy, fit.model
    record = {
        "model": dict(_layers(model)),
        "compile": _compiled(model),
        "optimizer": _optimizer(model),
        "data": {
            "train": _described(data.train, is_whole=data.stream is None),
            "stream": None if data.stream is None else {"kind": data.stream.kind, "num_steps": data.stream.num_steps},
            "validation": None if data.validation is None else _described(data.validation),
            "class_weight": data.class_weight,
        },
        "batch_size": data.batch,
        "shuffle": data.shuffle,
        "algorithm": {"name": strategy.algorithm, **strategy.options},
        "seed": strategy.seed_in_use.chosen,
    }
    return dict(as_plain(as_json(_without_names(record))))


def settings_of_fit(fit: Fit) -> dict[str, Any]:
    """Local: what all workers must have given alike besides their data. A stream decides the size of its batches itself."""
    data, schedule = fit.data, fit.schedule
    settings = {
        "epochs": schedule.epochs,
        "initial_epoch": schedule.initial_epoch,
        "batch_size": data.batch if data.stream is None else None,
        "steps_per_epoch": None if data.stream is None else data.stream.num_steps,
        "shuffle": data.shuffle,
        "validation_freq": schedule.validation_freq,
        "optimizer": _optimizer(fit.model),
    }
    return dict(as_plain(as_json(_without_names(settings))))


def _optimizer(model: Any) -> dict[str, Any]:
    """Returns the class and the configuration of the optimiser."""
    optimizer = model.optimizer
    try:
        config = optimizer.get_config()
    except NotImplementedError:  # a schedule or an optimiser of the user that cannot be saved: then its classes tell it
        config = {"learning_rate": type(optimizer._learning_rate).__name__}
    return {"class": type(optimizer).__name__, **config}


def _layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields the configuration of each layer, by its place and class; of a nested model that of its layers."""
    inner = [layer for layer in layers_of(model) if not hasattr(type(layer), "layers")]
    for number, layer in enumerate(inner):
        try:
            config = layer.get_config()
        except NotImplementedError:  # a class of the user that cannot be saved
            config = {}
        shapes = [list(variable.shape) for variable in layer.weights]
        yield f"{number} {type(layer).__name__}", {**config, "weights": shapes, "trainable": layer.trainable}


def _compiled(model: Any) -> Any:
    """Returns loss, metrics and their weights as `compile` was given them."""
    try:
        config = model.get_compile_config()
    except (TypeError, ValueError, NotImplementedError):  # a loss or metric of the user that cannot be saved
        config = model._compile_config.config
    return {name: value for name, value in (config or {}).items() if name != "optimizer"}


def _described(source: Source, is_whole: bool = True) -> dict[str, Any]:
    """Returns what tells data from others. Of a stream there is only a batch, which a shuffle makes another each time."""
    found = dict(source.describe())
    if not is_whole:
        return found
    digest = hashlib.sha256()
    labels = source.targets()
    if labels is not None:
        digest.update(np.ascontiguousarray(labels).tobytes())
    if isinstance(source, Arrays):  # other sources may draw random numbers when they are read
        places = np.unique(np.linspace(0, len(source) - 1, min(len(source), SAMPLED)).astype(np.int64))
        for _, leaf in leaves(source.read(places)):
            digest.update(np.ascontiguousarray(leaf).tobytes())
    return {**found, "sha256": digest.hexdigest()}


def _without_names(value: Any) -> Any:
    """Returns a configuration without names that Keras numbers over the process, and without the code of lambdas, which changes
    with the lines above it."""
    if isinstance(value, Mapping):
        if value.get("class_name") == "__lambda__":
            return "lambda"
        return {name: _without_names(part) for name, part in value.items() if name not in UNNAMED}
    if isinstance(value, (list, tuple)):
        return [_without_names(part) for part in value]
    return value
