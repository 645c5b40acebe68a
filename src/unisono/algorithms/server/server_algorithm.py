"""The interface of algorithms whose workers call a server: Downpour, elastic averaging, gradient energy matching.

Such an algorithm is a rule: mathematics on flat vectors with explicit state. Its methods neither communicate nor wait: the loops
of the server and of the workers (service.py, worker.py) move its vectors, on real machines or on a virtual clock. The same object
serves every worker of a process, or the server. Where there are several servers, each holds a slice of all vectors.

    worker                                                     server
    before_gradient   sets where the gradient is computed
    on_gradient       makes the local step
    message           forms what is sent, when a call is due   -->  apply_update   changes the server's weights
    on_reply          uses the reply                           <--                 and returns the replies
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from unisono.algorithms.base import Algorithm, GroupSettings, ModelSize, Traffic
from unisono.algorithms.roles import DEFAULT_LAYOUT, LayoutOptions
from unisono.algorithms.server.server_layout import ServerLayout
from unisono.comm.base import Communicator
from unisono.comm.replicate import replicate
from unisono.errors import UsageError
from unisono.model.torch.adapter import TorchAdapter

if TYPE_CHECKING:
    from unisono.algorithms.server.service import Service


@dataclass
class WorkerState:
    """The state of one worker that a rule sees on that worker. Vectors are flat."""

    values: Tensor
    """Its weights, at which the gradient is computed."""
    gradient: Tensor
    """The mean over its batch, in `on_gradient`."""
    out: Tensor
    """The vector that it sends."""
    optimise: Callable[[GroupSettings], None]
    """Moves `values` by `gradient` with the optimiser of the task."""
    uses: npt.NDArray[np.float64]
    """Not 0 for each tensor that the batches since the last message used."""
    cut_short: bool = False
    """Whether this call comes early, as no more batches were assigned: nothing may be kept back."""
    state: dict[str, Tensor] = field(default_factory=dict)
    """What the rule keeps for it; saved with it."""


@dataclass
class WorkerRecord:
    """The state of one worker that the server keeps."""

    number: int
    version: int = 0
    """Updates that the server had made when the worker last pulled its weights."""
    keeps_back: bool = False
    """Whether it has not sent all of its work: its last call had no vector."""
    state: dict[str, Tensor] = field(default_factory=dict)
    """What the rule keeps for it, vectors of the length of the weights; saved with it."""


@dataclass
class ServerModel:
    """The server's weights and counters that a rule sees on the server."""

    values: Tensor
    """The server's weights, the papers' centre."""
    optimise: Callable[[Tensor, npt.NDArray[np.float64]], None]
    """Moves `values` by a gradient with the optimiser of the task; unused tensors stay as they are."""
    step: int = 0
    """The server's counter: batches whose updates were applied before."""
    lr: float = 0.0
    """The learning rate of this step."""
    num_workers: int = 1
    """Number of workers that exist now; a group of processes that act as one counts once."""


@dataclass(frozen=True)
class Push:
    """One message of a worker, at the server."""

    worker: WorkerRecord
    vector: Tensor
    """The vector, which may be changed; empty where only numbers came."""
    numbers: npt.NDArray[np.float64]
    """The numbers that `message` returned."""
    weight: float
    """Sum of the loss weights behind it."""
    staleness: int
    """Updates that the server has made since the worker pulled its weights."""


