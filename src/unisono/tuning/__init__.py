"""Search for the settings of a task: trials in blocks of workers, inside one allocation or over many jobs.

Imported by api.py and commands; stands on run.py.
"""
