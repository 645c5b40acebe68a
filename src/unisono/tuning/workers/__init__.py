"""The coordinator, the blocks, the worker processes, and the messages between them.

Imported by api, study/ and tuning; imports algorithms, cluster, comm, data, files, launch, run, search/, stopping, study/, task and
training.
"""
