"""The secret of a job: the same for all its processes, and for nobody who sees only what is public."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.unit.cluster import environments as envs
from unisono.cluster import job_secret
from unisono.cluster.job_secret import KEY_FILE, local_type, user_key, with_secret
from unisono.cluster.resolve import resolve
from unisono.errors import UsageError

TF_CONFIG = {"TF_CONFIG": '{"cluster": {"worker": ["n1:2222", "n2:2222"]}, "task": {"type": "worker", "index": 0}}'}
BY_HAND = {name: value for name, value in envs.own(0).items() if name != "UNISONO_TOKEN"}
LAUNCHERS = [envs.srun(0), envs.torchrun(0), envs.open_mpi(0), envs.open_mpi_in_sbatch(0), envs.intel_mpi(0), TF_CONFIG, BY_HAND]


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The home directories of two users, on a file system that all nodes share."""
    monkeypatch.setattr(job_secret, "MOUNTS", tmp_path / "none")
    for user in ("one", "two"):
        (tmp_path / user).mkdir()
    return str(tmp_path / "one"), str(tmp_path / "two")


@pytest.mark.parametrize("env", LAUNCHERS)
def test_public_variables_do_not_give_the_secret(env: envs.Env, homes: tuple[str, str]) -> None:
    """SLURM's job number, MASTER_ADDR, TF_CONFIG, ... are known to all users of a cluster."""
    mine, again, strangers = (with_secret(resolve(env), {**env, "HOME": home}) for home in (homes[0], homes[0], homes[1]))
    assert mine.token == strangers.token, "the name of the job is public"
    assert mine.secret == again.secret
    assert len({mine.secret, strangers.secret, mine.token}) == 3
    assert mine.no_secret == ""


def test_two_jobs_of_one_user_have_two_secrets(homes: tuple[str, str]) -> None:
    one, two = ({**envs.srun(0), "SLURM_STEP_ID": step, "HOME": homes[0]} for step in ("0", "1"))
    assert with_secret(resolve(one), one).secret != with_secret(resolve(two), two).secret
    for env in (one, two):
        env["UNISONO_TOKEN"] = "exported in the batch script"
    assert with_secret(resolve(one), one).secret != with_secret(resolve(two), two).secret


def test_a_given_secret_takes_the_place_of_the_key() -> None:
    given = "0123456789abcdef"
    env = {**envs.srun(0), "UNISONO_TOKEN": given, "HOME": "/nonexistent"}
    found, other = with_secret(resolve(env), env), with_secret(resolve(env), {**env, "UNISONO_TOKEN": f"{given}0"})
    assert found.secret and not found.no_secret
    assert found.secret != other.secret
    assert given not in found.secret


def test_a_given_secret_that_can_be_guessed_is_refused() -> None:
    """A stranger who connects gets a proof that rank 0 knows the secret, and can try all short ones against it."""
    env = {**envs.srun(0), "UNISONO_TOKEN": "mine"}
    with pytest.raises(UsageError, match="UNISONO_TOKEN has 4 characters, so another user could guess it; export a random"):
        with_secret(resolve(env), env)
    alone = {"UNISONO_TOKEN": "mine"}
    assert with_secret(resolve(alone), alone).secret, "nobody else takes part"


def test_processes_that_make_the_key_at_once_get_the_same(tmp_path: Path) -> None:
    path, found = tmp_path / "home" / KEY_FILE, []
    threads = [threading.Thread(target=lambda: found.append(user_key(path))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16 and len(set(found)) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_key_that_others_can_read_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    user_key(path)
    path.chmod(0o640)
    with pytest.raises(UsageError, match="has mode 0640, so other users have access; remove it"):
        user_key(path)
    path.chmod(0o600)
    path.write_text("")
    with pytest.raises(UsageError, match="is damaged; remove it"):
        user_key(path)


def test_a_link_in_the_place_of_the_key_is_not_followed(tmp_path: Path) -> None:
    user_key(tmp_path / "of another")
    (tmp_path / "key").symlink_to(tmp_path / "of another")
    with pytest.raises(OSError, match="symbolic link"):
        user_key(tmp_path / "key")


def test_without_a_home_one_node_uses_its_own_folder_and_several_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    home = {"HOME": str(tmp_path / "none")}
    here = with_secret(resolve(envs.open_mpi(0)), {**envs.open_mpi(0), **home})
    assert here.one_node and here.secret and not here.no_secret
    apart = with_secret(resolve(envs.srun(0)), {**envs.srun(0), **home})
    assert not apart.secret
    assert apart.no_secret == f"there is no home directory {tmp_path / 'none'}"


def test_a_home_on_a_file_system_of_one_host_is_no_place_for_a_secret_of_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    shares = [(str(tmp_path / "a" / name), "nfs4") for name in ("shared disk", "jürgen", "j\udcfcrgen")]  # the last is no UTF-8
    lines = [("/", "overlay"), (str(tmp_path / "a"), "ext4"), *shares, ("/proc", "proc")]
    shown = (place.replace(" ", "\\040") for place, _ in lines)
    text = "".join(f"22 1 0:1 / {p} rw - {kind} x rw\n" for p, (_, kind) in zip(shown, lines, strict=True))
    mounts.write_text(text, errors="surrogateescape")
    found = {name: local_type(tmp_path / name, mounts) for name in ("x", "a/key", "a/shared disk/key", "a/shared")}
    assert found == {"x": "overlay", "a/key": "ext4", "a/shared disk/key": "", "a/shared": "ext4"}
    assert {local_type(Path(place) / "key", mounts) for place, _ in shares} == {""}
    assert local_type(tmp_path, tmp_path / "no such file") == ""
    monkeypatch.setattr(job_secret, "MOUNTS", mounts)
    (tmp_path / "a").mkdir()
    env = {**envs.srun(0), "HOME": str(tmp_path / "a")}
    at = with_secret(resolve(env), env)
    assert at.secret
    assert at.no_secret == f"{tmp_path / 'a'} is on a file system of this host alone (ext4)"
