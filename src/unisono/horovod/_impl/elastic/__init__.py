"""Training that continues while workers come and go.

    worker: surviving_state (what must survive) -> elastic_loop (sync, train, restore, again) -> driver_connection (to the driver)
    driver: host_discovery -> elastic_job (who lives) -> rank_assignment (who gets which rank) -> worker_hosts (start, watch, end)

A *generation* is a fixed set of workers with ranks and their communicators. The driver makes a new one when a worker died, when one
is ready to join, or when a host goes.

Imported by horovod, job/, keras/, launching/, tensorflow/ and torch/; imports _impl, cluster, comm, job/, launch and launching/.
"""
