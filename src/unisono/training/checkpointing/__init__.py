"""State that survives: what is saved, when, and how it is put back on any number of workers.

Imported by keras, run, run_folder/ and training; imports algorithms, comm, files, model, run_folder/ and training.
"""
