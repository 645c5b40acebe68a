import unisono as un
from training import build_and_compile_model, dataset, epochs, steps_per_epoch, test_data

strategy = un.keras.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = build_and_compile_model()
model.fit(dataset, epochs=epochs, steps_per_epoch=steps_per_epoch)

loss, accuracy = model.evaluate(*test_data, verbose=0)
classes = model.predict(test_data[0], verbose=0).argmax(axis=1)
if strategy.is_chief:
    print('Test accuracy:', accuracy)
    print('first predictions:', classes[:10], 'labels:', test_data[1][:10])
