"""JEDI-net in Keras 3, for any of its backends: the model and the jets of `jedi_net.py`, which explains both.

KERAS_BACKEND=jax unisono train examples/jedi_net_keras.py -n 2
unisono train examples/jedi_net_keras.py -n 2 --set model.particles=100 --set data.particles=100      # the published size
"""

from typing import Annotated, Any

import keras
from jets import CLASSES, NUM_FEATURES, data  # type: ignore[import-not-found]  # stands beside this file
from keras import layers, ops

import unisono as un


def model(
    particles: int = 16,
    hidden: Annotated[int, un.Range(10, 100)] = 30,
    effects: Annotated[int, un.Range(4, 32)] = 10,
    outputs: Annotated[int, un.Range(4, 32)] = 10,
    summed: bool = False,
) -> keras.Model:
    jets = keras.Input((particles, NUM_FEATURES), name="jets")
    receiver = layers.Dense(hidden, name="as_receiver")(jets)  # with `as_sender` the first layer of f_R
    sender = layers.Dense(hidden, use_bias=False, name="as_sender")(jets)
    second = layers.Dense(hidden // 2, activation="elu", name="effect_2")
    third = layers.Dense(effects, activation="elu", name="effect_3")

    def effect(pairs: Any) -> Any:
        return third(second(ops.elu(pairs)))

    on_itself = effect(receiver + sender)  # one in each sum over all particles, and cheaper to take away than to leave out
    received = ops.sum(effect(ops.expand_dims(receiver, 2) + ops.expand_dims(sender, 1)), axis=2) - on_itself
    output = perceptron("particle", hidden, outputs, "elu", ops.concatenate([jets, received], axis=2))
    together = ops.sum(output, axis=1) if summed else layers.Flatten()(output)
    return keras.Model(jets, perceptron("jet", hidden, len(CLASSES), None, together), name="jedi_net")


def perceptron(name: str, hidden: int, out: int, activation: str | None, inputs: Any) -> Any:
    first = layers.Dense(hidden, activation="elu", name=f"{name}_1")(inputs)
    second = layers.Dense(hidden // 2, activation="elu", name=f"{name}_2")(first)
    return layers.Dense(out, activation=activation, name=f"{name}_3")(second)


task = un.Task(
    model=model,
    data=data,
    loss="cross_entropy",
    metrics=("accuracy",),
    optimizer="adam",
    lr=0.01,
    schedule="one_cycle",
    global_batch=128,
    epochs=12,
)
