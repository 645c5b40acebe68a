"""The parts of the control plane: how the processes of a job find each other, notice who is gone, and exchange plain data."""
