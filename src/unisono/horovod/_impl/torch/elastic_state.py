"""TorchState: models, optimisers and samplers beside plain values. Each kind has a handler that knows how to save and send it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from unisono.horovod._impl.elastic.elastic_sampler import ElasticSampler
from unisono.horovod._impl.elastic.surviving_state import ObjectState
from unisono.horovod._impl.job.process_state import PROCESS
from unisono.horovod._impl.torch.object_exchange import broadcast_object
from unisono.horovod._impl.torch.replicas import broadcast_optimizer_state, broadcast_parameters


class StateHandler:
    """The base of all handlers; users may write their own and put them into the registry."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Copies the value; `restore` returns to the copy. Local."""
        raise NotImplementedError(f"{type(self).__name__} must define save(), which keeps a copy of its value")

    def restore(self) -> None:
        """Returns to the last copy. Local."""
        raise NotImplementedError(f"{type(self).__name__} must define restore(), which returns to the saved value")

    def sync(self) -> None:
        """Gives all ranks the value of rank 0. It must not save: the copy must stay whole until all values are in sync. Collective,
        blocking."""
        raise NotImplementedError(f"{type(self).__name__} must define sync(), which gives all ranks the value of rank 0")

    def set_value(self, value: Any) -> None:
        """Replaces the object of this handler. Local."""
        self.value = value
        self.save()


class _DictHandler(StateHandler):
    """A handler of any object with a state_dict."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._saved: Mapping[str, Any] = {}
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # A copy, as optimisers keep the tensors that they are given, and would then change what is saved.
        self.value.load_state_dict(copy.deepcopy(self._saved))


class ModelStateHandler(_DictHandler):
    """A handler of models: weights and running statistics."""

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(_DictHandler):
    """A handler of optimisers: moments, learning rates and all other settings."""

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)


class SamplerStateHandler(_DictHandler):
    """A handler of samplers: the epoch, and how much of it is processed."""

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))


Registry = Sequence[tuple[type, type[StateHandler]]]

STANDARD: Registry = (
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
)


class _Handlers:
    """The handlers of new states. Programs change them by a plain function, so they are kept here."""

    def __init__(self) -> None:
        self.registry: list[tuple[type, type[StateHandler]]] = list(STANDARD)


HANDLERS = _Handlers()


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Returns pairs of a type and its handler, of which the first that fits is used. The list may be extended. Local."""
    return HANDLERS.registry


def set_handler_registry(registry: Registry) -> None:
    """Sets the handlers of all states that are made from now on. Local."""
    HANDLERS.registry = list(registry)


def handler_of(value: Any) -> StateHandler | None:
    """Returns the handler of a value; None for one that is sent as a plain object. Local."""
    kinds = (handler for kind, handler in HANDLERS.registry if isinstance(value, kind))
    found = next(kinds, None)
    return None if found is None else found(value)


class TorchState(ObjectState):
    """The state of a PyTorch program: `TorchState(model, optimizer, epoch=0, batch=0, sampler=sampler)`."""

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        """Every value is an attribute; those with a handler are saved and sent by it. Local."""
        given = {**kwargs, "model": model, "optimizer": optimizer}
        handlers = {name: handler for name, value in given.items() if (handler := handler_of(value)) is not None}
        self._handlers: dict[str, StateHandler] = {}
        for name, handler in handlers.items():
            setattr(self, name, handler.value)
        self._handlers = handlers
        plain = {name: value for name, value in given.items() if name not in handlers}
        super().__init__(broadcast_object, lambda: PROCESS.topology.rank, **plain)

    def save(self) -> None:
        """Copies everything. Local."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Returns to the last copy. Local."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the values of rank 0, then saves them, all at once: a worker that is lost in the middle leaves the others
        with their previous copy, which is whole. Collective, blocking."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()
        self.save()

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None and handler.value is not value:
            handler.set_value(value)
        super().__setattr__(name, value)
