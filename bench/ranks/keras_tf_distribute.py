"""A rank of TensorFlow's MultiWorkerMirroredStrategy, which TF_CONFIG tells its place: `... SOCKET GROUP CASE DATA RANK SIZE`.

`model.fit` of Keras 3 ends with an error under this strategy, so the loop is written by hand: `strategy.run` inside one compiled
step, in which the optimiser adds up the gradients of all workers. Each worker counts loss and accuracy, which are added up once an
epoch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from time import perf_counter, process_time
from typing import Any

from bench.ranks.slot import stay_on_part


def main() -> None:
    rank, size = int(sys.argv[5]), int(sys.argv[6])
    stay_on_part(rank, size)
    import tensorflow as tf

    from bench.ranks.keras_learning import KerasLearning, make_model

    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    learning = KerasLearning()
    case = learning.case
    with strategy.scope():
        model = make_model(case)
    loss_of = model.loss

    def one_worker(inputs: Any, targets: Any, counted: Any) -> Any:
        """Collective: one step; returns the sums of loss and hits over the samples of this worker so far."""
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            loss = loss_of(targets, outputs)
            share = loss / size  # the optimiser adds up over the workers
        weights = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(share, weights), weights, strict=True))
        hits = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(outputs, 1), targets), tf.float32))
        return counted + tf.stack([loss * tf.cast(tf.shape(inputs)[0], tf.float32), hits])

    def own_samples(context: Any) -> Any:
        own = slice(context.input_pipeline_id, None, context.num_input_pipelines)
        samples = tf.data.Dataset.from_tensor_slices((learning.inputs[own], learning.targets[own]))
        return samples.shuffle(case.num_samples).batch(case.global_batch // size).repeat().prefetch(2)

    batches = iter(strategy.distribute_datasets_from_function(own_samples))  # once, as making it takes longer than a step

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(counted: Any) -> Any:
        return strategy.run(one_worker, args=(*next(batches), counted))

    def epochs(num_epochs: int) -> Iterator[tuple[float, float]]:
        for _ in range(num_epochs):
            counted = tf.zeros(2)
            for _ in range(case.steps):
                counted = step(counted)
            total = strategy.reduce("SUM", counted, axis=None).numpy() / case.num_samples
            print(f"loss {total[0]:.4f}  accuracy {total[1]:.4f}", flush=True)
            yield perf_counter(), process_time()

    versions = {"how": f"{size} workers of MultiWorkerMirroredStrategy, ring over gRPC"}
    learning.attend(rank, size, versions, model, lambda num_epochs: list(epochs(num_epochs)))


if __name__ == "__main__":
    main()
