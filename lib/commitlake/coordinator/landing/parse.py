"""Spark expressions that parse Kafka records: headers, delays, op JSON, batch JSON.

JVM expressions only, and a body is never decoded: no Python worker runs while records land.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType

from commitlake.protocol import headers
from commitlake.protocol.encoding import LATEST_BORN_MS, MAX_ID_LENGTH, MAX_OFFSET, MAX_QUEUE
from commitlake.protocol.message_batch import MOST_MEMBERS

_LATEST_MS = 253_402_300_799_999  # the end of the year 9999: other readers can't show a later timestamp
_MANY = 10**15  # more than any duration in ms, and still 64 bits wide when multiplied by 1 000


def text(headers: Column, name: str) -> Column:
    """A header as a string, null when it is absent or empty; bytes that are not UTF-8 become U+FFFD."""
    return F.nullif(F.make_valid_utf8(headers[name].cast(StringType())), F.lit(""))


def matching(value: Column, pattern: str) -> Column:
    r"""`value` when all of it matches the (Java) pattern, else null; by `\z`, since `$` allows a final newline."""
    return F.when(value.rlike(rf"^(?:{pattern})\z"), value)


def whole(value: Column, digits: int) -> Column:
    """A whole number from 0 up of at most `digits` digits, else null."""
    return matching(value, f"[0-9]{{1,{digits}}}").cast(LongType())


def timestamp(ms: Column) -> Column:
    """A timestamp of ms since epoch, null for null."""
    return F.timestamp_millis(at_most(ms, _LATEST_MS))


def born(value: Column) -> Column:
    """When a message was made; `commitlake.protocol.encoding.born_ms` has the same rule in Python."""
    ms = whole(value, 18)
    return F.when(ms <= LATEST_BORN_MS, F.timestamp_millis(ms))


def at_most(value: Column, limit: int) -> Column:
    """`value` cut to `limit`, null for null (`least` would ignore a null)."""
    return F.when(value > limit, F.lit(limit)).otherwise(value)


def not_empty(value: Column) -> Column:
    """Whether a string has 1 to 255 characters; false for null."""
    return F.coalesce(F.length(value).between(1, MAX_ID_LENGTH), F.lit(False))


class DelayColumns(NamedTuple):
    """A delay by its headers, in ms: relative to an append time, or since epoch; at most one is not null."""

    relative_ms: Column
    absolute_ms: Column


def delay(numbers: Mapping[str, Column], levels_ms: Sequence[int]) -> DelayColumns:
    """Combine the delay headers' `signed` values; `commitlake.protocol.delay` has the same rules in Python."""
    level, sec, ms, deliver = (numbers[name] for name in headers.DELAY_HEADERS)
    levels = F.array(*map(F.lit, levels_ms)).cast("array<bigint>")
    relative = (
        F.when(level > 0, F.element_at(levels, F.least(level, F.lit(len(levels_ms))).cast("int")))
        .when(sec >= 0, sec * 1_000)
        .when(ms >= 0, ms)
    )
    return DelayColumns(relative, F.when(relative.isNull() & (deliver >= 0), deliver))


def signed(value: Column) -> Column:
    """A whole number of any length, its absolute value cut to `_MANY`; null when `value` is none."""
    digits = F.regexp_replace(value, "^[+-]?0*", "")
    size = F.when(F.length(digits) > 15, F.lit(_MANY)).otherwise(F.coalesce(digits.try_cast(LongType()), F.lit(0)))
    return F.when(value.rlike(r"^[+-]?[0-9]+\z"), F.when(value.startswith("-"), -size).otherwise(size))


def json(value: Column) -> Column:
    """UTF-8 JSON as a variant `{"v": <the value>}`, null when `value` is none; with a digest as in `op_json`."""
    plain = F.when(F.is_valid_utf8(value.cast(StringType())), value.cast(StringType()))
    digest = F.md5(value)
    parsed = F.try_parse_json(F.concat(F.lit('{"v":'), plain, F.lit(',"end":"'), digest, F.lit('"}')))
    return F.when(_get(parsed, "$.end", "string") == digest, parsed)


