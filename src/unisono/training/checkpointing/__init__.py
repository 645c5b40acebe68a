"""State that survives: what is saved, when, and how it is put back on any number of workers.

Imported by training, run.py and keras.
"""
