"""Horovod's interface on Unisono's communicators: named operations in any order, agreed upon by all ranks.

    entry -> channel (queue, one thread) -> negotiation (what all ranks have submitted) -> fusion -> carry out -> entry is done

The names are those of the package; the decisions are in docs/decisions/0013-horovod.md.
"""
