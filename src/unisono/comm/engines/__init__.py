"""One Communicator for each engine (single, shm, gloo, nccl, mpi), with what gloo, NCCL and MPI need around them.

Imported by comm, doctor, exchange/, horovod and tuning; imports cluster, comm, control_plane/ and shared_memory/.
"""
