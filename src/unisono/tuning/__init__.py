"""SEARCH for the settings of a task: trials in blocks of workers, inside one allocation or over many jobs.

Imported by api, commands and start_training; imports many packages.
"""
