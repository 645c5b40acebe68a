"""A Keras model that all workers train: `fit`, `evaluate` and `predict` with Keras's arguments, on their parts of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unisono.algorithms.base import find_algorithm
from unisono.comm.base import Communicator
from unisono.comm.on_all_ranks import on_all_ranks
from unisono.comm.replicate import replicate
from unisono.data.loader import batches_in_order
from unisono.data.sharding_plan import cut
from unisono.data.source import Source
from unisono.data.sources.arrays import Arrays
from unisono.data.tree import map_tree
from unisono.errors import UsageError
from unisono.keras._impl.fit_inputs import (
    DEFAULT_BATCH,
    as_batch,
    batch_for,
    first_steps,
    first_training_batch,
    read_all,
    rows,
)
from unisono.keras._impl.fit_record import settings_of_fit
from unisono.keras._impl.fitting import Fit, FitData, FitSchedule
from unisono.keras._impl.gathering import rows_of_all
from unisono.keras._impl.streams import as_stream, is_stream
from unisono.keras._impl.whole_files import save_model, write_whole
from unisono.model.keras.backends import Backend
from unisono.model.keras.make_replica import make_replica
from unisono.model.keras.module import KerasModule
from unisono.model.torch.adapter import TorchAdapter
from unisono.model.torch.body import call
from unisono.task.task import Task
from unisono.training.evaluation import EvaluationPlan, evaluate
from unisono.training.frontends.keras_frontend import KerasFrontEnd
from unisono.training.same_data import expect_same_data, expect_same_settings

if TYPE_CHECKING:
    from unisono.keras._impl.strategy import Strategy


class SharedModel:
    """Replaces `fit`, `evaluate` and `predict` of a Keras model by ones that all workers execute together."""

    def __init__(self, strategy: Strategy, model: Any) -> None:
        self.strategy = strategy
        self.model = model
        self._backend: Backend | None = None
        self._compiled: Any = None

    def replace_methods(self) -> None:
        """Local: replaces the methods of the model; those for single batches raise from then on, and those that save write whole
        files."""
        for name in ("fit", "evaluate", "predict"):
            object.__setattr__(self.model, name, getattr(self, name))
        for name in ("train_on_batch", "test_on_batch", "predict_on_batch"):
            object.__setattr__(self.model, name, partial(_refuse_method, name))
        for name, write in (("save", save_model), ("save_weights", save_model), ("export", write_whole)):
            object.__setattr__(self.model, name, partial(write, getattr(self.model, name)))

    @property
    def comm(self) -> Communicator:
        return self.strategy.comm

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Sequence[int] = 1,
    ) -> Any:
        """Collective, blocking: as `keras.Model.fit`, on all workers. `batch_size` is that of all workers together."""
        from keras import tree

        def opened() -> Fit:
            if not self.model.compiled:
                raise UsageError("the model is not compiled; call model.compile(...) before fit")
            given = (x, y, sample_weight, validation_data)
            if validation_split:
                given = _split_off(*given, share=validation_split)
            train, targets, weights, seen = given
            validation = _evaluation_source(seen, validation_steps, validation_batch_size or batch_size, "validation_data")
            stream = as_stream(train, steps_per_epoch, "x", bool(shuffle)) if is_stream(train) else None
            if stream is not None:
                stream.refuse_short_epochs(epochs - initial_epoch)
                for name, value in (("y", targets), ("sample_weight", weights), ("batch_size", batch_size)):
                    if value is not None:
                        raise UsageError(f"the {stream.kind} already determines {name}; leave {name} out")
                source: Source = Arrays(*first_training_batch(stream, class_weight))
            else:
                if isinstance(train, Source):
                    _refuse_options("fit with a Source", y=targets, sample_weight=weights, class_weight=class_weight)
                source = train if isinstance(train, Source) else Arrays(*as_batch(train, targets, weights, class_weight))
                whole = -(-len(source) // batch_for(len(source), batch_size, steps_per_epoch))
                if steps_per_epoch not in (None, whole):
                    raise UsageError(
                        f"steps_per_epoch is {steps_per_epoch}, but an epoch uses all {whole} batches of x; leave it out, or give "
                        "a stream that continues from epoch to epoch"
                    )
            batch = len(source) if stream is not None else batch_for(len(source), batch_size, steps_per_epoch)
            return Fit(
                self.strategy,
                self.model,
                self._replica,
                FitData(
                    train=source,
                    stream=stream,
                    validation=validation,
                    batch=batch,
                    class_weight=class_weight,
                    shuffle=bool(shuffle),
                ),
                FitSchedule(
                    epochs=epochs,
                    initial_epoch=initial_epoch,
                    validation_freq=validation_freq,
                    validation_batch=validation_batch_size or batch,
                    verbose=verbose,
                ),
                self.strategy.num_fits,
            )

        fit_call = on_all_ranks(self.comm, opened)
        expect_same_settings(self.comm, on_all_ranks(self.comm, lambda: settings_of_fit(fit_call)))
        self.strategy.count_fit()
        with self.strategy.during("fit"):
            if find_algorithm(self.strategy.algorithm).has_server:
                others = {
                    "initial_epoch": initial_epoch or None,
                    "validation_freq": None if validation_freq == 1 else validation_freq,
                    "shuffle": None if shuffle else False,
                    "validation_batch_size": validation_batch_size,
                }
                in_step = {"callbacks": callbacks, "steps_per_epoch": steps_per_epoch, "a stream": fit_call.data.stream, **others}
                _refuse_options("fit with a server", **in_step)
                return fit_call.fit_with_server()
            return fit_call.fit_in_step([one for one in tree.flatten(callbacks) if one is not None] if callbacks else [])

    def _replica(self, learns: bool = True) -> KerasModule:
        """Local: makes the module that computes with the current model; its backend is kept, as it holds compiled steps."""
        compiled_with = (self.model._compile_loss, self.model._compile_metrics, *map(id, self.model.trainable_variables))
        if self._backend is None or self._compiled != compiled_with:
            made = make_replica(self.model, learns)
            self._backend, self._compiled = made.backend, compiled_with
            return made
        return KerasModule(self._backend.pure, self._backend)

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",  # noqa: ARG002 - there is nothing to be shown
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Collective, blocking: as `keras.Model.evaluate`; every sample counts once, whatever the number of workers."""
        _refuse_options("evaluate", callbacks=callbacks, **kwargs)
        comm = self.comm

        def opened() -> tuple[Source, TorchAdapter, Any]:
            found = _evaluation_source(
                x if is_stream(x) or isinstance(x, Source) else (x, y, sample_weight), steps, batch_size, "x"
            )
            assert found is not None
            module = self._replica().to(comm.device)
            front = KerasFrontEnd(Task(model=self._replica, data=dict), module)
            front.build(found, comm.device)
            body = front.body(with_outputs=True)
            return found, TorchAdapter(module, body, front.parameters(), comm.device, comm.empty), front.metrics()

        source, adapter, metrics = on_all_ranks(comm, opened)
        expect_same_data(comm, {"x": source})
        replicate(comm, adapter.shared_state())  # as in `fit`, those of the first worker count
        values = evaluate(comm, adapter, source, EvaluationPlan(metrics, batch_size or DEFAULT_BATCH), "")
        assert values is not None
        if return_dict:
            return values
        return self.model._flatten_metrics_in_order(values) if len(values) > 1 else values["loss"]

    def predict(
        self, x: Any, batch_size: int | None = None, verbose: Any = "auto", steps: int | None = None, callbacks: Any = None
    ) -> Any:
        """Collective, blocking: as `keras.Model.predict`: the outputs of all samples in their order, on all workers."""
        del verbose
        _refuse_options("predict", callbacks=callbacks)
        comm = self.comm

        def opened() -> tuple[Source, KerasModule]:
            source = read_all(x, steps, "x") if is_stream(x) else x if isinstance(x, Source) else Arrays(map_tree(np.asarray, x))
            if not len(source):
                raise UsageError("x has no samples, so there is nothing to predict")
            if not is_stream(x):
                source = first_steps(source, steps, batch_size)
            return source, self._replica(learns=False).to(comm.device)

        source, module = on_all_ranks(comm, opened)
        expect_same_data(comm, {"x": source})
        with torch.no_grad():
            replicate(comm, [*module.trainable(), *module.non_trainable()])
        kind = next(chain(module.parameters(), module.buffers()), torch.zeros(()))
        found = []
        for _, batch in batches_in_order(source, cut(len(source), comm.size, comm.rank), batch_size or DEFAULT_BATCH):
            inputs = map_tree(partial(_like, kind), batch[0] if isinstance(batch, tuple) else batch)
            found.append(map_tree(_own_memory, call(module, inputs)))
        return rows_of_all(comm, found)


