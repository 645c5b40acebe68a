"""Sums over the shards of a step with the same bits for every number of ranks.

Imported by the algorithm `sharded` and by the contract suite.
"""
