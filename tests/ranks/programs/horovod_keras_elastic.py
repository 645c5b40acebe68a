"""horovod.keras.elastic on the backend that KERAS_BACKEND names: a state that is shared, and a training that begins again."""
# mypy: disable-error-code="no-untyped-call,no-untyped-def,misc,untyped-decorator"

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import unisono.horovod.tensorflow.keras as hvd

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs.horovod_checks import checks_of, raises, run

EPOCHS, STEPS = 3, 4


def model() -> Any:
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    net.set_weights([np.full((2, 2), hvd.rank() + 1.0), np.full(2, hvd.rank() + 1.0)])
    net.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    return net


def check_optimizers_of_an_earlier_attempt_match_those_of_a_new_worker() -> None:
    """Rank 0 keeps its optimisers; to the others everything is new."""
    before = [hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)) for _ in range(4)]
    seen = keras.Variable(np.zeros(1, "float32"))
    for optimizer in before[:3]:  # the last one was made and not used, which new ranks cannot know
        optimizer.apply([keras.ops.ones(1)], [seen])
    del before[0], optimizer  # nor one that is gone
    hvd.shutdown()
    hvd.init()
    if hvd.rank():
        before = [hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)) for _ in range(2)]
        seen = keras.Variable(np.zeros(1, "float32"))
    for optimizer, gradient in zip(before, (1.0, 10.0), strict=False):
        was = float(keras.ops.convert_to_numpy(seen)[0])
        optimizer.apply([keras.ops.ones(1) * gradient], [seen])
        assert float(keras.ops.convert_to_numpy(seen)[0]) == was - gradient


def check_a_state_is_shared_saved_and_restored() -> None:
    with raises(ValueError, "not built"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(2)]))
    net = model()
    state = hvd.elastic.KerasState(net, batch=20 + hvd.rank(), epoch=10 + hvd.rank())
    state.sync()
    assert all((weight == 1).all() for weight in net.get_weights())
    assert (state.batch, state.epoch) == (20, 10)
    net.set_weights([weight + 1 for weight in net.get_weights()])
    net.optimizer.iterations.assign(7)
    state.batch = 21
    state.restore()
    assert all((weight == 1).all() for weight in net.get_weights())
    assert (state.batch, int(net.optimizer.iterations.numpy() if hasattr(net.optimizer.iterations, "numpy") else 0)) == (20, 0)
    net.set_weights([weight + 1 for weight in net.get_weights()])
    state.batch = 21
    state.commit()
    net.set_weights([weight + 1 for weight in net.get_weights()])
    state.restore()
    assert all((weight == 2).all() for weight in net.get_weights())
    assert state.batch == 21


def lost(*_: Any, **__: Any) -> None:
    raise hvd.HorovodInternalError("somebody was lost")


def check_a_sync_that_ends_half_way_leaves_what_was_kept_whole() -> None:
    net = model()
    state = hvd.elastic.KerasState(net, batch=1)
    state.sync()
    net.set_weights([weight + 1 for weight in net.get_weights()])
    state.batch, state._bcast_object = 2, lost
    with raises(hvd.HorovodInternalError, "somebody was lost"):
        state.sync()
    state.restore()
    assert all((weight == 1).all() for weight in net.get_weights()) and state.batch == 1


class Breaks(keras.callbacks.Callback):
    """The first rank fails once, while the others are on their way into the next step."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.lives = 0

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self.lives += 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        if hvd.rank() == 0 and self.lives == 1 and self.state.epoch == 1 and batch == 1:
            raise hvd.HorovodInternalError("somebody was lost")


def learned(breaks: bool) -> tuple[Any, list[int]]:
    net = model()
    state = hvd.elastic.KerasState(net, batch=0, epoch=0)
    breaking, began = Breaks(state), []
    callbacks = [
        *([breaking] if breaks else []),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=100),
    ]
    draw = np.random.default_rng(hvd.rank())
    inputs, targets = draw.normal(size=(STEPS * 3, 2)), draw.normal(size=(STEPS * 3, 2))

    @hvd.elastic.run
    def train(state: Any) -> None:
        began.append(state.epoch)
        net.fit(inputs, targets, 3, epochs=EPOCHS - state.epoch, shuffle=False, verbose=0, callbacks=callbacks)

    train(state)
    assert (state.epoch, state.batch) == (EPOCHS, 0)
    return net, began


def check_a_training_begins_again_where_it_was_committed() -> None:
    whole, began = learned(breaks=False)
    assert began == [0]
    again, began = learned(breaks=True)
    assert began == [0, 1], began  # one whole epoch was committed
    for one, two in zip(whole.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-6)


if __name__ == "__main__":
    run(checks_of(globals()))
