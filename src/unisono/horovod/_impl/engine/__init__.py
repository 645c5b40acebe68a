"""The operations of a process set: submitted, agreed upon by all its ranks, fused, carried out.

Imported by job/ and the fronts; knows no framework but PyTorch, whose tensors it moves.
"""
