"""Horovod's interface for TensorFlow. Imported by `horovod/tensorflow` when one of its names is used.

Most of its modules import TensorFlow when they are imported, as it is their subject.
"""
