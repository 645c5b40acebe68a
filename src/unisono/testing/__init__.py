"""The public contract suite of communicators and replicas, to be run on any machine and against any new engine or framework.

On a cluster: `srun python -m unisono.testing.contract` (or mpirun, torchrun, `unisono run -n 4 -m`); see its `--help`.
In a test of your own: `ranks.run_contract` and `ranks.run_ranks`.

Imported by no other package; imports algorithms, cluster, comm, data, model, run, task and training.
"""
