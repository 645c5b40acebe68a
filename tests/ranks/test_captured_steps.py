"""Recorded steps on two ranks: replicas stay equal, with the bits of steps that run as they are."""

from __future__ import annotations

import json
from pathlib import Path

from tests.system.fork_server import ForkServer

PROGRAM = Path(__file__).parent / "programs" / "captured_steps.py"
LIMIT_S = 90.0


def test_two_ranks_have_the_bits_of_steps_that_run_as_they_are(fork_server: ForkServer) -> None:
    ended = fork_server.run([str(PROGRAM)], 2, "shm", LIMIT_S)
    assert ended.exit_code == 0, str(ended)
    lines = [json.loads(line[line.index("{") :]) for line in ended.output.splitlines() if '{"case"' in line]
    assert len(lines) == 2 * 7, str(ended)
    by_case = {line["case"]: [one for one in lines if one["case"] == line["case"]] for line in lines}
    for case, (one, other) in by_case.items():
        assert one["rank"] != other["rank"] and one["bits"] == other["bits"], case
        assert one["steps"] == other["steps"], case
        assert one["bits"][0] == one["bits"][1] == one["bits"][2], case
        assert one["steps"][0] == one["steps"][1] == one["steps"][2], case
        if case != "adam":  # whose rates have fewer digits on the device
            assert one["bits"][0] == one["bits"][3] and one["steps"][0] == one["steps"][3], case
        if case == "unused":
            assert all("did not use 0.spare.weight" in reason for line in (one, other) for reason in line["reasons"])
        else:
            assert all(reason == "" for line in (one, other) for reason in line["reasons"]), case
            assert one["repeated"] and other["repeated"], case
