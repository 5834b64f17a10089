"""The console script `commitlake`: what works on a machine with this package, without a clone of the project."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from commitlake import job
from commitlake.ops import commands

COMMANDS = {"ledger": commands.ledger, "admin": commands.admin, "config": commands.show_config}


def main() -> None:
    """Run the command that the first argument names, and exit with its code."""
    job.main(dispatch)


def dispatch(arguments: Sequence[str]) -> int:
    """Run a command, or say which there are."""
    if not arguments or arguments[0] not in COMMANDS:
        print(
            f"usage: commitlake {{{','.join(COMMANDS)}}} [ARGUMENT...]; --help after a command tells more",
            file=sys.stderr,
        )
        return 2
    return COMMANDS[arguments[0]](arguments[1:])
