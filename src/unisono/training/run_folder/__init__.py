"""What a run leaves: its directory, configuration, provenance, status, hashes and weights.

Imported by run.py, predict, commands and tuning.
"""