def _refuse_method(name: str, *_: Any, **__: Any) -> None:
    """Stands for methods that only one worker would run: refuses every call."""
    raise UsageError(f"{name} would run on one worker only; use fit, evaluate or predict, or a loop with strategy.reduce")


def _evaluation_source(data: Any, steps: int | None, batch: int | None, what: str) -> Source | None:
    """Returns the data of an evaluation as a source, its first `steps` batches only if given; None for no data."""
    if data is None:
        return None
    if is_stream(data):
        return read_all(data, steps, what)
    if isinstance(data, Source):
        source = data
    elif isinstance(data, (tuple, list)) and len(data) in (2, 3):
        source = Arrays(*as_batch(data[0], data[1], data[2] if len(data) == 3 else None, None))
    else:
        raise UsageError(f"{what} must be (inputs, targets) or (inputs, targets, weights), or a stream of them")
    return first_steps(source, steps, batch)


def _split_off(x: Any, y: Any, weights: Any, validation: Any, share: float) -> tuple[Any, Any, Any, Any]:
    """Splits off the last samples for validation, as Keras does."""
    if validation is not None:
        raise UsageError("validation_split and validation_data are both given; leave one out")
    if is_stream(x) or isinstance(x, Source) or not 0 < share < 1:
        raise UsageError(f"validation_split {share} must be between 0 and 1, and x must be arrays; or give validation_data")
    whole = as_batch(x, y, weights, None)
    border = int(len(Arrays(*whole)) * (1 - share))
    train, seen = (map_tree(partial(rows, where), whole) for where in (slice(None, border), slice(border, None)))
    return train[0], train[1], train[2] if len(train) == 3 else None, seen


def _refuse_options(method: str, **given: Any) -> None:
    """Refuses each of these options of `method` that is not None."""
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{method} does not support {name} in un.keras; leave it out")


def _like(kind: Tensor, leaf: Any) -> Tensor:
    """Converts a part of a batch to a tensor on the model's device, floating numbers in its type."""
    found = torch.as_tensor(leaf).to(kind.device)
    return found.to(kind.dtype) if found.is_floating_point() else found


def _own_memory(output: Tensor) -> Tensor:
    """Returns a copy of the output on the host, bfloat16 as float32."""
    return output.detach().to("cpu", torch.float32 if output.dtype is torch.bfloat16 else output.dtype, copy=True)
