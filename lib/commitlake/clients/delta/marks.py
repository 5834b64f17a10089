"""The mark of a transaction in the log of a Delta table: `SetTransaction`, with the transaction's id as `appId`.

`WRITTEN` is in the commit with the transaction's rows. `FENCED` is in a commit of its own, which says that no rows of
it will ever follow. Only one of both can be in a log: Delta's writer does nothing when its `txnVersion` is not above
the one in the log, and fails when a mark comes while it commits (ConcurrentTransactionException).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from commitlake.errors import WarehouseError
from commitlake.reading.table import delta_table

WRITTEN, FENCED = 1, 2
PREFIX = "commitlake-tx-"
"""Prefix of each transaction id that is written to a table's log. Any producer that may write to `half` chooses ids,
and other applications, such as streaming queries, keep their progress under own ids in the same logs."""
_SINK = "commitlake-sink-"


def new_id() -> str:
    """A new transaction id that may be written as a mark."""
    return f"{PREFIX}{uuid.uuid4().hex.upper()}"


def mark(place: str, transaction_id: str) -> int | None:
    """The mark of a transaction: `WRITTEN`, `FENCED`, or None when the table has neither.

    Raises:
        WarehouseError: the table can't be read.
    """
    return _mark(delta_table(place), transaction_id)


def fence(place: str, transaction_id: str) -> int:
    """Prevent any later rows of a transaction; return `FENCED`, or `WRITTEN` if its rows are there already.

    Raises:
        WarehouseError: the table can't be read or written.
    """
    return FENCED if put(place, [transaction_id], FENCED) else mark(place, transaction_id) or 0


def put(place: str, transaction_ids: Sequence[str], version: int, *, after: tuple[str, int] | None = None) -> bool:
    """Write `WRITTEN` or `FENCED` for several transactions in one commit, unless one of them has a mark.

    `after` is a sink and its new micro-batch, which the same commit notes; the sink's last one must be lower.

    Returns:
        Whether the marks were written; False when a transaction had one, or the sink had reached the micro-batch.

    Raises:
        WarehouseError: the table can't be read or written.
    """
    table = delta_table(place)
    written = [Transaction(each, version) for each in transaction_ids]
    if after is not None:
        written.append(Transaction(_SINK + after[0], after[1]))
    # Without retries the commit makes the version right after the one that was read, so nothing comes in between.
    properties = CommitProperties(app_transactions=written, max_commit_retries=0)
    while True:
        if any(_mark(table, each) is not None for each in transaction_ids):
            return False
        if after is not None and _reached(table, after[0]) >= after[1]:
            return False
        try:
            table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
        except (DeltaError, OSError) as error:
            if not (isinstance(error, CommitFailedError) and _has_grown(table)):
                msg = f"cannot write to the log of {place}: {error}; give the right to write there"
                raise WarehouseError(msg) from error
        else:
            return True


def _has_grown(table: DeltaTable) -> bool:
    """Go to the newest version; return whether another writer has committed.

    If not, the same commit would fail for ever, as in a table with a feature that deltalake can't write.
    """
    before = table.version()
    table.update_incremental()
    return bool(table.version() > before)


def reached(place: str, sink: str) -> int:
    """The newest micro-batch of a sink; -1 without one.

    Raises:
        WarehouseError: the table can't be read.
    """
    return _reached(delta_table(place), sink)


def _reached(table: DeltaTable, sink: str) -> int:
    """`reached` in an open table; also under the name without a prefix, which counted before contract 4.11."""
    return max(-1 if found is None else found for found in (_mark(table, _SINK + sink), _mark(table, sink)))


def _mark(table: DeltaTable, name: str) -> int | None:
    found = table.transaction_version(name)
    return None if found is None else int(found)


def decision(places: Sequence[str], transaction_id: str, is_over: bool, *, only_looks: bool = False) -> str | None:
    """COMMIT when all tables have a transaction's rows, ROLLBACK when one never will, None while that is open.

    An answer is final: marks do not go away. If the time `is_over`, tables that have no rows of it yet are fenced,
    unless this call `only_looks`. Nothing is written under an id without `PREFIX`, such as an id of an older version's
    job, so such a transaction stays open even after its deadline.

    Raises:
        WarehouseError: a table can't be read or written.
    """
    found = [mark(place, transaction_id) for place in places]
    if (is_over or FENCED in found) and transaction_id.startswith(PREFIX) and not only_looks:
        found = [fence(place, transaction_id) for place in places]
    if None in found and FENCED not in found:
        return None
    return "COMMIT" if set(found) == {WRITTEN} else "ROLLBACK"
