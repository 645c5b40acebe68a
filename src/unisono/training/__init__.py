"""GO ROUND: the training loop, evaluation, determinism; frontends/, checkpointing/, run_folder/, server/.

Imported by many packages; imports algorithms, cluster, comm, data, files, launch, metrics, model, optim, stopping and task.
"""
