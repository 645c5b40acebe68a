"""Training through a server: its loop, background evaluation, workers that join.

Imported by commands, frontends/, run and training; imports algorithms, cluster, comm, data, model, run_folder/, stopping, task and
training.
"""
