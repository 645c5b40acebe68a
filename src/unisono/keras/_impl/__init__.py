"""How `un.keras.Strategy` works: fit, evaluate and predict of Keras on our trainer.

Imported by keras; imports algorithms, cluster, comm, data, files, model, run, stopping, task and training.
"""
