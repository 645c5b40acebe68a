"""The contract in parts. `check_*(comm)` leaves the communicator usable; `fault_*(comm)` makes it unusable, on all ranks.

Imported by testing; imports algorithms, comm, data, run, task, testing and training.
"""
