"""Horovod's interface for TensorFlow. Its modules import TensorFlow, so they are imported where that is in use."""
