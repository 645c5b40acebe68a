"""The contract on NCCL with one rank on one GPU. More ranks need more GPUs and are not measured here."""

from __future__ import annotations

import pytest
import torch

from unisono.testing import contract
from unisono.testing.ranks import ContractGroup

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="PyTorch sees no GPU; run on a machine with an NVIDIA GPU and a CUDA build of PyTorch: pytest -m gpu",
    ),
]

GROUP_TIMEOUT_S = 150.0


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> ContractGroup:
    return ContractGroup("nccl", 1, contract.check_names(), tmp_path_factory.mktemp("nccl-1"), GROUP_TIMEOUT_S)


@pytest.mark.timeout(GROUP_TIMEOUT_S + 30)
@pytest.mark.parametrize("check", contract.check_names())
def test_contract(group: ContractGroup, check: str) -> None:
    failure = group.failure(check)
    assert not failure, failure
