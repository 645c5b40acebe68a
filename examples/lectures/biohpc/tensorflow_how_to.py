"""The five steps of the slides in the TensorFlow 1 form that they have, around a small model and the digits that come with Unisono.

    unisono horovodrun -np 2 python examples/lectures/biohpc/tensorflow_how_to.py
"""

import tensorflow.compat.v1 as tf
import unisono as un

# 1. Initialize Horovod
import horovod.tensorflow as hvd
hvd.init()

tf.disable_v2_behavior()

# 2. Pin GPU to be used to process local rank (one GPU per process)
config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())

x, y = un.digits()
part = slice(hvd.rank(), len(x) // hvd.size() * hvd.size(), hvd.size())  # of every worker, all of one length
x, y = x[part], y[part]
hidden = tf.nn.relu(tf.matmul(tf.constant(x), tf.get_variable('first', (64, 64))))
scores = tf.matmul(hidden, tf.get_variable('second', (64, 10)))
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.constant(y), logits=scores))

# 3. Add Horovod Distributed Optimizer and scale the learning rate
opt = tf.train.AdagradOptimizer(0.01 * hvd.size())
opt = hvd.DistributedOptimizer(opt)

step = tf.train.get_or_create_global_step()
train = opt.minimize(loss, global_step=step)

# 4. Broadcast variables from rank 0 to all other processes during initialization.
hooks = [hvd.BroadcastGlobalVariablesHook(0)]

hooks.append(tf.train.StopAtStepHook(num_steps=100))

# 5. Save checkpoints only on worker 0 to prevent other workers from corrupting them.
checkpoint_dir = '/tmp/train_logs' if hvd.rank() == 0 else None

with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, config=config, hooks=hooks) as session:
    while not session.should_stop():
        _, now, at = session.run([train, loss, step])
        if hvd.rank() == 0 and at % 20 == 0:
            print('step', at, 'loss', now)
