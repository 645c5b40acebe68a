"""HOW FAR TO MOVE: optimisers by name, learning-rate schedules, scaling rules.

Imported by training and all above; pure functions of steps and vectors.
"""
