"""WHICH SAMPLES: the plan (pure index arithmetic), splits and folds, the loader; sources/ has one file for each format.

Imported by many packages; imports cluster.
"""
