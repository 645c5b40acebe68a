import unisono as un
from training import build_and_compile_model, dataset, epochs, steps_per_epoch

strategy = un.keras.MirroredStrategy()
with strategy.scope():
    model = build_and_compile_model()
model.fit(dataset, epochs=epochs, steps_per_epoch=steps_per_epoch)
