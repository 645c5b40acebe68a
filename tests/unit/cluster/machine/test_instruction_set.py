"""Portable mode: what is set and refused, and in processes of their own that the libraries keep to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from unisono.cluster.machine.instruction_set import CUBLAS_WORKSPACE, LEVELS, REQUIRED_FEATURES, level_of, settings_of
from unisono.cluster.machine.processor import Processor, read_processor, this_processor
from unisono.errors import UsageError
from unisono.launch.launch import LaunchConfig, launch

XEON = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 106
model name\t: Intel(R) Xeon(R) Gold 6338
flags\t\t: fpu sse4_2 fma avx2 avx512f

processor\t: 1
model\t\t: 107
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd40\n"
OLD = Processor("GenuineIntel", "6", "42", "an old Xeon", frozenset({"sse4_2", "avx"}))
AMD = Processor("AuthenticAMD", "25", "1", "AMD EPYC 7763", REQUIRED_FEATURES["avx2"] | REQUIRED_FEATURES["baseline"])
VARIABLES = {one.variable for settings in LEVELS.values() for one in settings}


def variables(level: str) -> dict[str, str]:
    return {one.variable: one.value for one in LEVELS[level]}


def test_the_first_cpu_of_the_system_is_read() -> None:
    cpu = read_processor(XEON)
    assert (cpu.kind, cpu.name) == ("GenuineIntel 6 106", "Intel(R) Xeon(R) Gold 6338")
    assert cpu.features == {"fpu", "sse4_2", "fma", "avx2", "avx512f"}
    assert read_processor(ARM) == Processor("0x41", "8", "0xd40", "", frozenset({"fp", "asimd"}))
    assert read_processor("").kind == ""
    assert this_processor().kind


def test_the_level_of_an_environment() -> None:
    for level in LEVELS:
        assert level_of({"HOME": "/", **variables(level)}) == level
    assert level_of({}) is None
    half = {name: value for name, value in variables("avx2").items() if name != "MKL_CBWR"}
    assert level_of(half) is None
    assert level_of({**variables("avx2"), "MKL_CBWR": "COMPATIBLE"}) is None


@pytest.mark.parametrize(
    ("level", "cpu", "words"),
    [
        ("avx", AMD, ("'avx'", "did you mean", "avx2")),
        ("avx2", OLD, ("an old Xeon", "no avx2, fma", "use one of baseline")),
        ("avx2", AMD, ("AMD EPYC 7763", "Intel", "use one of baseline")),
        ("baseline", read_processor(ARM), ("0x41 8 0xd40", "no sse4_2", "leave --portable out")),
    ],
)
def test_a_level_that_cannot_be_kept_is_refused(level: str, cpu: Processor, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as refused:
        settings_of(level, cpu)
    assert all(word in str(refused.value) for word in words), refused.value


def test_a_launcher_refuses_what_the_environment_contradicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "AUTO")
    with pytest.raises(UsageError, match=r"MKL_CBWR=COMPATIBLE.*'AUTO'.*unset it"):
        launch(LaunchConfig(program=("true",), num_local=2, portable="baseline"))


def test_ranks_get_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:  # some machines set one of them for everybody
        monkeypatch.delenv(name, raising=False)
    asks = " && ".join(f'test "${name}" = "{value}"' for name, value in variables("baseline").items())
    assert launch(LaunchConfig(program=("sh", "-c", asks), num_local=2, portable="baseline")) == 0
    assert launch(LaunchConfig(program=("sh", "-c", asks), num_local=2)) == 1


def run(program: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env={**clean, **env}, capture_output=True, text=True, timeout=60)


def test_it_is_set_before_libraries_load_and_refused_afterwards() -> None:
    done = run(
        "import os, sys\n"
        "from unisono.launch.this_process import cap_instruction_set\n"
        "from unisono.cluster.machine.instruction_set import current_level\n"
        "cap_instruction_set(None); assert current_level() is None\n"
        "cap_instruction_set('baseline'); assert current_level() == 'baseline'\n"
        "import numpy\n"
        "cap_instruction_set('baseline')\n"
        "del os.environ['OPENBLAS_CORETYPE']\n"
        "print('so far')\n"
        "cap_instruction_set('baseline')\n"
    )
    assert done.stdout == "so far\n", done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "unisono.errors.UsageError: --portable baseline comes too late: numpy is already loaded"
    )
    assert "env ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE" in done.stderr


def test_a_variable_that_says_otherwise_is_refused() -> None:
    done = run(
        "from unisono.launch.this_process import cap_instruction_set; cap_instruction_set('baseline')",
        ONEDNN_MAX_CPU_ISA="AVX512_CORE",
    )
    assert "--portable needs ONEDNN_MAX_CPU_ISA=SSE41, but it is 'AVX512_CORE' (environment); unset it" in done.stderr


def test_a_workspace_of_cublas_that_was_chosen_is_kept() -> None:
    ask = f"import os; from unisono.launch.this_process import prepare_cublas as p; p(); print(os.environ[{CUBLAS_WORKSPACE!r}])"
    assert run(ask, **{CUBLAS_WORKSPACE: ":16:8"}).stdout == ":16:8\n"
    assert run(ask, **{CUBLAS_WORKSPACE: ""}).stdout == "\n", "it is refused where it matters"


LOOK = """
import ctypes, hashlib, json, pathlib, sys
from unisono.launch.this_process import cap_instruction_set
cap_instruction_set(sys.argv[1])
import torch
from torch.nn import functional as F
torch.set_num_threads(1)
numbers = lambda *shape: (torch.arange(torch.Size(shape).numel()) * 7919 % 1009 / 1009 - 0.5).reshape(shape)
results = {
    "matmul": numbers(33, 300) @ numbers(300, 33),
    "conv": F.conv2d(numbers(8, 3, 16, 16), numbers(8, 3, 5, 5)),
    "softmax": F.softmax(numbers(33, 300), 1),
}
library = ctypes.CDLL(pathlib.Path(torch.__file__).with_name("lib") / "libtorch_cpu.so")
branch = library.mkl_serv_cbwr_get(1) if hasattr(library, "mkl_serv_cbwr_get") else None
hashes = {name: hashlib.sha256(value.numpy().tobytes()).hexdigest() for name, value in results.items()}
print(json.dumps([torch.backends.cpu.get_cpu_capability(), branch, hashes]))
"""


def test_the_libraries_keep_to_it() -> None:
    """Asked of each library itself; and the levels give other bits, so it is not only said."""
    hashes = {}
    for level, capability, branch, onednn in (("avx2", "AVX2", 10, "AVX2"), ("baseline", "DEFAULT", 3, "SSE4.1")):
        try:
            settings_of(level, this_processor())
        except UsageError as error:
            pytest.skip(f"{error}; it needs a CPU of Intel with AVX2")
        done = run(LOOK, level, ONEDNN_VERBOSE="1")
        *said, answer = done.stdout.splitlines()
        assert f"onednn_verbose,v1,info,cpu,isa:Intel {onednn}" in said, done.stdout + done.stderr
        *found, hashes[level] = json.loads(answer)
        assert found[0] == capability
        assert found[1] in (branch, None), "None: another build, without MKL inside"
    same = {name for name in hashes["avx2"] if hashes["avx2"][name] == hashes["baseline"][name]}
    assert not same
