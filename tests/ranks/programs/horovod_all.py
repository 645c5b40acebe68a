"""horovod.torch: all checks in one job, so that a group of processes is started once."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs import (
    horovod_attempts,
    horovod_autograd,
    horovod_dropped,
    horovod_forms,
    horovod_odd_uses,
    horovod_operations,
    horovod_optimizer,
    horovod_optimizers,
    horovod_together,
)
from tests.ranks.programs.horovod_checks import checks_of, run

if __name__ == "__main__":
    parts = (
        *(horovod_operations, horovod_together, horovod_autograd),
        *(horovod_optimizer, horovod_optimizers, horovod_forms, horovod_odd_uses, horovod_dropped, horovod_attempts),
    )
    run({name: check for part in parts for name, check in checks_of(vars(part)).items()})
