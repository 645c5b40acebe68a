"""`python -m unisono`: the command, where no script of that name is on PATH."""

from __future__ import annotations

import sys

from unisono.cli import main

sys.exit(main())
