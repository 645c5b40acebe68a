"""Calls the factories of a task: its data, divided, and its model with initial weights."""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from unisono.data.random_streams import quiet_framework_imports, seeded_generators
from unisono.data.splits import Splits
from unisono.errors import UsageError
from unisono.model.base import StreamKey
from unisono.model.recognise import is_keras, is_keras_loaded, is_keras_module, is_lightning
from unisono.task.overrides import ResolvedTask

INITIAL_STEP = -1
"""The step number of the random stream that makes the model."""


def make_splits(resolved: ResolvedTask) -> Splits:
    """Local, blocking: makes the data of the task, divided into parts. What `data` draws from the generators of this process is a
    function of the task's `data_seed`."""
    seed = resolved.task.data_seed
    with nullcontext() if seed is None else seeded_generators(seed), quiet_framework_imports():
        found = resolved.task.data(**resolved.data)
    if not isinstance(found, Splits):
        raise UsageError(
            f"data of the task must return un.Splits(train=..., validation=..., test=...); it returned {_kind_of_value(found)}"
        )
    if resolved.division is None:
        return found
    from unisono.data.fold_data import apply_division

    return apply_division(found, resolved.division)


def make_model(resolved: ResolvedTask, device: torch.device) -> nn.Module:
    """Local: makes the model with its initial weights, a function of the seed alone. It may draw from the generators of torch,
    NumPy and Python, from which Keras draws the seeds of its initialisers."""
    task = resolved.task
    if isinstance(task.model, nn.Module) or is_keras(task.model):
        raise UsageError(
            f"model of the task is an instance of {type(task.model).__name__}; give the function that makes it, e.g. "
            "model=lambda: Net(), so that the seed decides its weights"
        )
    if is_keras_loaded():
        from unisono.model.keras.backends import prepare_backend

        prepare_backend()
    first = StreamKey(task.seed, INITIAL_STEP, 0).value()
    torch.manual_seed(first)
    of_python, of_numpy = random.getstate(), np.random.get_state()
    random.seed(first)
    np.random.seed(first % 2**32)
    try:
        with quiet_framework_imports():
            model = task.model(**resolved.model)
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
    if is_keras(model):
        from unisono.model.keras.make_replica import make_replica

        model = make_replica(model)
    if is_keras_module(model) and device.type == "cuda" and not model.backend.takes_cuda:
        raise UsageError(
            "Keras on TensorFlow or JAX exchanges gradients through the memory of the host; use --engine shm, gloo or mpi (not "
            "nccl), or run Keras on torch (KERAS_BACKEND=torch)"
        )
    if not isinstance(model, nn.Module):
        raise UsageError(f"model of the task must return a torch.nn.Module or a Keras model; it returned {_kind_of_value(model)}")
    if task.step is None and is_lightning(model):
        from unisono.model.lightning.module import set_up

        set_up(model)
    if not model.training:  # as some libraries give theirs
        model.train()
    return model.to(device)


def _kind_of_value(value: Any) -> str:
    """Returns what a factory returned, as an error shows it: its type, or "nothing" for None."""
    return "nothing (did it forget to return?)" if value is None else f"a {type(value).__name__}"
