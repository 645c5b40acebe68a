"""GO ROUND: the training loop, evaluation, determinism; frontends/, checkpointing/, run_folder/, server/.

Imported by commands, keras, predict, run, testing and tuning; imports algorithms, cluster, comm, data, files, launch, metrics,
model, optim, stopping and task.
"""
