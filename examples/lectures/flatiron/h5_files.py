"""Writes the files that the slides begin with: samples as `features` and `labels`, one-hot, in ten HDF5 files, and lists of them.

    unisono data get mnist; python h5_files.py mnist            # mnist_0.h5 ... mnist_9.h5
    unisono data get cifar10; python h5_files.py cifar10        # train_cifar10_*.h5, train_cifar10.list, test_cifar10_*.h5, ...
"""

import pickle
import sys
from pathlib import Path

import h5py
import numpy as np

import unisono as un


def write(name, images, labels, num_files=10):
    """Local: the names of the files."""
    names = [f'{name}_{number}.h5' for number in range(num_files)]
    for number, path in enumerate(names):
        with h5py.File(path, 'w') as file:
            file['features'] = images[number::num_files].astype('float32') / 255
            file['labels'] = np.eye(10, dtype='float32')[labels[number::num_files]]
    return names


def cifar10(*batches):
    try:
        folder = un.locate('cifar10') / 'cifar-10-batches-py'
    except un.UsageError as error:
        sys.exit(str(error))
    parts = [pickle.loads((folder / batch).read_bytes(), encoding='bytes') for batch in batches]
    images = np.concatenate([part[b'data'] for part in parts]).reshape(-1, 3, 32, 32)
    return images.transpose(0, 2, 3, 1), np.concatenate([part[b'labels'] for part in parts])


match sys.argv[1:]:
    case ['mnist']:
        import mnist

        (images, labels), _ = mnist.load_data()
        write('mnist', images[..., None], labels)
    case ['cifar10']:
        parts = {'train': [f'data_batch_{number}' for number in range(1, 6)], 'test': ['test_batch']}
        for part, batches in parts.items():
            Path(f'{part}_cifar10.list').write_text('\n'.join(write(f'{part}_cifar10', *cifar10(*batches))) + '\n')
    case _:
        sys.exit('say which: python h5_files.py mnist, or python h5_files.py cifar10')
