"""Behind the names of `unisono.horovod`: named operations in any order, agreed upon by all ranks, on Unisono's communicators.

    entry -> process_set_channel (queue, one thread) -> negotiation (what all ranks have submitted) -> fusion -> carrier -> done

engine/ does that; job/ is what `hvd.init()` makes; torch/, tensorflow/ and keras/ are the fronts; elastic/, launching/, timeline/.
Decisions: docs/decisions/0013-horovod.md.

Imported by commands and horovod; imports cluster, comm, launch and optim.
"""
