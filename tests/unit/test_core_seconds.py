"""The sample of work that says how slow a machine is."""

from __future__ import annotations

import time
from itertools import pairwise

from tests.support import core_seconds
from tests.support.core_seconds import Slowness
from tests.support.polling import wait_for


def test_the_sample_is_in_no_order_so_that_it_takes_as_long_as_its_quiet_time_says() -> None:
    """Forty thousand equal numbers take a thirtieth of that, and no day would be a slow one."""
    numbers = core_seconds._SCATTERED
    assert len(set(numbers)) == len(numbers) == 40_000
    falls = sum(after < before for before, after in pairwise(numbers))
    assert 19_000 < falls < 21_000
    begun = time.thread_time()
    sorted(numbers)
    assert time.thread_time() - begun > core_seconds._QUIET_S / 4


def test_slowness_is_never_below_one() -> None:
    slowness = Slowness()
    wait_for(lambda: slowness.count)
    assert slowness.since(0) >= slowness.since(10**9) == 1.0
