"""A Keras model, on whatever backend Keras runs, as one replica like any other. Keras and its backend are loaded at use."""
