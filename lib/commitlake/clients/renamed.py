"""What public calls took before 0.3, with a warning at the user's line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from commitlake.errors import ArgumentError

P = ParamSpec("P")
T = TypeVar("T")


def renamed(**former: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a call take arguments by their former names too, with a warning; version 0.4 will not.

    Args:
        former: by former name, the name.
    """

    def decorated(call: Callable[P, T]) -> Callable[P, T]:
        @wraps(call)
        def taking(*given: P.args, **named: P.kwargs) -> T:
            for name in former.keys() & named.keys():
                if former[name] in named:
                    msg = f"{name} is the former name of {former[name]}; give {former[name]} alone"
                    raise ArgumentError(msg)
                warn_user(f"the argument {name} is {former[name]} now", DeprecationWarning)
                named[former[name]] = named.pop(name)
            return call(*given, **named)

        return taking

    return decorated


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn at the line that called into this package: Python shows each line's warning once, and hides others' lines.

    Python 3.12 has `skip_file_prefixes` for this.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "commitlake":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
