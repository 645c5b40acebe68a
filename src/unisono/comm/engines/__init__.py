"""One Communicator for each engine (single, shm, gloo, nccl, mpi), with what gloo, NCCL and MPI need around them.

Imported by comm/connect.py, at use; nothing else names an engine class.
"""
