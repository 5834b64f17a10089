"""Bodies of Avro as Spark parses them. `from_avro` alone does not tell which of them fit their schema.

`from_avro` reads a body that is cut short as a struct of nulls, like one whose fields all are null. Bytes behind a body
are ignored. So a mark is put behind each body, and read as one more field: only of a body that fits it is what it was.
Of a decimal of few digits `from_avro` takes the last eight bytes, and a huge one it writes out for minutes. So bodies
are parsed with bytes in place of decimals first.

In a topic with a registry a body begins with the id of the schema that it was written with: a zero, and four bytes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import BinaryType, DataType, DecimalType, StructField, StructType

from commitlake.tables.columns import any_sql
from commitlake.tables.schema_registry import SchemaRegistry

log = logging.getLogger(__name__)

END = "__end__"
"""The field in which the mark is found."""
_MARK = bytes(range(8))
"""No beginning of it is an end of it, so a few bytes before it never make it up."""
_END_FIELD = {"name": END, "type": {"type": "fixed", "name": END, "namespace": "commitlake", "size": len(_MARK)}}
_MARKED = f"concat({{}}, X'{_MARK.hex()}')"
_ID = (
    "IF(octet_length(body) > 4 AND substring(body, 1, 1) = X'00', "
    "CAST(conv(hex(substring(body, 2, 4)), 16, 10) AS BIGINT), NULL)"
)
_MOST_IDS = 256
"""Ids of one append whose schemas are taken: known ones, then the most frequent of others; bodies may have any."""
_OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
_MOST_BYTES, _LONG_DIGITS = 1_000, 18
"""Bytes of a decimal, of which sixteen are enough; and digits of one that Spark takes for a number of 64 bits."""
_EIGHT_BYTES = "^(0*([0-7][0-9A-F]{{15}}|[0-9A-F]{{0,15}})|F*[89A-F][0-9A-F]{{15}})$"
"""In hexadecimal, a number of 64 bits with a sign, however many bytes repeat that."""


class Avro(NamedTuple):
    """How the bodies of a topic are parsed.

    Attributes:
        schema: the topic's schema (`with_end`).
        registry: has the schemas that bodies were written with; None where that is the topic's.
        writers: those of the rows at hand, by id.
    """

    schema: str
    registry: SchemaRegistry | None = None
    writers: Mapping[int, str] = MappingProxyType({})


def with_end(schema: str) -> str:
    """A schema of Avro with the field of the mark.

    Raises:
        ValueError: it is no JSON, or not that of a record, or has a type that takes no byte.
    """
    found = json.loads(schema, object_hook=_takes_bytes)
    if not isinstance(found, dict) or found.get("type") != "record" or not isinstance(found.get("fields"), list):
        msg = "it is no record of Avro"
        raise ValueError(msg)
    return json.dumps({**found, "fields": [*found["fields"], _END_FIELD]})


def _takes_bytes(kind: dict[str, Any]) -> dict[str, Any]:
    """Refuses arrays of items without a byte: Avro would count 2^62 of them in a body of ten. They may have a name."""
    if _is_empty(kind.get("items")) or (kind.get("type") in ("record", "fixed") and _is_empty(kind)):
        msg = "it has a type that takes no byte, such as an array of null"
        raise ValueError(msg)
    return kind


def _is_empty(kind: Any) -> bool:
    if not isinstance(kind, dict):
        return bool(kind == "null")
    if kind.get("type") == "record":
        return all(_is_empty(field["type"]) for field in kind.get("fields", ()))
    return kind.get("size") == 0 or _is_empty(kind.get("type"))


def type_of(spark: SparkSession, schema: str) -> DataType:
    """Spark's type for what a schema (`with_end`) describes; errors are Spark's own, or those of Avro in its JVM."""
    found = spark.range(0).select(from_avro(F.lit(b""), schema, _OPTIONS).alias("v")).schema[0].dataType
    return StructType(found.fields[:-1]) if isinstance(found, StructType) else found


def written_by(rows: DataFrame, of: Mapping[str, Avro]) -> dict[str, Avro]:
    """How the rows at hand are parsed, by topic, with the schemas that their registries have: a job over their ids."""
    spark = rows.sparkSession
    asked = rows.where(F.col("topic").isin([*of])).selectExpr("topic", f"{_ID} AS id").where("id IS NOT NULL")
    known = {number for avro in of.values() if avro.registry for number in avro.registry.known}
    by_want = F.col("id").isin(known).desc(), F.desc("count")
    found = asked.groupBy("topic", "id").count().orderBy(*by_want).limit(_MOST_IDS).collect()
    return {
        topic: _with_writers(spark, each, [row["id"] for row in found if row["topic"] == topic])
        for topic, each in of.items()
    }


def _with_writers(spark: SparkSession, avro: Avro, ids: Sequence[int]) -> Avro:
    assert avro.registry is not None
    found = avro.registry.writers(ids, partial(_checked, spark))
    return avro._replace(writers={number: each for number, each in found.items() if _fits(each, avro.schema)})


def _checked(spark: SparkSession, schema: str) -> str:
    """A schema that Avro can parse: of another one an append would fail."""
    marked = with_end(schema)
    type_of(spark, marked)
    return marked


@cache
def _fits(writer: str, reader: str) -> bool:
    """Whether numbers of both schemas count the same; Avro itself would read 12.50 as 0.1250, and ms as us."""
    own, wanted = (dict(_units(json.loads(each), {})) for each in (writer, reader))
    wrong = [path for path in own.keys() & wanted.keys() if own[path] != wanted[path]]
    for path in wrong:
        text = "bodies whose schema has %s of %s have no value, UNKNOWN_SCHEMA: in the topic's schema it is of %s"
        log.warning(text, path, own[path], wanted[path])
    return not wrong


def _units(kind: Any, named: dict[str, Any], path: str = "value") -> Iterator[tuple[str, str]]:
    """The units of a schema's numbers, by path: logical types, and scales of decimals."""
    if isinstance(kind, list):
        for each in kind:
            yield from _units(each, named, path)
    if not isinstance(kind, dict):
        kind = named.get(str(kind).rpartition(".")[2], {})
    if "name" in kind:
        named[str(kind["name"]).rpartition(".")[2]] = kind
    if "logicalType" in kind:
        yield path, f"{kind['logicalType']} {kind.get('scale', 0)}"
    for field in kind.get("fields", ()):
        yield from _units(field["type"], named, f"{path}.{field['name']}")
    for name, below in (("items", "[]"), ("values", "[]"), ("type", "")):
        if name in kind:
            yield from _units(kind[name], named, path + below)


