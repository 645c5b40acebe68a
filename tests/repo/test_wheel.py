"""The package as sites install it: a plain wheel, into a new environment over the site's PyTorch, without the network."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.system.processes import plain_environment

ROOT = Path(__file__).resolve().parents[2]
HELLO = ROOT / "examples" / "hello.py"
LIMIT_S = 100.0


def run(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))} gave {done.returncode}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    run([*pip, "--wheel-dir", folder, ROOT], folder, plain_environment())
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture
def site_environment() -> dict[str, str]:
    """What `module load PyTorch` gives: the site's packages on the search path. What only their .pth files would add is not there,
    and so neither is the package that is being developed here."""
    return {**plain_environment(), "PYTHONPATH": os.pathsep.join(site.getsitepackages()), "PYTHONNOUSERSITE": "1"}


def test_it_holds_nothing_that_was_compiled(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        (metadata,) = [opened.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
    kinds = {Path(name).suffix for name in names if ".dist-info/" not in name}
    data, pages = {".npz", ".md"}, {".html", ".css", ".js"}  # digits.npz with a word on its origin; templates of reports
    assert kinds == {".py", ".typed"} | data | pages, sorted(kinds)
    templates = {"observe/pages/page.html", "observe/pages/parts.html", "observe/pages/page.css", "observe/pages/page.js"}
    assert {f"unisono/{name}" for name in templates | {"tuning/report/study.html", "tuning/report/study.css"}} <= set(names)
    assert {name.split("/")[0] for name in names} == {"unisono", f"{wheel.name.rsplit('-', 3)[0]}.dist-info"}
    always = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    names = sorted(line.split()[1].split(">")[0] for line in always)
    assert names == ["cloudpickle", "jinja2", "matplotlib", "numpy", "rich", "safetensors", "torch"], always


def test_it_installs_over_the_packages_of_a_site_and_runs(wheel: Path, site_environment: Mapping[str, str], tmp_path: Path) -> None:
    new = tmp_path / "env"
    python = new / "bin" / "python"
    run([sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", new], tmp_path, plain_environment())
    # Without --no-deps: the site's PyTorch satisfies it, or there would be no index to get another from.
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
    run([*pip, wheel], tmp_path, site_environment)
    found = run([python, "-c", "import torch, unisono; print(unisono.__file__); print(torch.__file__)"], tmp_path, site_environment)
    package, torch = map(Path, found.split())
    assert new in package.parents, found
    assert new not in torch.parents, found
    unisono = new / "bin" / "unisono"
    assert run([unisono, "--help"], tmp_path, site_environment).startswith("usage: unisono ")
    printed = run([unisono, "run", "-n", "2", HELLO], tmp_path, site_environment)
    assert "pi is about 3.14" in printed and "2 processes on 1 node, started by unisono" in printed, printed
