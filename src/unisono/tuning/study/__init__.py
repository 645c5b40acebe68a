"""What a study knows and leaves on disk: trials, store, database, result, kept models.

Imported by tuning and commands.
"""
