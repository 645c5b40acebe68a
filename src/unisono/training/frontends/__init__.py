"""From a task to the parts of a training: torch, Lightning and Keras.

Imported by keras, predict, testing, training and tuning; imports algorithms, comm, data, launch, metrics, model, optim,
run_folder/, server/, task and training.
"""
