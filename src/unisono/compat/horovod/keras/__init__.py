"""Horovod's interface for Keras 3, on each of its backends.

    gradients -> packed in the framework -> one call to the host -> operations of the engine -> unpacked in the framework

`reduced.py` is where Keras calls us, `travel.py` packs, `on_<backend>.py` leaves a compiled step and comes back to it.
"""
