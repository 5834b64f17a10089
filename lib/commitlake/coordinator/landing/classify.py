"""Classify Kafka records: which table each belongs to, or the reason why it is rejected.

`normalise` gives every record one shape. `classify` adds columns of its headers and value, and a verdict: `target` is
the kind of table it goes to; `reason` and `detail` are null unless `target` is `rejected`. Of several reasons the first
in the order of the cases below counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import translate

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.config import Config
from commitlake.coordinator.dedup.dedup_index import place_sql
from commitlake.coordinator.landing import parse
from commitlake.coordinator.landing.message_columns import alias, header, message_columns
from commitlake.coordinator.landing.parts import size
from commitlake.protocol import headers, topic_names, wire
from commitlake.protocol.encoding import MAX_ID_LENGTH, MAX_OFFSET, MAX_QUEUE
from commitlake.protocol.message_batch import MOST_KEY_BYTES
from commitlake.protocol.states import DUPLICATE_OF, LANDING_REASONS

HALF, OP, DELAYED, TOPIC, REJECTED = "half", "op", "delayed", "topic", "rejected"
"""Where a record may go; `TOPIC` is the table of its own topic."""

Case = tuple[str, Column, Column]
"""A reason, when it applies, and the detail written with it."""

_HEADERS = tuple(sorted(headers.MESSAGE_HEADERS | headers.TRANSACTION_HEADERS))
_AFTER_TOPIC_NOT_ALLOWED = LANDING_REASONS[LANDING_REASONS.index("TOPIC_NOT_ALLOWED") + 1 :]


def normalise(raw: DataFrame, prefix: str) -> DataFrame:
    """Kafka's columns as source, partition, offset, stored_at, key, value, and headers as a map.

    Of a duplicate header the last wins: `spark.sql.mapKeyDedupPolicy` must be LAST_WIN.
    """
    no_headers = F.create_map().cast("map<string,binary>")
    return raw.select(
        F.substring("topic", len(prefix) + 1, 100).alias("source"),
        F.col("partition").cast("int").alias("partition"),
        F.col("offset").cast("bigint").alias("offset"),
        F.col("timestamp").alias("stored_at"),
        "key",
        "value",
        F.coalesce(F.map_from_entries("headers"), no_headers).alias("headers"),
    )


Steps = Sequence[Mapping[str, Column]]
"""Projections that add columns, one after the other."""


def classification(config: Config) -> Steps:
    """The steps of `classify` for any record.

    Each step is a projection of its own, so a value that several expressions of the next step use is computed once.
    """
    is_op = F.col("source").isin("op", "admin")
    delay = parse.delay({name: F.col(f"n_{name}") for name in headers.DELAY_HEADERS}, config.delay.levels_ms)
    has_head, batch = header(headers.BATCH_HEAD).isNotNull(), (F.col("batch"), header(headers.REAL_TOPIC))
    joined = parse.JoinedBatch(F.col("value"), F.col("head"), F.col("json"), F.col("ends"), header(headers.UNIQ_KEY))
    members = F.when(has_head, joined.members(*batch)).otherwise(parse.members(F.col("json"), *batch))
    json = F.when(has_head, parse.head(F.col("value"), F.col("head"))).otherwise(F.col("value"))
    return [
        {
            **{alias(name): parse.text(F.col("headers"), name) for name in _HEADERS},
            "op_json": F.when(is_op, parse.op_json(F.col("value"))),
        },
        {
            **{f"n_{name}": parse.signed(header(name)) for name in headers.DELAY_HEADERS},
            "batch": parse.whole(header(headers.BATCH), 9),
            "head": parse.whole(header(headers.BATCH_HEAD), 9).cast("int"),
            "op": parse.op(F.col("op_json"), F.col("value")),
        },
        {
            "json": F.when(F.col("batch").isNotNull(), parse.json(json)),
            "delay_ms": delay.relative_ms,
            "deliver_ms": delay.absolute_ms,
            "queue_id": parse.whole(header(headers.REAL_QID), 9).cast("int"),
            "first": _first_half(),
        },
        {"ends": F.when(has_head & F.col("batch").isNotNull(), parse.ends(F.col("json")))},
        {"members": F.when(F.col("batch").isNotNull(), members)},
        {"verdict": _verdict_of_any(config), "bytes": size(F.map_keys("headers"), F.map_values("headers"))},
        outcome() | message_columns() | {"is_judged": F.lit(True)},
    ]


def classify(records: DataFrame, steps: Steps) -> DataFrame:
    """Add the columns of message and verdict to `normalise`d records, by the steps of a `classification`."""
    for step in steps:
        records = records.withColumns(dict(step))
    return records.drop(*_JUDGED_BY)


def close_topics(classified: DataFrame, admitted: Collection[str]) -> DataFrame:
    """Reject records of a topic beyond `topics.max`, or without a table; `admitted` are all topics there may be."""
    classified_later = F.col("reason").isNull() | F.col("reason").isin(*_AFTER_TOPIC_NOT_ALLOWED)
    refused = ~F.col("source").isin("op", "admin") & classified_later & ~F.col("topic").isin(*admitted)
    detail = F.concat(
        F.lit("more topics than topics.max allows, or no name for a table of its own here: "),
        F.col("topic"),
    )
    return rejecting(classified, refused, "TOPIC_NOT_ALLOWED", detail)


def refuse_duplicates(classified: DataFrame, duplicates: DataFrame) -> DataFrame:
    """Reject normal and batch messages whose name was shown before; `duplicates` has place and duplicate_of."""
    is_message = f"target = '{TOPIC}'"
    place = f"IF({is_message}, {place_sql('source', 'partition', 'offset')}, NULL) AS place"
    found = classified.selectExpr("*", place).join(duplicates, "place", "left")
    duplicate_of = F.col("duplicate_of")
    return rejecting(found, duplicate_of.isNotNull(), DUPLICATE_OF, duplicate_of).drop("place", "duplicate_of")


def rejecting(classified: DataFrame, refused: Column, reason: str, detail: Column) -> DataFrame:
    """Classified records, with those where `refused` is true rejected after all."""
    return classified.withColumns(
        {
            "target": F.when(refused, REJECTED).otherwise(F.col("target")),
            "reason": F.when(refused, reason).otherwise(F.col("reason")),
            "detail": F.when(refused, detail).otherwise(F.col("detail")),
        }
    )


def half_cases(config: Config) -> list[Case]:
    """Reasons to reject a half message, in the order in which they count."""
    first = F.col("first")
    bad_first = (
        first.isNull()
        | (first["queue"] > MAX_QUEUE)
        | (first["offset"] > MAX_OFFSET)
        | ((first["queue"] == F.col("partition")) & (first["offset"] == F.col("offset")))
    )
    return [
        *identity_cases(config, F.lit(True)),
        ("BAD_BATCH", header(headers.BATCH).isNotNull(), F.lit("a half message can't be a batch; remove BATCH")),
        *_delay_cases(config),
        (
            "BAD_FIRST_HALF",
            header(headers.FIRST_HALF).isNotNull() & bad_first,
            _quoted(headers.FIRST_HALF, f"<queue>-<offset> of another half message, queue 0 to {MAX_QUEUE}"),
        ),
        ("TRANSACTIONS_REJECTED", F.lit(config.transaction.reject), F.lit("transaction.reject is on")),
    ]


def message_cases(config: Config) -> list[Case]:
    """Reasons to reject a record of `messages`, in the order in which they count."""
    forbidden = F.lit(False)
    for name in sorted(headers.FORBIDDEN_IN_BATCH):
        forbidden |= F.col("headers")[name].isNotNull()
    bad_batch = forbidden | F.col("members").isNull() | header(headers.REAL_TOPIC).startswith(topic_names.RETRY_PREFIX)
    return [
        *identity_cases(config, F.lit(False)),
        _large_key(),
        (
            "BAD_BATCH",
            header(headers.BATCH).isNotNull() & bad_batch,
            F.lit(
                "BATCH must be the number of members, each with UNIQ_KEY and a base64 body (with BATCH_HEAD: each "
                "with an end), none delayed, transactional or for another topic"
            ),
        ),
        *_delay_cases(config),
    ]


def _large_key() -> Case:
    """Limits the sum of the keys: each member's row has the key of the record."""
    members, key = F.col("batch"), F.octet_length("key")
    allowed = f"together it may take {MOST_KEY_BYTES}; send smaller batches, or shorten the key"
    detail = F.format_string(f"%s members with a key of %s bytes: {allowed}", members, key)
    return ("BAD_BATCH", members * key > MOST_KEY_BYTES, detail)


