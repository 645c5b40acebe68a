"""What a run leaves: its directory, configuration, provenance, status, hashes and weights.

Imported by many packages; imports checkpointing/, cluster, data, files, model, task and training.
"""
