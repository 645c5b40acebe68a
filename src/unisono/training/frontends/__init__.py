"""From a task to the parts of a training: torch, Lightning and Keras.

Imported by training/prepare.py, predict, keras and tuning.
"""
