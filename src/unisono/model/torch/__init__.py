"""A PyTorch model as a replica: parameters, buffers and optimiser state in flat vectors.

Imported by many packages; imports launch and model.
"""