def parsed(avro: Avro, kind: StructType) -> Column:
    """The body, parsed to a type; it has the field `END` too."""
    if avro.registry is None:
        return _parsed("body", kind, avro.schema)
    found = F.when(F.lit(False), F.lit(None).cast(StructType([*kind, StructField(END, BinaryType())])))
    for number, writer in avro.writers.items():
        found = found.when(F.expr(_ID) == number, _parsed("substring(body, 6)", kind, writer, avro.schema))
    return found


def _parsed(body: str, kind: StructType, *schemas: str) -> Column:
    """A body, given as SQL, parsed by its writer's schema, to the topic's; null where a decimal is too large."""
    marked, too_large = _MARKED.format(body), any_sql("it", kind, _too_large)
    found = from_avro(F.expr(marked), schemas[0], _options(*schemas))
    if not too_large:
        return found
    as_bytes = [json.dumps(json.loads(each, object_hook=_no_decimal)) for each in schemas]
    options = ", ".join(_literal(text) for option in _options(*as_bytes).items() for text in option)
    whole = f"from_avro({marked}, {_literal(as_bytes[0])}, map({options}))"
    fits = f"exists(array({whole}), it -> it.{END} IS NOT NULL AND NOT coalesce({too_large}, false))"
    return F.when(F.expr(fits), found)


def _options(writer: str, reader: str = "") -> dict[str, str]:
    return {**_OPTIONS, "avroSchema": reader or writer}


def _literal(text: str) -> str:
    """A text in SQL."""
    return "'{}'".format(text.replace("\\", "\\\\").replace("'", "\\'"))


def _no_decimal(kind: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in kind.items() if (name, each) != ("logicalType", "decimal")}


def _too_large(kind: DataType) -> str | None:
    """Whether bytes are too large a decimal: on a million Spark works for seconds, and some it cuts to eight."""
    if not isinstance(kind, DecimalType):
        return None
    cut = f" OR NOT hex({{0}}) RLIKE '{_EIGHT_BYTES}'" if kind.precision <= _LONG_DIGITS else ""
    return f"octet_length({{0}}) > {_MOST_BYTES}{cut}"


def faults(parsed: str, avro: Avro, wrong: str) -> str:
    """SQL of `value_error`, of a body that is `parsed`; `wrong` is more SQL, with which it does not fit."""
    known = ", ".join(map(str, (-1, *avro.writers)))
    unknown = f"WHEN {_ID} IS NULL THEN 'UNFIT' WHEN {_ID} NOT IN ({known}) THEN 'UNKNOWN_SCHEMA' "
    return (
        f"CASE WHEN coalesce(octet_length(body), 0) = 0 THEN 'EMPTY' {unknown if avro.registry else ''}"
        f"WHEN {parsed}.{END} IS NULL OR {parsed}.{END} <> X'{_MARK.hex()}'{wrong} THEN 'UNFIT' END"
    )
