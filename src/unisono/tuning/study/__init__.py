"""What a study knows and leaves on disk: trials, store, database, result, kept models.

Imported by many packages; imports files, search/, task, training, tuning and workers/.
"""
