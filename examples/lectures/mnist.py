"""MNIST for the scripts of the lectures, with the name and the call that Keras has: `mnist.load_data()`.

It comes from the folder of `unisono data get mnist`. Where that has not been run, it comes from the internet as on the slides.
Folders of lectures hold links to this file, so that the scripts there can `import mnist`.
"""

import sys
from typing import Any

import unisono as un


def load_data() -> Any:
    """Local, blocking: (images, labels) to learn from, (images, labels) to test with; images are uint8, 28 x 28."""
    try:
        folder = un.locate("mnist")
    except un.UsageError as error:
        print(f"{error}; until then Keras fetches it", file=sys.stderr)
        from keras.datasets import mnist

        return mnist.load_data()
    names = [(folder / f"{part}-images-idx3-ubyte.gz", folder / f"{part}-labels-idx1-ubyte.gz") for part in ("train", "t10k")]
    return tuple(un.Idx(images, labels).batch for images, labels in names)