def op_cases() -> list[Case]:
    """The reasons to reject a record of `op` or `admin`."""
    op, value = F.col("op"), F.col("value")
    admin = F.col("source") == "admin"
    recall = (
        ~admin
        & (op["decision"] == "RECALL")
        & parse.not_empty(op["message_id"])
        & parse.not_empty(op["topic"])
        & parse.are_places(op["messages"], 1)
    )
    good = (decides(op, admin) | recall) & parse.op_texts_are_texts(op, value)
    allowed = (
        "the value must be one UTF-8 JSON object with decision COMMIT, ROLLBACK, UNKNOWN, RECALL (in op) or RESUME "
        "(in admin), transaction_id, producer_group and half_messages (a recall: message_id, topic, one of messages), "
        f"1 to {wire.MAX_HALF_MESSAGES} objects with queue 0 to {MAX_QUEUE} and offset"
    )
    return [("BAD_OP", ~F.coalesce(good, F.lit(False)), F.lit(allowed))]


def decides(op: Column, admin: Column) -> Column:
    """Whether an op is a decision on a transaction, or an UNKNOWN; `admin`: whether it is an administrator's."""
    decision, group = op["decision"], op["producer_group"]
    return (
        (decision.isin("COMMIT", "ROLLBACK", "UNKNOWN") | (admin & (decision == "RESUME")))
        & parse.not_empty(op["transaction_id"])
        & (parse.not_empty(group) | (admin & group.isNull()))
        & parse.are_places(op["half_messages"], wire.MAX_HALF_MESSAGES)
    )


