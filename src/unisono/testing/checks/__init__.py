"""The contract in parts. `check_*(comm)` leaves the communicator usable; `fault_*(comm)` makes it unusable, on all ranks.

Imported by the suites of testing.
"""
