"""`my_dl_model.py` with the steps of Horovod; every worker has images of its own.

    unisono horovodrun -np 2 python examples/lectures/biohpc/my_dl_model_horovod.py --model resnet50 --batch-size 128
"""

import argparse
from time import perf_counter

import horovod.keras as hvd
import keras
import numpy as np
import tensorflow as tf
from keras import backend as K

hvd.init()
config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())
K.set_session(tf.Session(config=config))

networks = {name.lower(): network for name, network in vars(keras.applications).items() if isinstance(network, type(lambda: 0))}

parser = argparse.ArgumentParser()
parser.add_argument('--model', choices=sorted(networks), default='resnet50')
parser.add_argument('--batch-size', type=int, default=128)
parser.add_argument('--steps', type=int, default=10)
parser.add_argument('--image-size', type=int, default=32)
args = parser.parse_args()

random = np.random.default_rng(hvd.rank())
x = random.random((args.steps * args.batch_size, args.image_size, args.image_size, 3), dtype='float32')
y = random.integers(0, 10, len(x))

try:
    model = networks[args.model](weights=None, input_shape=x.shape[1:], classes=10)
except ValueError as error:  # some networks want larger images
    parser.error(f'--model {args.model} with --image-size {args.image_size}: {error}')
opt = keras.optimizers.SGD(0.01 * hvd.size())
opt = hvd.DistributedOptimizer(opt)
model.compile(loss='sparse_categorical_crossentropy', optimizer=opt)
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]

model.fit(x[:args.batch_size], y[:args.batch_size], batch_size=args.batch_size, verbose=0, callbacks=callbacks)  # compiles it
began = perf_counter()
model.fit(x, y, batch_size=args.batch_size, verbose=0)
if hvd.rank() == 0:
    print(f'{len(x) / (perf_counter() - began):.1f} images/s on each of {hvd.size()} workers')
