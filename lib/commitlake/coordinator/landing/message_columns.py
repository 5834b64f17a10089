"""The columns of a message's headers, worked out once: `half`, `delayed` and topic tables share them."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from commitlake.coordinator.landing.parse import at_most, born, timestamp, whole
from commitlake.protocol import headers

_DROPPED = sorted(headers.MESSAGE_HEADERS | headers.TRANSACTION_HEADERS | headers.COORDINATOR_HEADERS)
_MAX_INT = 2**31 - 1


def header(name: str) -> Column:
    """The column that holds a header's text."""
    return F.col(alias(name))


def alias(name: str) -> str:
    """The name of the column that holds a header's text."""
    return f"h_{name}"


def message_columns() -> dict[str, Column]:
    """Columns by their names in the tables; `due_at` is when a delayed message of Kafka's `messages` is due."""
    user = F.map_filter("headers", lambda name, _: ~name.isin(*_DROPPED))
    due = F.coalesce(F.col("deliver_ms"), F.unix_millis("stored_at") + F.col("delay_ms"))
    return {
        "message_id": header(headers.UNIQ_KEY),
        "transaction_id": F.coalesce(header(headers.TRANSACTION_ID), header(headers.UNIQ_KEY)),
        "producer_group": header(headers.PGROUP),
        "queue_id": F.coalesce("queue_id", "partition"),
        "tags": header(headers.TAGS),
        "keys": header(headers.KEYS),
        "properties": F.transform_values(user, lambda _, value: F.make_valid_utf8(value.cast("string"))),
        "first_queue": F.coalesce(F.col("first")["queue"], F.col("partition")),
        "first_offset": F.coalesce(F.col("first")["offset"], F.col("offset")),
        "check_immunity_s": at_most(whole(header(headers.CHECK_IMMUNITY), 18), _MAX_INT),
        "born_at": born(header(headers.BORN_TIMESTAMP)),
        "deliver_at": timestamp(F.col("deliver_ms")),
        "due_at": timestamp(due),
    }


def member_columns() -> dict[str, Column]:
    """The columns that a member of a batch sets itself; of the record's headers, topic, queue and group hold for it."""
    own = F.col("member")["properties"]
    is_member = own.isNotNull()

    def of(name: str, column: str) -> Column:
        return F.when(is_member, F.nullif(own[name], F.lit(""))).otherwise(F.col(column))

    return {
        "message_id": of(headers.UNIQ_KEY, "message_id"),
        "tags": of(headers.TAGS, "tags"),
        "keys": of(headers.KEYS, "keys"),
        "producer_group": F.coalesce(own[headers.PGROUP], "producer_group"),
        "born_at": F.coalesce(born(own[headers.BORN_TIMESTAMP]), "born_at"),
        "properties": F.when(is_member, F.map_filter(own, lambda name, _: ~name.isin(*_DROPPED))).otherwise(
            F.col("properties")
        ),
    }
