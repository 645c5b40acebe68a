"""A training loop in TensorFlow 2 on several workers with Horovod's interface; the same command resumes from the last checkpoint.

    KERAS_BACKEND=tensorflow unisono horovodrun -np 2 python examples/lectures/biohpc/tensorflow_loop.py

Shows: start, one GPU for each process, a learning rate that grows with the workers, gradients averaged over all workers,
checkpoints that rank 0 alone reads and writes (in runs/lectures/tensorflow_loop; delete the folder to start over), and a
broadcast that gives its variables to the others.

Older practice: in TensorFlow 1 a `MonitoredTrainingSession` ran the loop, `BroadcastGlobalVariablesHook` sent the variables,
and the optimiser was wrapped. A GradientTape is wrapped instead today. Programs of the old kind run after `import
tensorflow.compat.v1 as tf` and `tf.disable_v2_behavior()`. Checkpoints went to /tmp, which all users of a node share and the
other nodes do not see.
"""

from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

import unisono as un

FOLDER = "runs/lectures/tensorflow_loop"
STEPS, SAVE_EVERY, BATCH, RATE = 100, 20, 64, 0.02


def main() -> None:
    hvd.init()
    if gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    net = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    optimizer = keras.optimizers.Adagrad(RATE * hvd.size())
    optimizer.build(net.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    done = tf.Variable(0, dtype=tf.int64)  # steps

    checkpoint = tf.train.Checkpoint(net=net, optimizer=optimizer, done=done)
    manager = tf.train.CheckpointManager(checkpoint, FOLDER, max_to_keep=2)
    if hvd.rank() == 0 and manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint)
        print(f"resumed from step {int(done)}")
    hvd.broadcast_variables([*net.variables, *optimizer.variables, done], root_rank=0)

    @tf.function  # type: ignore[untyped-decorator]
    def step(images: Any, digits: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(digits, net(images, training=True))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
        done.assign_add(1)
        return hvd.allreduce(loss)

    # Each worker shuffles its own part of the samples and repeats it without end, so none runs out of batches before the others.
    samples = tf.data.Dataset.from_tensor_slices(un.digits()).shard(hvd.size(), hvd.rank())
    batches = samples.shuffle(len(samples), seed=0).repeat().batch(BATCH)
    for images, digits in batches.take(STEPS - int(done)):
        loss = step(images, digits)
        if hvd.rank() == 0 and done % SAVE_EVERY == 0:
            manager.save(int(done))
            print(f"step {int(done)}, loss {float(loss):.4f}")


if __name__ == "__main__":
    main()
