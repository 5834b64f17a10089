"""The short plan of classification, for ordinary records: nearly all are.

A plan costs the same for 2 000 records and for 20 000. Most of a round's classification was the planning for batches,
delays, parts and all errors. The short plan has none of these, and marks the records that it can't judge.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple, Self

from pyspark.sql import Column
from pyspark.sql import functions as F

from commitlake.config import Config
from commitlake.coordinator.landing import classify, parse
from commitlake.coordinator.landing.classify import Steps
from commitlake.coordinator.landing.message_columns import alias, header, message_columns
from commitlake.coordinator.landing.parts import size
from commitlake.protocol import headers

RECORD = ("source", "partition", "offset", "stored_at", "key", "value", "headers")
"""The columns of `classify.normalise`, which classified records still have."""
_ODD = (headers.BATCH, headers.FIRST_HALF, *headers.DELAY_HEADERS)
_READ = (
    *(headers.REAL_TOPIC, headers.REAL_QID, headers.UNIQ_KEY, headers.PGROUP, headers.TRANSACTION_ID),
    *(headers.TAGS, headers.KEYS, headers.CHECK_IMMUNITY, headers.BORN_TIMESTAMP),
)
_ABSENT = {
    **dict.fromkeys(("delay_ms", "deliver_ms"), "bigint"),
    "members": "array<struct<body: binary, properties: map<string, string>>>",
    "first": "struct<queue: int, offset: bigint>",
    "verdict": "struct<reason: string, detail: string>",
}
"""Columns that are null for ordinary records."""


class Classification(NamedTuple):
    """The steps for all records, and the short ones, which judge only ordinary records."""

    whole: Steps
    short: Steps

    @classmethod
    def of(cls, config: Config) -> Self:
        """Both, to be built once: building 1 500 expressions takes longer than classifying a second's records."""
        return cls(classify.classification(config), _short(config))


def _short(config: Config) -> Steps:
    value = F.col("value")
    return [
        {
            **{alias(name): parse.text(F.col("headers"), name) for name in _READ},
            **{name: F.lit(None).cast(kind) for name, kind in _ABSENT.items()},
            "op_json": F.when(F.col("source") == "op", parse.op_json(value)),
        },
        {
            "op": parse.op(F.col("op_json"), value),
            "queue_id": parse.whole(header(headers.REAL_QID), 9).cast("int"),
            "bytes": size(F.map_keys("headers"), F.map_values("headers")),
        },
        {"is_judged": F.coalesce(_is_ordinary(config), F.lit(False))},
        classify.outcome() | message_columns(),
    ]


def _is_ordinary(config: Config) -> Column:
    source = F.col("source")
    odd = F.arrays_overlap(F.map_keys("headers"), F.array(*map(F.lit, _ODD)))
    wrong = [applies for _, applies, _ in classify.identity_cases(config, source == "half")]
    good = reduce(Column.__and__, [~F.coalesce(applies, F.lit(False)) for applies in wrong])
    is_message = (source == "messages") | ((source == "half") & F.lit(not config.transaction.reject))
    is_decision = (source == "op") & classify.decides(F.col("op"), F.lit(False)) & ~parse.are_ambiguous(F.col("op"))
    return (is_message & ~odd & good) | is_decision
