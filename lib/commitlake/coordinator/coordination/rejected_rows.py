"""Rows of `rejected` for refused ops, with the original bytes, read from Kafka a second time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import zip_longest

from pyspark.sql import DataFrame

from commitlake.config import Config
from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.landing.classify import normalise
from commitlake.coordinator.landing.query import read, source_options
from commitlake.kafka.log_ends import Place
from commitlake.protocol.kafka_topics import ADMIN, OP
from commitlake.protocol.states import Event, Refusal
from commitlake.tables import Warehouse
from commitlake.tables.columns import moment_sql, named_sql
from commitlake.tables.spans import Span, spans_of, within

_DETAILS = {
    Refusal.WRONG_TRANSACTION_ID: "the half message at that offset has another transaction id",
    Refusal.WRONG_PRODUCER_GROUP: "the half message at that offset is of another producer group",
    Refusal.ALREADY_COMMITTED: "the transaction was committed before",
    Refusal.ALREADY_ROLLED_BACK: "the transaction was rolled back before",
    Refusal.ALREADY_DISCARDED: "the transaction was discarded before; RESUME reopens it",
    Refusal.NO_HALF_MESSAGE: "a half message that it lists did not come within transaction.op_park_time",
    Refusal.BAD_FIRST_HALF: "it lists a further half message first, or one further that belongs to another first one",
    Refusal.NOT_DISCARDED: "only a DISCARDED transaction can be resumed, no ORPHAN, and none with a refused part",
    Refusal.NO_DELAYED_MESSAGE: "there is no delayed message with that offset, id and topic",
    Refusal.RECALL_TOO_LATE: "the message was delivered before",
}
_CASES = " ".join(f"WHEN {int(code)} THEN '{text}'" for code, text in _DETAILS.items())
"""SQL; no text has a quote."""
_OP = ["op_queue", "op_offset", "admin"]


def rejected_rows(warehouse: Warehouse, config: Config, events: Events) -> DataFrame:
    """Rows of `rejected` for the REFUSED events, one each.

    Kafka may have dropped an old record by now, or lost it and hold another at its offset. The value is then its row of
    `op`, as JSON.
    """
    refused = events.of(Event.REFUSED).selectExpr(*_OP, "reason AS refusal", "now")
    spans = {
        source: spans_of(refused.where(f"admin = {number}"), "op_queue", "op_offset")
        for number, source in enumerate((OP, ADMIN))
    }
    stored = (
        warehouse.read("op")
        .where(within([*spans[OP], *spans[ADMIN]], "queue", "op_offset"))
        .selectExpr(
            *("queue AS op_queue", "op_offset", "INT(admin) AS admin", "stored_at AS op_stored_at"),
            "BINARY(transaction_id) AS stored_key",
            "BINARY(to_json(struct(transaction_id, producer_group, decision, half_messages, remark))) AS stored_value",
        )
    )
    found = refused.join(_records(warehouse, config, spans), _OP, "left").join(stored, _OP, "left")
    is_same = "coalesce(stored_at = op_stored_at, true)"
    return found.selectExpr(
        f"IF(admin = 1, '{ADMIN}', '{OP}') AS source",
        *("op_queue AS kafka_partition", "op_offset AS kafka_offset"),
        f"{named_sql(Refusal, 'refusal')} AS reason",
        f"CASE refusal {_CASES} END AS detail",
        f"coalesce(IF({is_same}, key, NULL), stored_key) AS key",
        f"coalesce(IF({is_same}, value, NULL), stored_value) AS value",
        f"IF({is_same}, headers, NULL) AS headers",
        f"{moment_sql('now')} AS rejected_at",
    )


def _records(warehouse: Warehouse, config: Config, spans: Mapping[str, Sequence[Span]]) -> DataFrame:
    """The Kafka records in the spans; those that Kafka has dropped are left out.

    A read takes one range of each partition. So the first read takes the first span of all partitions, the second read
    the second spans, and so on. All ops between a refusal of now and one of ten minutes ago are then not read.
    """
    own = defaultdict[Place, list[Span]](list)
    for source, each in spans.items():
        for span in each:
            own[source, span.queue].append(span)
    options = source_options(config) | {"failOnDataLoss": "false"}
    found = []
    for nth in zip_longest(*own.values()):
        begin = {place: span.low for place, span in zip(own, nth, strict=True) if span}
        ends = {place: span.high + 1 for place, span in zip(own, nth, strict=True) if span}
        found.append(read(warehouse.spark, config, begin, ends, options))
    return normalise(reduce(DataFrame.unionAll, found), config.kafka.topic_prefix).selectExpr(
        *("partition AS op_queue", "offset AS op_offset", f"INT(source = '{ADMIN}') AS admin"),
        *("key", "value", "headers", "stored_at"),
    )
