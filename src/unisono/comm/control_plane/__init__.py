"""The control plane: the processes of a job find each other, notice lost ranks, and exchange small plain data.

Imported by the engines and by everything that needs messages between processes outside of collectives.
"""
