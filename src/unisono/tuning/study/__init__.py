"""What a study knows and leaves on disk: trials, store, database, result, kept models.

Imported by many packages; imports algorithms, data, files, search/, task, training, tuning and workers/.
"""
