"""The console script `commitlake`: what works on a machine with this package, without a clone of the project."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from commitlake.errors import SetupError
from commitlake.spark import process

COMMANDS = {"ledger": "ledger", "audit": "audit", "admin": "admin", "maintain": "maintain", "config": "show_config"}


def main() -> None:
    """Run the command that the first argument names, and exit with its code."""
    process.main(dispatch)


def dispatch(arguments: Sequence[str]) -> int:
    """Run a command, or say which there are.

    Raises:
        SetupError: there is no pyspark, which is an extra of this package.
    """
    if not arguments or arguments[0] not in COMMANDS:
        names = ",".join(COMMANDS)
        print(f"usage: commitlake {{{names}}} [ARGUMENT...]; --help after a command tells more", file=sys.stderr)
        return 2
    try:
        from commitlake.ops import commands
    except ModuleNotFoundError as error:
        msg = f"the Python module {error.name} is missing; install it with pip install 'commitlake[spark]'"
        raise SetupError(msg) from error
    code: int = getattr(commands, COMMANDS[arguments[0]])(arguments[1:])
    return code