@dataclass
class ServerAlgorithm(Algorithm):
    """See the top of this file. An algorithm adds its rule: `on_gradient`, `message`, `apply_update`, and others as it needs them.

    `comm` is one server alone, the first of which has all that is saved; `world` are all servers and workers."""

    has_server: ClassVar[bool] = True
    replies_with_weights: ClassVar[bool] = True
    """Whether a reply is the server's weights; then its running statistics come with them. Otherwise a worker keeps its own."""
    needs_whole: ClassVar[bool] = False
    """Whether `apply_update` needs a norm, or something else of all numbers together; then there is but one server."""

    adapter: TorchAdapter
    world: Communicator = field(kw_only=True)
    layout: ServerLayout = field(kw_only=True)
    make_evaluator: Callable[[], TorchAdapter] = field(kw_only=True)
    """Makes a second replica, for evaluations while the server serves."""
    replay: Sequence[str] | None = field(default=None, kw_only=True)
    """The recorded order of another run, which is to be repeated."""
    _service: Service | None = field(default=None, init=False)
    _saved: Mapping[str, Any] | None = field(default=None, init=False)

    def read_optimizer(self, optimizer: object, options: Mapping[str, Any], clip_norm: float | None) -> None:
        """Local: reads what the rule uses of the task's optimiser, and refuses what would have no effect."""

    def advice(self, staleness: float) -> str:  # noqa: ARG002
        """Local, on the server: a warning if updates of this mean age make the training unstable; else empty."""
        return ""

    @property
    def server_optimises(self) -> bool:
        """Whether `apply_update` moves the weights with the optimiser of the task."""
        return False

    @property
    def waits_for_all(self) -> bool:
        """Whether the server applies updates only when all workers have called."""
        return False

    # ---- the rule: worker ------------------------------------------------------------------------------------------

    def steps_until_call(self, num_steps: int) -> int:  # noqa: ARG002
        """Pure: number of steps that a worker takes until its next call, after `num_steps` steps so far."""
        return 1

    def begin(self, worker: WorkerState) -> None:
        """Local: called on a worker that joins, when its weights are the server's."""

    def before_gradient(self, worker: WorkerState) -> None:
        """Local: moves `values` to the point at which the gradient is to be computed."""

    @abstractmethod
    def on_gradient(self, worker: WorkerState, settings: GroupSettings) -> None:
        """Local: called on a worker with each gradient: makes its local step."""

    @abstractmethod
    def message(self, worker: WorkerState, num_steps: int) -> Sequence[float]:
        """Local: called on a worker before it calls the server: fills `out`, the vector to send; returns numbers that are sent with
        it."""

    def sends_vector(self, worker: WorkerState, num_steps: int) -> bool:  # noqa: ARG002
        """Pure: whether the call after `num_steps` steps sends `out`, or only numbers."""
        return True

    def on_reply(self, worker: WorkerState, reply: Tensor | None, num_steps: int) -> None:  # noqa: ARG002
        """Local: called on a worker with each reply; by default the reply replaces its weights."""
        if reply is not None:
            worker.values.copy_(reply)

    def end(self, worker: WorkerState) -> None:
        """Local: called on a worker after the last reply; no gradient follows."""

    # ---- the rule: server ------------------------------------------------------------------------------------------

    def on_join(self, server: ServerModel, worker: WorkerRecord) -> None:
        """Local: called on the server when a worker joins; the worker gets the current weights."""

    def on_pull(self, server: ServerModel, worker: WorkerRecord) -> None:
        """Local: called on the server when a worker is sent the current weights."""

    @abstractmethod
    def apply_update(self, server: ServerModel, pushes: Sequence[Push]) -> Sequence[Tensor | None]:
        """Local: changes the server's weights. Returns the reply to each worker: a vector, `server.values` themselves, or None for
        nothing."""

    # ---- what trainers and checkpoints use -------------------------------------------------------------------------

    @classmethod
    def plan(cls, options: Any, size: int, layout: LayoutOptions = DEFAULT_LAYOUT) -> ServerLayout:  # noqa: ARG003
        return ServerLayout.of(size, layout)

    @classmethod
    def traffic(cls, options: Any, weights: ModelSize) -> Traffic:  # noqa: ARG003
        """Pure: the cost in bytes; by default a vector to the server and one back in every step."""
        return Traffic(pushed=weights.num_bytes, pulled=weights.num_bytes)

    @property
    def num_workers(self) -> int:
        return self.layout.num_workers

    @property
    def num_working(self) -> int:
        return self.layout.num_workers * self.layout.group

    @property
    def num_servers(self) -> int:
        return self.layout.servers

    @property
    def depends_on_call_order(self) -> bool:
        return not self.waits_for_all

    def start(self) -> None:
        replicate(self.world, self.adapter.shared_state())

    def synchronise(self) -> None:
        """Replaces the weights of all workers by the server's."""
        replicate(self.world, self.adapter.shared_state())

    def serve_with(self, service: Service) -> None:
        """Local, on the first server: sets the service whose state `state` returns."""
        self._service = service

    def summary(self) -> Mapping[str, Any]:
        """Local: for the summary of a run, how many batches were computed again because their worker was lost."""
        return {} if self._service is None else {"num_dealt_again": self._service.ledger.num_dealt_again}

    def state(self) -> dict[str, Any]:
        return {} if self._service is None else self._service.state()

    def restore(self, state: Mapping[str, Any], size: int) -> None:  # noqa: ARG002
        self._saved = state

    @property
    def saved_service(self) -> Mapping[str, Any] | None:
        """Local: the state of the service that an earlier attempt left; None where there is none."""
        return self._saved


def refuse_optimizer(name: str, optimizer: object, options: Mapping[str, Any], clip_norm: float | None, instead: str) -> None:
    """Pure: refuses an optimiser, options or clipping of the task that have no effect with a rule that moves the weights itself."""
    shown = repr(optimizer) if isinstance(optimizer, str) else getattr(optimizer, "__name__", type(optimizer).__name__)
    unread = [f"optimizer {shown}"] if optimizer not in (None, "sgd") else []
    unread += [f"optimizer.{option}" for option in options]
    unread += ["clip_norm"] if clip_norm is not None else []
    if unread:
        raise UsageError(
            f"--algorithm {name} moves the weights by its own rule, so {unread[0]} of the task has no effect; {instead}"
        )
