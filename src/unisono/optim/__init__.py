"""HOW FAR TO MOVE: optimisers by name, learning-rate schedules, scaling rules, pure functions of steps and vectors; and what
distributed optimisers share.

Imported by horovod, own_loop, training and tuning; imports no other package.
"""
