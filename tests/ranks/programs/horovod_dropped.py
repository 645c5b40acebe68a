"""horovod.torch: gradients that are dropped on their way, by some ranks or by all, and optimisers that are made again."""
# mypy: disable-error-code="no-untyped-call,union-attr,index,arg-type,no-any-return,operator,call-overload"

from __future__ import annotations

import gc
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import unisono.horovod.torch as hvd
from unisono.horovod._impl.job.process_state import PROCESS
from unisono.horovod._impl.torch.gradient_forms import MAX_STEPS_WITHOUT_GRADIENT
from unisono.horovod._impl.torch.gradient_transport import GradientTransport

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs.horovod_checks import checks_of, raises, run
from tests.ranks.programs.horovod_odd_uses import equal, line, wrapped

warnings.simplefilter("error")


def backward(net: nn.Module, value: float) -> None:
    net(torch.full((1, 1), value)).sum().backward()


def steps(net: nn.Module, optimizer: Any, number: int) -> None:
    for _ in range(number):
        optimizer.zero_grad()
        backward(net, 1.0)
        optimizer.step()


def drop(net: nn.Module, optimizer: Any) -> None:
    """A pass whose gradients nobody uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which says that gradients were reduced for nothing
        backward(net, 1000.0)
        optimizer.zero_grad()


def begin_again() -> None:
    """What a mistake has left in flight ends with its life."""
    hvd.barrier()
    hvd.shutdown()
    hvd.init(process_sets="dynamic")


def check_a_pass_that_one_rank_makes_alone_is_found() -> None:
    """A saliency map on rank 0, whose gradients then meet the next ones of the others: nobody uses them."""
    net = line()
    optimizer = wrapped(net)
    steps(net, optimizer, 2)
    if hvd.rank() == 0:
        drop(net, optimizer)
    else:
        optimizer.zero_grad()
    backward(net, 1.0)
    if hvd.size() > 1:
        with raises(ValueError, "some ranks dropped gradients", "torch.autograd.grad"):
            optimizer.step()
    else:
        optimizer.step()
        assert net.weight.item() == -3.0
    begin_again()


def check_a_pass_before_the_first_step_does_no_harm() -> None:
    """Gradients do not travel yet."""
    net = line()
    optimizer = wrapped(net)
    if hvd.rank() == 0:
        backward(net, 1000.0)
    optimizer.zero_grad()
    backward(net, 1.0)
    optimizer.step()
    assert net.weight.item() == -1.0


def check_what_all_ranks_drop_is_no_mistake() -> None:
    """More often than the ranks can tell each other; and one rank has no data left in the end."""
    net = line()
    optimizer = wrapped(net)
    for number in range(40):
        drop(net, optimizer)
        if number % 8 == 0:
            steps(net, optimizer, 1)
    assert net.weight.item() == -5.0
    if hvd.rank() < hvd.size() - 1:
        for _ in range(3):
            steps(net, optimizer, 1)
            drop(net, optimizer)
    hvd.join()
    hvd.broadcast_parameters(net.named_parameters(), 0)
    backward(net, 1.0)
    optimizer.step()  # who had joined has dropped less often
    assert equal(net)


def check_a_newcomer_has_dropped_nothing() -> None:
    """As in an elastic job: some go on with their optimiser in another life, others have just made theirs."""
    begin_again()
    net = line()
    optimizer = wrapped(net)
    backward(net, 1.0)
    optimizer.step()
    drop(net, optimizer)
    begin_again()
    if hvd.rank():
        net = line()
        optimizer = wrapped(net)
        with torch.no_grad():
            net.weight.fill_(-1.0)
    steps(net, optimizer, 2)
    assert net.weight.item() == -3.0


def check_state_is_sent_between_backward_and_step() -> None:
    size, rank = hvd.size(), hvd.rank()
    net = line()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.5), net.named_parameters())
    for step in range(3):
        optimizer.zero_grad()
        backward(net, float(rank + 1) * 10**step)
        if step == 1:
            hvd.broadcast_optimizer_state(optimizer, 0)
        optimizer.step()
        assert abs(net.weight.grad.item() - 10**step * (size + 1) / 2) < 1e-3, (step, net.weight.grad)
    assert equal(net)


def check_ranks_that_hold_old_optimizers() -> None:
    """Of the same networks, as a history of folds on rank 0 alone does; a GAN drops the judge's gradients in every step."""
    generator, judge = line(), line()
    nn.init.ones_(judge.weight)
    held: list[Any] = []
    for _ in range(2):
        of_generator, of_judge = wrapped(generator), wrapped(judge)
        for step in range(3):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                of_judge.zero_grad()
                judge(generator(torch.full((1, 1), hvd.rank() + 1.0)).detach()).sum().backward()
                of_judge.step()
                of_generator.zero_grad()
                judge(generator(torch.full((1, 1), float(step)))).sum().backward()
                of_generator.step()
        if hvd.rank() == 0:
            held.append(of_judge)
    assert equal(generator) and equal(judge)


