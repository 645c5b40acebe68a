"""horovod.torch: operations on tensors, their gradients, and optimisers that use them.

Imported by `horovod/torch`; the fronts of the other frameworks start their operations here too.
"""
