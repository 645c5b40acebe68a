"""What the slides leave to the reader: a model, and MNIST as a stream of batches."""

import keras
import numpy as np
from keras import layers

import mnist

epochs, batch_size = 3, 128
(images, labels), (test_images, test_labels) = mnist.load_data()
images, test_images = (part[..., None].astype('float32') / 255 for part in (images, test_images))
test_data = (test_images, test_labels)
steps_per_epoch = len(images) // batch_size


def batches():
    """In the same order on all workers: of each batch everyone takes its rows."""
    random = np.random.default_rng(0)
    while True:
        order = random.permutation(len(images))[:steps_per_epoch * batch_size]
        for rows in order.reshape(steps_per_epoch, batch_size):
            yield images[rows], labels[rows]


dataset = batches()


def build_and_compile_model(*normalisation, optimizer=None):
    model = keras.Sequential([
        keras.Input((28, 28, 1)),
        layers.Conv2D(32, 3, activation='relu'),
        *normalisation,
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(64, activation='relu'),
        layers.Dense(10, activation='softmax'),
    ])
    optimizer = optimizer or keras.optimizers.Adam(0.001)
    model.compile(loss='sparse_categorical_crossentropy', optimizer=optimizer, metrics=['accuracy'])
    return model