def check_optimizers_that_are_gone_leave_nothing() -> None:
    net = line()
    before = len(PROCESS.handles._held)
    for _ in range(3):
        optimizer = wrapped(net)
        steps(net, optimizer, 2)
        backward(net, 1.0)
        net.zero_grad()
        del optimizer
        gc.collect()
        hvd.barrier()
    assert not net.weight._post_accumulate_grad_hooks
    assert len(PROCESS.handles._held) == before


def check_forms_are_asked_for_with_patience() -> None:
    nets = [line() for _ in range(3)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([*nets[0].parameters(), *nets[1].parameters()], lr=1.0))
    asked: list[int] = []
    share = GradientTransport.share_forms

    def counted(how: GradientTransport, names: Any) -> list[torch.Tensor]:
        asked.append(len(names))
        return share(how, names)

    GradientTransport.share_forms = counted  # type: ignore[method-assign,assignment]
    try:
        for step in range(3 * MAX_STEPS_WITHOUT_GRADIENT):
            if step == MAX_STEPS_WITHOUT_GRADIENT + 2:
                optimizer.add_param_group({"params": list(nets[2].parameters())})
            optimizer.zero_grad()
            backward(nets[0], 1.0)
            optimizer.step()
    finally:
        GradientTransport.share_forms = share  # type: ignore[method-assign]
    assert len(asked) == (2 * MAX_STEPS_WITHOUT_GRADIENT if hvd.size() > 1 else 0), asked


def check_closures_that_return_other_things() -> None:
    for extra in (lambda loss: (loss, {"rank": hvd.rank()}), lambda loss: torch.stack([loss, loss]), lambda _: "done"):
        net = line()
        optimizer = wrapped(net)

        def closure(net: nn.Module = net, optimizer: Any = optimizer, extra: Any = extra) -> Any:
            optimizer.zero_grad()
            loss = net(torch.ones(1, 1)).sum()
            loss.backward()
            return extra(loss.detach())

        found = optimizer.step(closure)
        assert type(found) is type(extra(torch.tensor(0.0)))
        assert net.weight.item() == -1.0


def check_losses_of_closures_are_the_same_on_all_ranks() -> None:
    for kind in (float, np.float32, np.asarray, torch.tensor):
        net = line()
        optimizer = wrapped(net)

        def closure(net: nn.Module = net, optimizer: Any = optimizer, kind: Any = kind) -> Any:
            optimizer.zero_grad()
            net(torch.ones(1, 1)).sum().backward()
            return kind(float(hvd.rank()))

        assert float(optimizer.step(closure)) == (hvd.size() - 1) / 2, kind


def check_drops_are_counted_in_numbers_of_their_own() -> None:
    """Whatever the type is in which programs make their tensors."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        net = line()
        optimizer = wrapped(net, gradient_predivide_factor=7.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(4):
                backward(net, 1.0)
                optimizer.step()
                backward(net, 1000.0)
                optimizer.zero_grad()
    finally:
        torch.set_default_dtype(torch.float32)
    assert equal(net)


def check_models_from_files_start_afresh() -> None:
    net = line()
    first = wrapped(net)
    loaded = pickle.loads(pickle.dumps(net))
    optimizer = wrapped(loaded)
    for _ in range(2):
        optimizer.zero_grad()
        backward(loaded, 1.0)
        travelled = [flight for flight in optimizer._handles.values() if flight is not None]
        optimizer.step()
    assert hvd.size() == 1 or travelled, "its gradients travel during the backward pass, as those of any other"
    del first


def check_nothing_travels_after_the_end() -> None:
    net = line()
    optimizer = wrapped(net)
    steps(net, optimizer, 2)
    backward(net, 1.0)
    hvd.barrier()
    hvd.shutdown()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.zero_grad()
    hvd.init(process_sets="dynamic")
    backward(net, 1.0)
    optimizer.step()
    assert net.weight.item() == -3.0


def check_normalisation_before_an_activation_in_place() -> None:
    net = nn.Sequential(nn.Linear(2, 3), hvd.SyncBatchNorm(3, affine=False), nn.ReLU(inplace=True))
    net(torch.randn(4, 2)).sum().backward()
    assert net[0].weight.grad is not None


def check_hooks_that_take_gradients_away() -> None:
    net = line()
    net.weight.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", None))
    optimizer = wrapped(net)
    for _ in range(2):
        backward(net, 1.0)
        optimizer.step()
    assert net.weight.item() == 0.0


def check_what_is_no_optimizer_is_refused() -> None:
    class Ducks:
        param_groups: tuple[Any, ...] = ()

    with raises(ValueError, "torch.optim.Optimizer", "Ducks"):
        hvd.DistributedOptimizer(Ducks())


def check_adasum_alone_is_as_any_other() -> None:
    net = line()
    optimizer = wrapped(net, op=hvd.Adasum)
    backward(net, 1.0)
    if hvd.size() == 1:
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    else:
        optimizer.step()
    assert net.weight.item() == -1.0


if __name__ == "__main__":
    run(checks_of(globals()))