def _get(variant: Column, path: str, kind: str = "variant") -> Column:
    return F.try_variant_get(variant, path, kind)


def _typed(variant: Column, path: str, json_type: str, kind: str) -> Column:
    """The value at `path` when it has exactly this JSON type, else null."""
    return F.when(F.schema_of_variant(_get(variant, path)) == json_type, _get(variant, path, kind))


def op_json(value: Column) -> Column:
    """An op record's JSON as `op` takes it, for a column of a projection of its own: inlined, it is read thrice.

    `from_json` takes 1.4 us a record, `VARIANT` 5.8. `from_json` is strict with two exceptions:

    - It stops after the first complete value. So a digest is put behind the value, and is read only when nothing else
      stands there.
    - It turns any value into text where text is wanted. So `op_texts_are_texts` checks a text that could have been
      another value.
    """
    plain = F.when(F.is_valid_utf8(value.cast(StringType())), value.cast(StringType()))
    wrapped = F.concat(F.lit('{"v":'), plain, F.lit(',"end":"'), _digest(value), F.lit('"}'))
    return F.from_json(wrapped, f"v struct<{_OP}>, end string, corrupt string", _STRICT_JSON)


def op(read: Column, value: Column) -> Column:
    """The fields of an `op_json`, null when it is not one JSON object of the right types."""
    return F.when((read["end"] == _digest(value)) & read["corrupt"].isNull(), read["v"])


def _digest(value: Column) -> Column:
    return F.xxhash64(value).cast(StringType())


def op_texts_are_texts(op: Column, value: Column) -> Column:
    """Whether all text fields of `op` were JSON strings; only texts such as `7` or `true` are parsed a second time."""
    content = F.try_parse_json(value.cast(StringType()))
    were_texts = F.lit(True)
    for name in _OP_TEXTS:
        kind = F.schema_of_variant(_get(content, f"$.{name}"))
        were_texts &= F.coalesce(kind, F.lit("VOID")).isin("VOID", "STRING")
    return F.when(are_ambiguous(op), were_texts).otherwise(True)


def are_ambiguous(op: Column) -> Column:
    """Whether one of the text fields of `op` may have been something else than a JSON string."""
    return reduce(Column.__or__, [F.coalesce(op[name].rlike(_NO_TEXT), F.lit(False)) for name in _OP_TEXTS])


_NO_TEXT = r"^(?:-?[.0-9]+(?:[eE][-+]?[0-9]+)?|true|false|[\[{].*)\z"  # a number, a boolean, a list or an object
_OP_TEXTS = ("decision", "transaction_id", "producer_group", "message_id", "topic", "remark", "check_id")
_OP = (
    ", ".join(f"{name}: string" for name in _OP_TEXTS)
    + ", from_check: boolean"
    + "".join(f", {name}: array<struct<queue: bigint, offset: bigint>>" for name in ("half_messages", "messages"))
)
_STRICT_JSON = {"columnNameOfCorruptRecord": "corrupt", "allowSingleQuotes": "false"}


def are_places(listed: Column, most: int) -> Column:
    """Whether a list has 1 to `most` entries, each with a possible queue and offset."""
    good = F.forall(
        listed,
        lambda place: F.coalesce(
            place["queue"].between(0, MAX_QUEUE) & place["offset"].between(0, MAX_OFFSET), F.lit(False)
        ),
    )
    return F.coalesce(F.size(listed).between(1, most) & good, F.lit(False))


def members(content: Column, count: Column, topic: Column) -> Column:
    """The members of a batch as structs of body and properties; null when anything in the batch is bad.

    Its header names how many there are, and their topic.
    """
    entries = _get(content, "$.v.messages", "array<variant>")
    return _all_good(F.transform(entries, _member), (count > 0) & (F.size(entries) == count), topic)


