"""The command line: one parser for all commands, which run here or in Spark's driver."""

from __future__ import annotations

import sys

from commitlake.errors import SetupError
from commitlake.spark import preflight

try:
    preflight.check_imports()  # before typer and YAML are imported
except SetupError as error:
    sys.exit(f"error: {error}")
