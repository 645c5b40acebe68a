"""The model, lists and loss of the slide's command as a task."""

from pathlib import Path

import keras
import unisono as un


def model():
    return keras.models.model_from_json(Path(__file__).with_name('cifar10_arch.json').read_text())


def data(train='train_cifar10.list', val='test_cifar10.list'):
    train, val = (un.HDF5(Path(files).read_text().split(), inputs='features', targets='labels') for files in (train, val))
    return un.Splits(train=train, validation=val)


task = un.Task(model=model, data=data, loss='categorical_crossentropy', metrics=('accuracy',), optimizer='adam', lr=0.001)
