"""A picture, for a terminal, of what happened to one order of the killed shop."""

from __future__ import annotations

from collections.abc import Iterable

from commitlake.tools.demo.comparison import OrderTables
from commitlake.tools.demo.orders import TOPIC
from commitlake.tools.demo.shop import DOOMED

_COLUMNS = 44
_HAPPENED = f"""
WITH chosen AS (
    SELECT half.keys, half.transaction_id FROM {{0}} AS half JOIN {{1}} AS ended USING (transaction_id)
    WHERE half.keys LIKE '{DOOMED}-%' AND ended.state = 'COMMITTED' AND ended.reason = 'CHECK'
    ORDER BY half.keys DESC LIMIT 1)
SELECT keys, epoch_ms(moment), said FROM chosen JOIN (
    SELECT transaction_id, stored_at AS moment, 'half message' AS said FROM {{0}}
    UNION ALL SELECT transaction_id, requested_at, concat('check ', check_no) FROM {{2}}
    UNION ALL SELECT transaction_id, stored_at, concat('answer ', decision) FROM {{3}}
    UNION ALL SELECT transaction_id, visible_at, 'visible' FROM {{4}}) USING (transaction_id)
"""


def of_a_checked_order(tables: OrderTables, killed: Iterable[tuple[int, str]]) -> tuple[str, list[str]]:
    """Return the last order of the killed shop that another one answered for, and a line for all that happened to it.

    `killed` says when, in ms since epoch, and who.
    """
    happened = tables.query(_HAPPENED, "half", "transactions", "checks", "op", f"topics/{TOPIC}")
    (order,) = {row[0] for row in happened}
    steps = sorted((at, said) for _, at, said in happened)
    return order, drawn([*steps, *(each for each in killed if steps[0] <= each <= steps[-1])])


def drawn(steps: Iterable[tuple[int, str]]) -> list[str]:
    """Return a line for each step, the first first: what it is, seconds since the first, and a point at its time.

    A step is a time, in ms since epoch, and a text.
    """
    ordered = sorted(steps)
    begin, width = ordered[0][0], max(len(said) for _, said in ordered)
    scale = (_COLUMNS - 1) / max(1, ordered[-1][0] - begin)
    return [
        f"  {said:{width}} {(at - begin) / 1000:5.1f} s  {'-' * round((at - begin) * scale)}o" for at, said in ordered
    ]
