"""The practical: the class of a pixel of Indian Pines from its spectrum, learned from a tenth of the pixels.

    unisono data get indian_pines                     # once, 6 MB
    unisono horovodrun -np 2 python examples/lectures/juelich/indian_pines.py [FOLDER]

FOLDER holds the two .mat files, if not that of `unisono data get`.
"""

import sys
from pathlib import Path

import horovod.keras as hvd
import keras
import numpy as np
import tensorflow as tf
import unisono as un
from keras import backend as K

hvd.init()
config = tf.ConfigProto()
config.gpu_options.allow_growth = True
config.gpu_options.visible_device_list = str(hvd.local_rank())
K.set_session(tf.Session(config=config))

folder = Path(sys.argv[1]) if len(sys.argv) > 1 else un.locate("indian_pines")
scene = un.Scene(folder / "Indian_pines_corrected.mat", folder / "Indian_pines_gt.mat")
x, y = scene.read(np.arange(len(scene)))
x = (x - x.mean(axis=0)) / x.std(axis=0)

order = np.random.default_rng(0).permutation(len(x))  # the same on all workers
train, test = np.split(order, [len(x) // 10])
mine = train[hvd.rank():len(train) // hvd.size() * hvd.size():hvd.size()]  # of every worker, all of one length

model = keras.Sequential([
    keras.layers.Dense(128, activation='relu'),
    keras.layers.Dropout(0.2),
    keras.layers.Dense(128, activation='relu'),
    keras.layers.Dropout(0.2),
    keras.layers.Dense(int(y.max()) + 1, activation='softmax'),
])
opt = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
model.compile(loss='sparse_categorical_crossentropy', optimizer=opt, metrics=['accuracy'])

callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint('checkpoints/checkpoint-{epoch}.h5'))

model.fit(x[mine], y[mine], batch_size=32, epochs=40, callbacks=callbacks, verbose=2 if hvd.rank() == 0 else 0)

score = model.evaluate(x[test], y[test], verbose=0)
if hvd.rank() == 0:
    print('Test accuracy:', score[1])
