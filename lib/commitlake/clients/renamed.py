"""Arguments of public calls, by the names that they had before 0.3."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

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
                warnings.warn(f"the argument {name} is {former[name]} now", DeprecationWarning, stacklevel=2)
                named[former[name]] = named.pop(name)
            return call(*given, **named)

        return taking

    return decorated
