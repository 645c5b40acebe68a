"""TorchState: models, optimisers and samplers beside plain values. A handler for each kind knows how it is saved and sent."""

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
    """Base of all handlers; users may write their own and put them into the registry."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Local: copy the value; `restore` comes back to it."""
        raise NotImplementedError(f"{type(self).__name__} must say how its value is saved; define save()")

    def restore(self) -> None:
        """Local."""
        raise NotImplementedError(f"{type(self).__name__} must say how its value is restored; define restore()")

    def sync(self) -> None:
        """Collective, blocking: rank 0's value for all. Must not save: what is saved must stay whole until all is in sync."""
        raise NotImplementedError(f"{type(self).__name__} must say how rank 0's value is sent; define sync()")

    def set_value(self, value: Any) -> None:
        """Local: another object takes its place."""
        self.value = value
        self.save()


class _DictHandler(StateHandler):
    """Of whatever has a state_dict."""

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
    """Weights and running statistics."""

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(_DictHandler):
    """Moments, learning rates and all other settings."""

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)


class SamplerStateHandler(_DictHandler):
    """Epoch, and how much of it is processed."""

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))


Registry = Sequence[tuple[type, type[StateHandler]]]

STANDARD: Registry = (
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
)


class _Handlers:
    """Those that new states use. Programs written for Horovod change them by a plain function, so they are kept here."""

    def __init__(self) -> None:
        self.registry: list[tuple[type, type[StateHandler]]] = list(STANDARD)


HANDLERS = _Handlers()


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Local: pairs of a type and its handler; the first that fits is taken. The list may be added to."""
    return HANDLERS.registry


def set_handler_registry(registry: Registry) -> None:
    """Local: for all states that are made from now on."""
    HANDLERS.registry = list(registry)


def handler_of(value: Any) -> StateHandler | None:
    """Local: the handler of a value; None for one that travels as a plain object."""
    kinds = (handler for kind, handler in HANDLERS.registry if isinstance(value, kind))
    found = next(kinds, None)
    return None if found is None else found(value)


class TorchState(ObjectState):
    """What a PyTorch program must not lose: `TorchState(model, optimizer, epoch=0, batch=0, sampler=sampler)`."""

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        """Local: every value is an attribute; those with a handler are saved and sent by it."""
        given = {**kwargs, "model": model, "optimizer": optimizer}
        handlers = {name: handler for name, value in given.items() if (handler := handler_of(value)) is not None}
        self._handlers: dict[str, StateHandler] = {}
        for name, handler in handlers.items():
            setattr(self, name, handler.value)
        self._handlers = handlers
        plain = {name: value for name, value in given.items() if name not in handlers}
        super().__init__(broadcast_object, lambda: PROCESS.topology.rank, **plain)

    def save(self) -> None:
        """Local: copies of everything."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Local: everything as it was at the last `save`."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Collective, blocking: everything as rank 0 has it now; then it is saved, all at once: a worker that is lost in the middle
        leaves the others with what they had saved before, which is whole."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()
        self.save()

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None and handler.value is not value:
            handler.set_value(value)
        super().__setattr__(name, value)
