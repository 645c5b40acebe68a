"""The contract in parts. `check_*(comm)` leaves the communicator usable; `fault_*(comm)` spends it, on all ranks."""
