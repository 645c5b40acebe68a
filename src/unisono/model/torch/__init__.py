"""A PyTorch model as a replica: parameters, buffers and optimiser state in flat vectors.

Imported by the other front ends (Lightning, Keras), algorithms, training and all above.
"""
