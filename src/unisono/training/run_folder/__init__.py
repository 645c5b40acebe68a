"""What a run leaves: its directory, configuration, provenance, status, hashes and weights.

Imported by many packages; imports algorithms, checkpointing/, cluster, data, files, model, optim, task and training.
"""
