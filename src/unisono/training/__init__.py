"""GO ROUND: the training loop, evaluation, determinism; frontends/, checkpointing/, run_folder/, server/.

Imported by run.py and the applications above.
"""
