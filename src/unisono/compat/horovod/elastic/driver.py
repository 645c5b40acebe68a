"""The driver of an elastic job: starts its workers, gives each generation its ranks, and goes on while enough are left."""

from __future__ import annotations

import secrets
import selectors
import socket
from collections import deque
from contextlib import suppress

from unisono.cluster.horovod_elastic import SECRET
from unisono.cluster.last_lines import code_of, pass_on_the_rest
from unisono.cluster.mortality import Mortality
from unisono.cluster.output import Console
from unisono.cluster.signals import SignalInbox
from unisono.compat.horovod.elastic.crew import Crew
from unisono.compat.horovod.elastic.discovery import Change, Discovery, words_of
from unisono.compat.horovod.elastic.hosts import RealHosts
from unisono.compat.horovod.elastic.plan import ElasticPlan
from unisono.compat.horovod.launching.output_folder import make_folder

__all__ = ["ElasticPlan", "drive"]


def drive(plan: ElasticPlan) -> int:
    """Local, blocking: run the job to its end and give its exit code, 0 if the workers came to the end of their program; 141 if our
    reader left.

    Only from the main thread. Nothing of the workers is left when it returns, nor on this machine when it is killed; workers on
    other hosts end in the moments after (`cluster/far_guard.py`). Raises `UsageError` before anything starts.
    """
    if plan.discovery_script is not None:
        words_of(plan.discovery_script, plan.env)
    logs = None if plan.output_folder is None else make_folder(plan.output_folder)
    secret = secrets.token_hex(16)
    with selectors.DefaultSelector() as selector, SignalInbox(selector) as inbox, Mortality(plan.env) as mortality:
        colour = not plan.env.get("NO_COLOR") and plan.env.get("TERM") != "dumb"
        console = Console(selector, colour, logs is not None, timestamps=plan.timestamps)
        mortality.mark(SECRET, secret)
        hosts = RealHosts(plan, selector, inbox, mortality, console, logs)
        crew = Crew(plan, selector, inbox, mortality, console, hosts, secret)
        finder = None if plan.discovery_script is None else _Finder(plan, selector, crew)
        try:
            code = crew.run().code
        except BaseException:
            crew.kill()
            crew.run()
            raise
        finally:
            if finder is not None:
                finder.close()
            crew.close()
            mortality.clear()
        pass_on_the_rest(selector, inbox, console)
    return code or code_of(console.failure)


class _Finder:
    """Brings the answers of the discovery script, which a thread asks, to the crew."""

    def __init__(self, plan: ElasticPlan, selector: selectors.BaseSelector, crew: Crew) -> None:
        assert plan.discovery_script is not None
        self._selector = selector
        self._crew = crew
        self._answers: deque[Change] = deque()
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        selector.register(self._ear, selectors.EVENT_READ, self._take)
        self._discovery = Discovery(plan.discovery_script, plan.slots_per_host, plan.env, self._put)
        self._discovery.start()

    def close(self) -> None:
        self._discovery.close()
        self._selector.unregister(self._ear)
        self._bell.close()
        self._ear.close()

    def _put(self, change: Change) -> None:
        self._answers.append(change)
        with suppress(BlockingIOError):  # full: it will wake up anyhow
            self._bell.send(b"!")

    def _take(self) -> None:
        with suppress(BlockingIOError):
            self._ear.recv(64)
        while self._answers:
            self._crew.note_hosts(self._answers.popleft())
