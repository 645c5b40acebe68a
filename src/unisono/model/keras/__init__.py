"""A Keras model on any backend as a replica. Keras and its backend load at use.

Imported by keras, metrics, testing and training; imports losses/, model and torch/.
"""
