"""Conversion of a sink's rows into messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType

from commitlake.clients.producer.message import Message
from commitlake.errors import ConfigError, RecordError

FIELDS = ("body", "keys", "tags", "sharding_key")


def selected(frame: DataFrame, columns: Mapping[str, str | None]) -> DataFrame:
    """The columns of messages: binary columns as they are, all others as Spark's text of them.

    Args:
        frame: rows with any columns.
        columns: SQL for each of `FIELDS`; None for NULL.

    Raises:
        ConfigError: the body is neither a string nor binary, so a reader could not know its format.
    """
    made = frame.select(*(F.expr(columns[name] or "CAST(NULL AS STRING)").alias(name) for name in FIELDS))
    kinds = {field.name: field.dataType for field in made.schema}
    if not isinstance(kinds["body"], StringType | BinaryType):
        msg = (
            f"sink: body: {columns['body']!r} is {kinds['body'].simpleString()}, allowed is a string or binary; write "
            f"for example CAST({columns['body']} AS STRING), or to_json(struct(*))"
        )
        raise ConfigError(msg)
    is_binary = {name: isinstance(kind, BinaryType) for name, kind in kinds.items()}
    return made.select(*(F.col(name) if is_binary[name] else F.col(name).cast("string") for name in FIELDS))


def message_of(row: Mapping[str, Any], topic: str, properties: dict[str, str]) -> Message:
    """The message of a row.

    Args:
        row: `FIELDS`, each a string, bytes, or None.
        topic: destination.
        properties: of the message.

    Raises:
        RecordError: `NULL_BODY`, or keys or tags that are not UTF-8.
    """
    if row["body"] is None:
        msg = "its body is NULL"
        raise RecordError(msg, "NULL_BODY")
    body, key = row["body"], row["sharding_key"]
    return Message(
        topic,
        body if isinstance(body, str) else bytes(body),
        keys=_text("keys", row["keys"]),
        tags=_text("tags", row["tags"]),
        sharding_key=key if key is None or isinstance(key, str) else bytes(key),
        properties=properties,
    )


def _text(name: str, value: Any) -> str | None:
    """A text column's value; Spark's binary, a bytearray, is decoded as UTF-8."""
    if value is None or isinstance(value, str):
        return value
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        msg = f"its {name} are {bytes(value)[:40]!r}, which is not UTF-8; write for example hex({name})"
        raise RecordError(msg) from error
