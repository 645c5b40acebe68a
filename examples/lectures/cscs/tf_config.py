import os
import sys

index = sys.argv[1]
os.environ['TF_CONFIG'] = '''{
    "cluster": {"worker": ["localhost:8888", "localhost:8889"]},
    "task": {"type": "worker", "index": "''' + index + '''"}
}'''

import unisono as un
from training import build_and_compile_model, dataset, epochs, steps_per_epoch

strategy = un.keras.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = build_and_compile_model()
model.fit(dataset, epochs=epochs, steps_per_epoch=steps_per_epoch)
