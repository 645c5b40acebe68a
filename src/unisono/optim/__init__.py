"""HOW FAR TO MOVE: optimisers by name, learning-rate schedules, scaling rules; pure functions of steps and vectors.

Imported by training; imports no other package.
"""
