"""Training that goes on while workers come and go.

    worker: state (what must survive) -> loop (sync, train, restore, again) -> line (to the driver)
    driver: discovery (which hosts) -> roster (who lives) -> plan (who gets which rank) -> hosts (start, watch, end)

A *generation* is one life of the communicators: a fixed set of workers with ranks. The driver makes a new one when a worker died,
when one is ready to join, or when a host goes.
"""
