import horovod.tensorflow.keras as hvd
import keras
import tensorflow as tf
from horovod.tensorflow import SyncBatchNormalization
from training import batch_size, build_and_compile_model, epochs, images, labels, test_data

hvd.init()
if gpus := tf.config.list_physical_devices('GPU'):
    tf.config.set_visible_devices(gpus[hvd.local_rank()], 'GPU')

model = build_and_compile_model(SyncBatchNormalization(), optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size())))
part = slice(hvd.rank(), len(images) // hvd.size() * hvd.size(), hvd.size())  # of every worker, all of one length
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
model.fit(images[part], labels[part], batch_size=batch_size, epochs=epochs, callbacks=callbacks, verbose=2 if hvd.rank() == 0 else 0)

score = model.evaluate(*test_data, verbose=0)
if hvd.rank() == 0:
    print('Test accuracy:', score[1])
