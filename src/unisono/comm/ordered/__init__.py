"""Sums over the shards of a step with the same bits for every number of ranks.

Imported by algorithms and testing; imports comm and shared_memory/.
"""
