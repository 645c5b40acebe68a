"""horovod.torch: operations on tensors, their gradients, and optimisers that use them."""
