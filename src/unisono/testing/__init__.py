"""The public contract suite: what every communicator must do, to be run on any machine and against any new engine.

On a cluster: `srun python -m unisono.testing.contract` (or mpirun, torchrun, `unisono run -n 4 -m`); see its `--help`.
In a test of your own: `ranks.run_contract` and `ranks.run_ranks`.
"""
