"""`horovod.run(function)`: calls a function on several processes and gives back what it returned on each.

The function, its arguments and its results travel as files in a private folder that is gone in the end.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from unisono.cluster.resolve import slurm_job
from unisono.errors import UsageError
from unisono.horovod._impl.launching.command_line import CONTROL_STDIN
from unisono.horovod._impl.launching.flags import FLAGS, SWITCH
from unisono.horovod._impl.launching.function_parcel import CALL, Parcel, error_of, results_in
from unisono.horovod._impl.launching.host_slots import hosts_in, hosts_of, is_here

USAGE_CODE = 2
OWN_LINE = "unisono: "
"""With this the launcher's own lines begin."""
END_LIMIT_S = 45.0
"""How long the launcher has to end all processes when we are interrupted; its own limits are shorter."""

Result = TypeVar("Result")


def run(
    func: Callable[..., Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | None = None,
    *,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Result]:
    """Calls `func(*args, **kwargs)` on `num_proc` processes and returns the results in the order of ranks. Local, blocking. Without
    `num_proc`: as many as the hosts have slots where they are given, else `min_num_proc`, else 1.

    Works from a program, an interactive session and a notebook; functions that are defined there are sent along. What the
    processes print comes with the rank in front. If one fails, all end, and `RuntimeError` holds its traceback. `sys.exit(0)` in
    the function counts as None returned. Wrong arguments raise `ValueError`. `np`, `min_np` and `max_np` are the old names.
    """
    if not callable(func):
        raise ValueError(f"horovod.run needs a function; received {func!r}")
    given = {
        "--num-proc": _by_either_name("num_proc", num_proc, np),
        "--min-num-proc": _by_either_name("min_num_proc", min_num_proc, min_np),
        "--max-num-proc": _by_either_name("max_num_proc", max_num_proc, max_np),
        "--slots-per-host": slots,
        "--reset-limit": reset_limit,
        "--hosts": hosts,
        "--hostfile": hostfile,
        "--host-discovery-script": host_discovery_script,
        "--start-timeout": start_timeout,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--output-filename": output_filename,
        "--mpi-args": mpi_args,
        "--network-interfaces": _comma_list(network_interfaces if network_interfaces is not None else network_interface),
        "--disable-cache": disable_cache,
        "--verbose": verbose,
        "--gloo": use_gloo,
        "--mpi": use_mpi,
    }
    if not any(given[name] for name in ("--num-proc", "--min-num-proc", "--hosts", "--hostfile")):
        given["--num-proc"] = 1
    flags = [word for name, value in given.items() for word in _option_words(name, value)]
    if cooldown_range is not None:
        flags += ["--blacklist-cooldown-range", *map(str, cooldown_range)]
    try:
        folder = _private_folder(hosts, hostfile, host_discovery_script)
        try:
            Parcel(func, tuple(args), dict(kwargs or {}), tuple(sys.path)).write(folder)
            code, said = _run_launcher([*flags, executable or sys.executable, *CALL, str(folder)])
            return _results(folder, code, said)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except UsageError as error:  # programs written for Horovod know nothing of ours
        raise ValueError(str(error)) from error


def _by_either_name(name: str, value: int | None, old: int | None) -> int | None:
    """Returns the number given under a name or its old name; None if neither was. Raises `ValueError` for both, and for less than
    1."""
    if value is not None and old is not None:
        raise ValueError(
            f"{name} and its old name {name.replace('num_proc', 'np')} were both given (horovod.run); give {name} only"
        )
    found = old if value is None else value
    if found is not None and (isinstance(found, bool) or not isinstance(found, int) or found < 1):
        raise ValueError(f"{name} must be a whole number of 1 or more; received {found!r} (horovod.run)")
    return found


def _comma_list(names: str | Sequence[str] | None) -> str | None:
    """Returns names as one text with commas; a text and None as they are."""
    return names if names is None or isinstance(names, str) else ",".join(names)


def _option_words(name: str, value: object) -> list[str]:
    """Returns an option with its value as words of a command line; none for a value of None, or a switch that is off."""
    if any(name in flag.names for flag in FLAGS if flag.kind == SWITCH):
        return [name] if value else []
    return [] if value is None else [name, str(value)]


def _private_folder(hosts: str | None, hostfile: str | None, discovery: str | None) -> Path:
    """A folder that all processes can read: on this machine anywhere, else in the current folder, which other hosts are expected to
    share."""
    named = hosts_of(hosts) if hosts else hosts_in(Path(hostfile)) if hostfile else ()
    elsewhere = discovery is not None or any(not is_here(name) for name, _ in named) or (not named and slurm_job() is not None)
    return Path(tempfile.mkdtemp(prefix=".horovod-run-" if elsewhere else "horovod-run-", dir=Path.cwd() if elsewhere else None))


def _run_launcher(words: Sequence[str]) -> tuple[int, list[str]]:
    """Runs `unisono horovodrun` and returns its exit code and its own messages. It is another process, so that this one keeps its
    signals and threads; it ends with this one, as its standard input then does. Local, blocking."""
    process = subprocess.Popen(
        [sys.executable, "-m", "unisono", "horovodrun", CONTROL_STDIN, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    said: list[str] = []
    dropped: list[str] = []
    threads = [
        threading.Thread(target=_pass_on, args=(process.stdout, sys.stdout, [], dropped), daemon=True),
        threading.Thread(target=_pass_on, args=(process.stderr, sys.stderr, said, dropped), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        process.stdin.close()
        for thread in threads:
            thread.join()
        process.stdout.close()
        process.stderr.close()
    for reason in dropped:
        warnings.warn(
            f"horovod.run: the output of the processes could not be written ({reason}); the rest of it was dropped", stacklevel=3
        )
    return code, said


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asks the launcher to end all processes; a second interruption, or the end of the waiting time, kills it and all of them.
    Local, blocking."""
    process.terminate()
    try:
        process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
    except BaseException:
        process.kill()
        raise


def _pass_on(pipe: IO[bytes], stream: IO[str], said: list[str], dropped: list[str]) -> None:
    """Writes the output of the processes to that of this session, which in a notebook is no file. Once that accepts no more, the
    rest is read and dropped: the processes must not wait for us for ever."""
    works = True
    # Line ends as they are: a return is one too, so that a progress bar moves.
    lines = io.TextIOWrapper(pipe, encoding="utf-8", errors="replace", newline="")
    for text in lines:
        if text.startswith(OWN_LINE):
            said.append(text.removeprefix(OWN_LINE).strip())
        if works:
            try:
                stream.write(text)
                stream.flush()
            except Exception as error:  # noqa: BLE001 - whatever a notebook, a closed file or a pipe to nobody raises
                works = False
                dropped.append(f"{type(error).__name__}: {error}")
    lines.detach()  # the caller opened the pipe and closes it


def _results(folder: Path, code: int, said: Sequence[str]) -> list[Any]:
    """Returns the results of all ranks, in their order. Raises `RuntimeError` with the traceback of the rank that failed first, or
    for a missing result, and `UsageError` for wrong options."""
    if code == USAGE_CODE and said and said[-1].startswith("error: "):
        raise UsageError(said[-1].removeprefix("error: "))
    if code:
        # What the launcher saw first comes first: a rank that was killed leaves no error, and others fail because of it.
        failed = error_of(folder)
        why = "" if failed is None else f"; rank {failed[0]} raised:\n{failed[1]}"
        raise RuntimeError(f"horovod.run: {said[0].partition(';')[0] if said else f'the processes ended with code {code}'}{why}")
    size, results = results_in(folder)
    missing = [rank for rank in range(size) if rank not in results]
    if missing or not size:
        who = f"rank {missing[0]} of {size}" if size else "every rank"
        raise RuntimeError(
            f"horovod.run: {who} ended without an error but left no result in {folder}; check that every host sees this folder, "
            "and that the function returns and does not end its process"
        )
    return [results[rank] for rank in range(size)]
