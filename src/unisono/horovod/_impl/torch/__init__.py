"""horovod.torch: operations on tensors, their gradients, and optimisers that use them.

Imported by horovod, keras/ and tensorflow/; imports _impl, comm, elastic/, engine/, job/ and optim.
"""
