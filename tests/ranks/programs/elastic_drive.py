"""Runs an elastic job whose plan is given as JSON: what `unisono horovodrun` does after it has read its options."""

import json
import os
import sys

from unisono.errors import UsageError
from unisono.horovod._impl.elastic import stragglers
from unisono.horovod._impl.elastic.elastic_driver import ElasticPlan, drive
from unisono.launch.program import command

given = json.loads(sys.argv[1])
stragglers.STALLED_S = given.pop("stalled_s", stragglers.STALLED_S)
given["hosts"] = tuple((host, slots) for host, slots in given.get("hosts", []))
given["cooldown_range"] = tuple(given["cooldown_range"]) if given.get("cooldown_range") else None
defaults = {"max_num_proc": None, "discovery_script": None, "slots_per_host": None, "elastic_timeout_s": 60.0, "reset_limit": None}
try:
    code = drive(ElasticPlan(**{**defaults, **given, "command": command(sys.argv[2:]), "env": dict(os.environ)}))
except UsageError as error:
    print(f"refused: {error}", file=sys.stderr)
    code = 2
sys.exit(code)
