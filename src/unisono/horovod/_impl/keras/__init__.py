"""Horovod's interface for Keras 3, on each of its backends.

    gradients -> packed in the framework -> one call to the host -> operations of the engine -> unpacked in the framework

Keras calls `reduced_updates.py`; `gradient_transport.py` packs; `step_on_<backend>.py` leaves a compiled step and comes back.

Imported by horovod and tensorflow/; imports _impl, elastic/, engine/, job/, launching/, tensorflow/ and torch/.
"""
