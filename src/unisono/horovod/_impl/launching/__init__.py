"""Starting programs written for Horovod: `unisono horovodrun`, `unisono run --horovod` and `horovod.run`.

command line + file -> flags -> variables and a way to start: here, through srun, mpirun or ssh, or elastic

Imported by commands, elastic/, horovod, keras/ and tensorflow/; imports cluster, elastic/, job/ and launch.
"""
