"""What programs of before TensorFlow 2 and Keras 3 write between `hvd.init()` and `hvd.DistributedOptimizer`, so that they run as
they are. Only where `import horovod` means us, never by an import alone: it changes modules that are not ours.

    config = tf.ConfigProto()                                            a GPU for each process
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    K.set_session(tf.Session(config=config))
    keras.optimizers.SGD(lr=0.1)                                         learning_rate
    hvd.broadcast_variables(optimizer.variables(), root_rank=0)          a property
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch

from unisono.errors import UsageError
from unisono.horovod._impl.job import process_sets as process_sets_module
from unisono.horovod._impl.keras.compile_hooks import watch_compile
from unisono.horovod._impl.keras.reduced_updates import CallableList
from unisono.horovod._impl.keras.step_backend import BACKENDS, backend_name, own_backend
from unisono.horovod._impl.launching.import_alias import is_in_force


class OldSession:
    """`tf.Session` of a program that only passes it to `set_session`."""

    def __init__(self, *args: Any, config: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        self.config = config

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"tf.Session.{name} is not available: TensorFlow 2 has no sessions, and this object only selects the GPU; call the "
            "model itself, or use tf.compat.v1.Session"
        )


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Begins the communication, as in `process_sets.py`, and accepts names of older programs that were not changed for this
    package. Collective over all processes of the job, blocking."""
    process_sets_module.init(comm, process_sets)
    if "keras" in sys.modules:
        watch_compile()  # here, as `model.compile(hvd.DistributedOptimizer(...))` asks the model first
    # Not loaded for it: Keras on PyTorch asks for GPUs when it is imported, and the program may want to choose one before.
    if is_in_force() and {"keras", "tensorflow"} & set(sys.modules):
        accept_old_names()


def accept_old_names() -> None:
    """Adds missing names; existing ones are left alone. Local, idempotent."""
    from keras import backend

    tensorflow: Any = sys.modules.get("tensorflow")  # not loaded for it: Keras may run on another backend
    if tensorflow is not None:
        _add_if_missing(tensorflow, "ConfigProto", tensorflow.compat.v1.ConfigProto)
        _add_if_missing(tensorflow, "Session", OldSession)
        # Another module than keras.backend, with the same functions.
        _add_if_missing(tensorflow.keras.backend, "set_session", set_session)
    _add_if_missing(backend, "set_session", set_session)
    _accept_lr()
    accept_calls_of_variables()


def set_session(session: Any) -> None:
    """Makes Keras compute on the GPUs that the session names, and on no others; PyTorch and JAX, where a process computes on one,
    on the first of them. To be called before the first computation. Local."""
    config = getattr(session, "config", None) or getattr(session, "_config", None)  # the second of tf.compat.v1's own
    options = getattr(config, "gpu_options", None)
    if options is None:
        return
    numbers = [int(number) for number in options.visible_device_list.split(",") if number]
    match backend_name():
        case "tensorflow":
            _use_on_tensorflow(numbers, options.allow_growth)
        case "jax" if numbers:
            _use_on_jax(numbers)
        case "torch" if numbers:
            _use_on_torch(numbers)


def _use_on_tensorflow(numbers: Sequence[int], grows: bool) -> None:
    """Makes TensorFlow use the GPUs with these numbers only, all if none is given; `grows`: they take memory as it is needed."""
    tensorflow: Any = sys.modules["tensorflow"]
    devices = tensorflow.config.list_physical_devices("GPU")
    if devices and numbers:
        devices = _among(devices, numbers)
        tensorflow.config.set_visible_devices(devices, "GPU")
    if grows:
        for device in devices:
            tensorflow.config.experimental.set_memory_growth(device, True)


def _use_on_jax(numbers: Sequence[int]) -> None:
    """Makes the first of these GPUs the device of JAX, if it runs on GPUs."""
    jax: Any = sys.modules["jax"]
    if jax.default_backend() == "gpu":
        jax.config.update("jax_default_device", _among(jax.local_devices(), numbers)[0])


def _use_on_torch(numbers: Sequence[int]) -> None:
    """Makes the first of these GPUs the device of PyTorch, if Keras uses CUDA."""
    from keras.src.backend.torch.core import get_device

    if torch.device(get_device()).type == "cuda":  # not if KERAS_TORCH_DEVICE says cpu
        torch.cuda.set_device(_among(range(torch.cuda.device_count()), numbers)[0])


def _among(devices: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
    """The devices with these numbers."""
    if max(numbers) >= len(devices):
        raise UsageError(
            f"visible_device_list names GPU {max(numbers)}, but this process sees {len(devices)} (counted from 0); start at most "
            "one process for each GPU of a node. Under SLURM use --gpus-per-node: with --gpus-per-task a task sees only its own "
            "GPU. To compute on CPUs set CUDA_VISIBLE_DEVICES= (empty)"
        )
    return [devices[number] for number in numbers]


def _add_if_missing(module: Any, name: str, value: Any) -> None:
    """Sets an attribute of a module unless it has one of that name."""
    if not hasattr(module, name):
        setattr(module, name, value)


def _accept_lr() -> None:
    """Lets all optimisers of Keras take `lr`, the old name of `learning_rate`. Idempotent."""
    from keras.optimizers import Optimizer

    owner: Any = next(kind for kind in reversed(Optimizer.__mro__) if "learning_rate" in vars(kind))
    plain = owner.__init__
    if getattr(plain, "accepts_lr", False):
        return

    @functools.wraps(plain)
    def begin(self: Any, learning_rate: Any, *args: Any, lr: float | None = None, **kwargs: Any) -> None:
        plain(self, learning_rate if lr is None else float(lr), *args, **kwargs)

    begin.accepts_lr = True  # type: ignore[attr-defined]
    owner.__init__ = begin


def accept_calls_of_variables() -> None:
    """Allows `optimizer.variables()` for every optimiser, also for one that is not distributed, beside a distributed tape. Local,
    idempotent."""
    from keras import config, optimizers

    if config.backend() in BACKENDS:
        own_backend()  # which tells its framework of our list
    several = getattr(optimizers, "MultiOptimizer", None)  # younger than what we ask for
    for kind in (optimizers.Optimizer, optimizers.LossScaleOptimizer, *([several] if several else ())):
        owner: Any = next(one for one in kind.__mro__ if "variables" in vars(one))
        plain = owner.variables.fget
        if not getattr(plain, "can_be_called", False):
            owner.variables = property(_callable_variables(plain))


def _callable_variables(plain: Any) -> Any:
    """Returns the getter `variables` with a list as result that can also be called."""

    @functools.wraps(plain)
    def variables(self: Any) -> CallableList:
        return CallableList(plain(self))

    variables.can_be_called = True  # type: ignore[attr-defined]
    return variables