def identity_cases(config: Config, is_half: Column) -> list[Case]:
    """Reasons to reject a message for its ids, topic, queue or body, in the order in which they count."""
    topic, group, body = header(headers.REAL_TOPIC), header(headers.PGROUP), F.col("value")
    system = topic.startswith(topic_names.SYSTEM_PREFIX) | topic.isin(*sorted(topic_names.SYSTEM_TOPICS))
    queues = config.topics.max_queues
    bad_queue = header(headers.REAL_QID).isNotNull() & ~F.coalesce(F.col("queue_id") < queues, F.lit(False))
    bad_group = ~parse.not_empty(group) & (is_half | group.isNotNull())
    # No op and no check could carry a longer transaction id.
    long_id = is_half & F.coalesce(F.length(header(headers.TRANSACTION_ID)) > MAX_ID_LENGTH, F.lit(False))
    too_large = F.octet_length(body) > config.max_message_size
    return [
        (
            "MISSING_REAL_TOPIC",
            ~F.coalesce(F.length(topic).between(1, topic_names.MAX_LENGTH), F.lit(False)),
            F.lit(f"{headers.REAL_TOPIC} must have 1 to {topic_names.MAX_LENGTH} characters"),
        ),
        (
            "MISSING_UNIQ_KEY",
            ~parse.not_empty(header(headers.UNIQ_KEY)) | long_id,
            _limits(f"{headers.UNIQ_KEY}, and {headers.TRANSACTION_ID} where it is given,"),
        ),
        ("MISSING_PRODUCER_GROUP", bad_group, _limits(headers.PGROUP)),
        (
            "ILLEGAL_TOPIC",
            parse.matching(topic, topic_names.NAME.pattern).isNull() | system,
            _quoted(headers.REAL_TOPIC, "letters, digits, and % _ - only, and no system name"),
        ),
        (
            "TOPIC_NOT_ALLOWED",
            ~_matches_any(topic, config.topics.allowed),
            _quoted(headers.REAL_TOPIC, "one of topics.allowed"),
        ),
        ("BAD_QUEUE_ID", bad_queue, _quoted(headers.REAL_QID, f"0 to {queues - 1}")),
        ("NULL_BODY", body.isNull(), F.lit("the record has no value; a body may be empty, but not null")),
        (
            "BODY_TOO_LARGE",
            too_large,
            F.concat(
                F.octet_length(body).cast("string"), F.lit(f" bytes, max_message_size is {config.max_message_size}")
            ),
        ),
    ]


