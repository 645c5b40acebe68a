"""WHICH SAMPLES: the plan (pure index arithmetic), splits and folds, the loader; sources/ has one file for each format.

Imported by algorithms, training and all above; imports no model and no communicator.
"""
