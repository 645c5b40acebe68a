"""Starting programs written for Horovod: `unisono horovodrun`, `unisono run --horovod` and `horovod.run`. Imported by these.

command line + file -> flags -> variables and a way to start: here, through srun, mpirun or ssh, or elastic
"""
