"""The operations of a process set: submitted, agreed upon by all its ranks, fused, carried out.

Imported by job/, keras/, tensorflow/, timeline/ and torch/; imports _impl, comm, job/ and timeline/.
"""
