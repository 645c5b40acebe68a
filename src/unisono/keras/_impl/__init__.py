"""How `un.keras.Strategy` works: fit, evaluate and predict of Keras on our trainer.

Imported by unisono.keras only.
"""
