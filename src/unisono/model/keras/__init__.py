"""A Keras model on any backend as a replica. Keras and its backend load at use.

Imported by training/frontends, keras and metrics.
"""
