"""The driver of an elastic job: starts its workers, gives each generation its ranks, and continues while enough are left."""

from __future__ import annotations

import secrets
import selectors
import socket
from collections import deque
from contextlib import suppress

from unisono.horovod._impl.elastic.elastic_job import ElasticJob
from unisono.horovod._impl.elastic.elastic_plan import ElasticPlan
from unisono.horovod._impl.elastic.host_discovery import Change, Discovery, script_arguments
from unisono.horovod._impl.elastic.worker_environment import SECRET
from unisono.horovod._impl.elastic.worker_hosts import RealHosts
from unisono.horovod._impl.launching.output_folder import make_folder
from unisono.launch.last_lines import exit_code_of_lost_output, flush_output
from unisono.launch.orphans import OrphanGuard
from unisono.launch.output import LauncherOutput
from unisono.launch.signals import SignalInbox

__all__ = ["ElasticPlan", "drive"]


def drive(plan: ElasticPlan) -> int:
    """Runs the job to its end and returns its exit code: 0 if the workers came to the end of their program, 141 if the reader of
    our output is gone. Local, blocking.

    Only from the main thread. Nothing of the workers is left when it returns, nor on this machine when it is killed; workers on
    other hosts end in the moments after (`launch/ssh/remote_watchdog.py`). Raises `UsageError` before anything starts.
    """
    if plan.discovery_script is not None:
        script_arguments(plan.discovery_script, plan.env)
    logs = None if plan.output_folder is None else make_folder(plan.output_folder)
    secret = secrets.token_hex(16)
    with selectors.DefaultSelector() as selector, SignalInbox(selector) as inbox, OrphanGuard(plan.env) as orphan_guard:
        colour = not plan.env.get("NO_COLOR") and plan.env.get("TERM") != "dumb"
        console = LauncherOutput(selector, colour, logs is not None, timestamps=plan.timestamps)
        orphan_guard.mark_variable(SECRET, secret)
        hosts = RealHosts(plan, selector, inbox, orphan_guard, console, logs)
        job = ElasticJob(plan, selector, inbox, orphan_guard, console, hosts, secret)
        discovery = None if plan.discovery_script is None else _DiscoveryBridge(plan, selector, job)
        try:
            code = job.run().code
        except BaseException:
            job.kill()
            job.run()
            raise
        finally:
            if discovery is not None:
                discovery.close()
            job.close()
            orphan_guard.forget_groups()
        flush_output(selector, inbox, console)
    return code or exit_code_of_lost_output(console.failure)


class _DiscoveryBridge:
    """Passes the answers of the discovery script from the thread that asks it to the job."""

    def __init__(self, plan: ElasticPlan, selector: selectors.BaseSelector, job: ElasticJob) -> None:
        assert plan.discovery_script is not None
        self._selector = selector
        self._job = job
        self._answers: deque[Change] = deque()
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        selector.register(self._ear, selectors.EVENT_READ, self._deliver)
        self._discovery = Discovery(plan.discovery_script, plan.slots_per_host, plan.env, self._on_change)
        self._discovery.start()

    def close(self) -> None:
        """Ends the discovery and closes both sockets."""
        self._discovery.close()
        self._selector.unregister(self._ear)
        self._bell.close()
        self._ear.close()

    def _on_change(self, change: Change) -> None:
        """Keeps an answer and wakes the driver's thread. Called by the thread of the discovery."""
        self._answers.append(change)
        with suppress(BlockingIOError):  # full: it will wake up anyhow
            self._bell.send(b"!")

    def _deliver(self) -> None:
        """Passes all answers on to the job. Called in the driver's thread."""
        with suppress(BlockingIOError):
            self._ear.recv(64)
        while self._answers:
            self._job.note_hosts(self._answers.popleft())
