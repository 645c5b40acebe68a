"""The same five steps as TensorFlow 2 has them.

    unisono horovodrun -np 2 python examples/lectures/biohpc/tensorflow2_how_to.py
"""

import tensorflow as tf
import unisono as un

# 1. Initialize Horovod
import horovod.tensorflow as hvd
hvd.init()

# 2. Pin GPU to be used to process local rank (one GPU per process)
if gpus := tf.config.list_physical_devices('GPU'):
    tf.config.set_visible_devices(gpus[hvd.local_rank()], 'GPU')

x, y = un.digits()
part = slice(hvd.rank(), len(x) // hvd.size() * hvd.size(), hvd.size())  # of every worker, all of one length
x, y = x[part], y[part]
weights = [tf.Variable(tf.random.normal(shape, stddev=0.1)) for shape in ((64, 64), (64, 10))]

# 3. Add Horovod Distributed Optimizer and scale the learning rate
opt = tf.keras.optimizers.Adagrad(0.01 * hvd.size())
opt = hvd.DistributedOptimizer(opt)

# 4. Broadcast variables from rank 0 to all other processes during initialization.
opt.build(weights)
hvd.broadcast_variables(weights + opt.variables, root_rank=0)

# 5. Save checkpoints only on worker 0 to prevent other workers from corrupting them.
checkpoint_dir = '/tmp/train_logs' if hvd.rank() == 0 else None

@tf.function
def train():
    with tf.GradientTape() as tape:
        scores = tf.matmul(tf.nn.relu(tf.matmul(x, weights[0])), weights[1])
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=scores))
    opt.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return loss

for step in range(1, 101):
    loss = train()
    if hvd.rank() == 0 and step % 20 == 0:
        print('step', step, 'loss', float(loss))

if checkpoint_dir:
    tf.train.Checkpoint(weights=weights).save(checkpoint_dir + '/model')
