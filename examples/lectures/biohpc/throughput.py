"""How many images a network learns from in a second, on one worker or several; the images are random.

    python examples/lectures/biohpc/throughput.py --model resnet50 --batch-size 128
    unisono run -n 2 examples/lectures/biohpc/throughput.py --model resnet50 --batch-size 128

One program for both commands: alone, `hvd.size()` is 1 and nothing travels. The batch is that of one worker, so the work grows
with the workers (weak scaling). Divide the total by that of one worker for the speedup, and by the workers for the efficiency.

Older practice: a second copy of the program with Horovod's lines in it, inside a container with Horovod compiled for the MPI of
the site. Here nothing is compiled; for a container see job.sbatch.
"""

import argparse
from time import perf_counter

import keras
import numpy as np

import unisono.horovod.keras as hvd

NETWORKS = {
    "mobilenet": keras.applications.MobileNet,
    "resnet50": keras.applications.ResNet50,
    "densenet121": keras.applications.DenseNet121,
    "inceptionv3": keras.applications.InceptionV3,
}
NUM_CLASSES = 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=NETWORKS, default="resnet50")
    parser.add_argument("--batch-size", type=int, default=128, help="images of one worker in one step")
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed")
    parser.add_argument("--image-size", type=int, default=32, help="pixels along an edge")
    args = parser.parse_args()

    hvd.init()
    shape = (args.image_size, args.image_size, 3)
    try:
        net = NETWORKS[args.model](weights=None, input_shape=shape, classes=NUM_CLASSES)
    except ValueError as error:  # some networks need larger images
        parser.error(f"--model {args.model} --image-size {args.image_size}: {error}")
    net.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size())), "sparse_categorical_crossentropy")

    random = np.random.default_rng(hvd.rank())
    images = random.random((args.steps * args.batch_size, *shape), dtype=np.float32)
    classes = random.integers(NUM_CLASSES, size=len(images))
    # The first step compiles the network, and the broadcast gives all workers the weights of rank 0: not timed.
    first = slice(args.batch_size)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    net.fit(images[first], classes[first], batch_size=args.batch_size, callbacks=callbacks, verbose=0)

    began = perf_counter()
    net.fit(images, classes, batch_size=args.batch_size, verbose=0)
    speed = len(images) / (perf_counter() - began)
    if hvd.rank() == 0:
        print(f"{args.model}: {speed * hvd.size():.1f} images/s on {hvd.size()} workers, {speed:.1f} on each")


if __name__ == "__main__":
    main()
