"""Trained models put to use: evaluated again, applied to new inputs, compared with each other.

Imported by commands; imports comm, data, files, metrics, model, observe, task and training.
"""