def _delay_cases(config: Config) -> list[Case]:
    malformed = F.lit(False)
    for name in headers.DELAY_HEADERS:
        malformed |= header(name).isNotNull() & F.col(f"n_{name}").isNull()
    until_due = F.coalesce(F.col("delay_ms"), F.col("deliver_ms") - F.unix_millis("stored_at"))
    too_long = F.coalesce(until_due > config.delay.max_ms, F.lit(False))
    return [
        ("BAD_DELAY", malformed, F.lit(f"{', '.join(headers.DELAY_HEADERS)} must be whole numbers")),
        (
            "DELAY_TOO_LONG",
            too_long,
            F.concat(until_due.cast("string"), F.lit(f" ms, delay.max is {config.delay.max_ms} ms")),
        ),
    ]


def _first_half() -> Column:
    """`FIRST_HALF` as a struct of queue and offset, null when it is absent or malformed."""
    parts = F.split(parse.matching(header(headers.FIRST_HALF), "[0-9]{1,9}-[0-9]{1,18}"), "-")
    return F.when(
        parts.isNotNull(), F.struct(parts[0].cast("int").alias("queue"), parts[1].cast("bigint").alias("offset"))
    )


def _verdict(cases: Sequence[Case]) -> Column:
    chosen = F.when(F.lit(False), _told("", F.lit("")))
    for reason, applies, detail in cases:
        chosen = chosen.when(applies, _told(reason, detail))
    return chosen


def _told(reason: str, detail: Column) -> Column:
    return F.struct(F.lit(reason).alias("reason"), detail.alias("detail"))


def _verdict_of_any(config: Config) -> Column:
    return (
        F.when(F.col("source") == "half", _verdict(half_cases(config)))
        .when(F.col("source") == "messages", _verdict(message_cases(config)))
        .otherwise(_verdict(op_cases()))
    )


def outcome() -> dict[str, Column]:
    """The columns that say where a record goes, by its `verdict`."""
    delayed = F.col("delay_ms").isNotNull() | F.col("deliver_ms").isNotNull()
    target = (
        F.when(F.col("verdict").isNotNull(), REJECTED)
        .when(F.col("source") == "half", HALF)
        .when(F.col("source") != "messages", OP)
        .when(delayed, DELAYED)
        .otherwise(TOPIC)
    )
    return {
        "target": target,
        "topic": header(headers.REAL_TOPIC),
        "reason": F.col("verdict")["reason"],
        "detail": F.col("verdict")["detail"],
    }


_JUDGED_BY = (
    *("json", "op_json", "batch", "head", "ends", "verdict", "first"),
    *(alias(name) for name in _HEADERS),
    *(f"n_{name}" for name in headers.DELAY_HEADERS),
)
"""Columns that are dropped after the last step: only later columns need them, and they take memory in every batch."""


def _limits(name: str) -> Column:
    return F.lit(f"{name} must have 1 to {MAX_ID_LENGTH} characters")


def _quoted(name: str, allowed: str) -> Column:
    return F.concat(F.lit(f"{name} is '"), F.substring(header(name), 1, 200), F.lit(f"'; allowed: {allowed}"))


def _matches_any(topic: Column, patterns: Sequence[str]) -> Column:
    if "*" in patterns:
        return F.lit(True)
    # Java reads Python's regular expression of a shell pattern, except its end: Java's \Z allows a final newline.
    return topic.rlike("^(?:" + "|".join(translate(pattern).replace(r"\Z", r"\z") for pattern in patterns) + ")")