def _member(entry: Column) -> Column:
    body = _typed(entry, "$.body", "STRING", "string")
    # `to_binary` alone would accept blanks and missing padding.
    base64 = F.when((F.length(body) % 4 == 0) & body.rlike(r"^[A-Za-z0-9+/]*+={0,2}\z"), body)
    properties = _properties(entry, "$.properties")
    return F.struct(F.try_to_binary(base64, F.lit("base64")).alias("body"), properties.alias("properties"))


def head(value: Column, size: Column) -> Column:
    """The JSON at the begin of a batch's value; its size is in the header `BATCH_HEAD`."""
    return F.substr(value, F.lit(1), size)


def ends(content: Column) -> Column:
    """Where the bodies of a joined batch end, null when that is no list of whole numbers up to 10^9.

    The column needs a projection of its own: inlined, the JSON is read again for each member. Larger numbers plus a
    head's size would not fit the 32 bits of an index into a value, and the query would fail.
    """
    are_numbers = F.forall(
        _get(content, "$.v.ends", "array<variant>"), lambda end: F.schema_of_variant(end) == "BIGINT"
    )
    read = F.when(are_numbers, _get(content, "$.v.ends", "array<bigint>"))
    return F.when(F.forall(read, lambda end: end.between(0, 10**9)), read)


class JoinedBatch(NamedTuple):
    """A batch whose bodies follow a head: its value, the head's size and JSON, its `ends`, and the record's id."""

    value: Column
    head: Column
    content: Column
    ends: Column
    message_id: Column

    def members(self, count: Column, topic: Column) -> Column:
        """The members, as the function `members` returns them."""
        entries = _get(self.content, "$.v.properties", "array<variant>")
        is_whole = F.try_element_at(self.ends, F.lit(-1)) == F.octet_length(self.value) - self.head
        are_many = count.between(1, MOST_MEMBERS) & (F.size(entries) == count) & (F.size(self.ends) == count)
        # Each read of a column of bytes copies it whole, and an inlined column is computed at each read: both for each
        # member. A variable of a lambda is neither copied nor computed again.
        whole = F.array(F.struct(*(column.alias(name) for name, column in self._asdict().items() if name != "content")))
        read = F.transform(whole, lambda it: F.transform(entries, lambda entry, at: self._member(it, entry, at)))
        return _all_good(F.get(read, F.lit(0)), are_many & is_whole, topic)

    @staticmethod
    def _member(whole: Column, entry: Column, index: Column) -> Column:
        begin, end = F.coalesce(F.get(whole["ends"], index - 1), F.lit(0)), F.get(whole["ends"], index)
        body = F.substr(whole["value"], (whole["head"] + begin + 1).cast("int"), (end - begin).cast("int"))
        own_id = F.concat_ws("-", whole["message_id"], index.cast(StringType()))
        named = F.map_concat(F.create_map(F.lit(headers.UNIQ_KEY), own_id), _properties(entry, "$"))  # the last wins
        return F.struct(F.when(begin <= end, body).alias("body"), named.alias("properties"))


def _properties(variant: Column, path: str) -> Column:
    """A member's properties, null unless all are strings."""
    found = _get(variant, path, "map<string, variant>")
    are_strings = F.forall(F.map_values(found), lambda value: F.schema_of_variant(value) == "STRING")
    return F.when(are_strings, _get(variant, path, "map<string, string>"))


def _all_good(read: Column, are_many: Column, topic: Column) -> Column:
    """The members, null when their number is not the header's, or one is bad."""
    good = F.forall(read, lambda member: _is_good(member, topic))
    return F.when(are_many & good, read)


def _is_good(member: Column, topic: Column) -> Column:
    properties = member["properties"]
    forbidden = F.arrays_overlap(F.map_keys(properties), F.array(*map(F.lit, sorted(headers.FORBIDDEN_IN_BATCH))))
    same_topic = F.coalesce(properties[headers.REAL_TOPIC], topic) == topic
    good = member["body"].isNotNull() & not_empty(properties[headers.UNIQ_KEY]) & ~forbidden & same_topic
    return F.coalesce(good, F.lit(False))
