"""Trained models put to use: evaluated again, applied to new inputs, compared with each other.

Imported by commands; stands on training.
"""
