"""The five steps of the slides around a small Keras model and the digits that come with Unisono.

    unisono horovodrun -np 2 python examples/lectures/juelich/how_to.py
"""

import horovod.keras as hvd
import keras
import tensorflow as tf
import unisono as un
from keras import backend as K

# 1. Initialize Horovod
hvd.init()

# 2. Pin GPU to each process (local rank)
config = tf.ConfigProto()
config.gpu_options.allow_growth = True
config.gpu_options.visible_device_list = str(hvd.local_rank())
K.set_session(tf.Session(config=config))

x, y = un.digits()
part = slice(hvd.rank(), len(x) // hvd.size() * hvd.size(), hvd.size())  # of every worker, all of one length
x, y = x[part], y[part]
model = keras.Sequential([keras.layers.Dense(64, activation='relu'), keras.layers.Dense(10, activation='softmax')])
opt = keras.optimizers.SGD(0.1 * hvd.size())

# 3. Distribute the optimizer of your choice
opt = hvd.DistributedOptimizer(opt)

model.compile(loss='sparse_categorical_crossentropy', optimizer=opt, metrics=['accuracy'])

# 4. Broadcast initial variable states from rank 0 to all other processes
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0),]

# 5. Save checkpoints only on worker 0 to prevent other workers from corrupting them
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint('checkpoints/checkpoint-{epoch}.h5'))

model.fit(x, y, batch_size=32, epochs=5, callbacks=callbacks, verbose=2 if hvd.rank() == 0 else 0)
