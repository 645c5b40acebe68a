import glob

from keras.layers import Conv2D, Dense, Dropout, Flatten, MaxPooling2D
from keras.models import Sequential

import unisono as un


def get_model():
    model = Sequential()
    model.add(Conv2D(32, kernel_size=(3, 3),
        activation='relu',
        input_shape=(28, 28, 1)))
    model.add(Conv2D(64, (3, 3), activation='relu'))
    model.add(MaxPooling2D(pool_size=(2, 2)))
    model.add(Dropout(0.25))
    model.add(Flatten())
    model.add(Dense(128, activation='relu'))
    model.add(Dropout(0.5))
    model.add(Dense(10, activation='softmax'))
    return model

def get_name():
    return 'mnist'

def get_train():
    all_list = sorted(glob.glob('mnist_*.h5'))
    l = int(len(all_list) * 0.70)
    train_list = all_list[:l]
    return train_list

def get_val():
    all_list = sorted(glob.glob('mnist_*.h5'))
    l = int(len(all_list) * 0.70)
    val_list = all_list[l:]
    return val_list

def get_features():
    return ('features', lambda x: x)

def get_labels():
    return 'labels'


# What Unisono asks for: the functions above as a task.
def data():
    name, adapt = get_features()
    train, val = (un.HDF5(files, inputs=name, targets=get_labels()).map_inputs(adapt) for files in (get_train(), get_val()))
    return un.Splits(train=train, validation=val)

task = un.Task(model=get_model, data=data, name=get_name(), loss='categorical_crossentropy', metrics=('accuracy',),
               optimizer='adam', lr=0.001, epochs=5, space={'lr': un.Range(0.0003, 0.003, log=True)})
