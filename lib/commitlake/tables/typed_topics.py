"""Topics with columns for their bodies: `value` and `value_error`, which Spark parses as it writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    AnsiIntervalType,
    ArrayType,
    CalendarIntervalType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from commitlake.errors import ConfigError, root_reason
from commitlake.spark.frames import to_arrow, typed
from commitlake.spark.parallel import run_all
from commitlake.tables.names import topic_table
from commitlake.tables.schemas import STATISTICS, TOPIC, TableLayout

if TYPE_CHECKING:
    from commitlake.config.values import TopicSchema
    from commitlake.tables.warehouse import Warehouse

VALUE, ERROR = "value", "value_error"
_UNFIT = "__unfit__"
"""The field in which Spark's parser puts a text that does not fit; it nulls a field of a wrong type, and goes on."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFUSED = (VariantType, TimestampNTZType, NullType, AnsiIntervalType, CalendarIntervalType)
"""Types that Delta has not, that readers without Spark refuse, or for which a table needs a feature that they lack."""
_MOST_STATISTICS = 8
"""Fields with statistics: each makes some 60 bytes of Delta's log a file, and a round writes a file for each queue."""
_EXACT_DIGITS = 15
"""Digits of a decimal that a number of JSON has in every reader."""
_MOST_TOGETHER = 16
"""Topics that one job parses: each row has the columns of all of them on its way to the driver."""
_FAULTS = (
    "CASE WHEN coalesce(CAST(body AS STRING), '') RLIKE '^\\\\s*$' THEN 'EMPTY' "  # Spark's parser marks nothing
    # It would take the first object of a list, and ignore what follows an object.
    "WHEN NOT CAST(body AS STRING) RLIKE '(?s)^\\\\s*[{{].*[}}]\\\\s*$' THEN 'NO_OBJECT' "
    f"WHEN {{0}} IS NULL OR {{0}}.{_UNFIT} IS NOT NULL{{1}} THEN 'UNFIT' END"
)


def with_value(layout: TableLayout, value: StructType | None) -> TableLayout:
    """The layout of a topic's table with its typed columns; unchanged for a topic without a schema."""
    if value is None:
        return layout
    more, stats = [StructField(VALUE, value), StructField(ERROR, StringType())], _ordered(VALUE, value)
    return replace(
        layout,
        schema=StructType([*layout.schema.fields, *more]),
        stats=(*layout.stats, *islice(stats, _MOST_STATISTICS)),
    )


def _ordered(above: str, value: StructType) -> Iterator[str]:
    """Paths of the fields that have a lowest and a highest value, in Delta's log and for all its readers."""
    for field in value:
        path, kind = f"{above}.{field.name}", field.dataType
        if isinstance(kind, StructType):
            yield from _ordered(path, kind)
        elif isinstance(kind, DecimalType):
            yield from [path] if kind.precision <= _EXACT_DIGITS else []
        elif isinstance(kind, NumericType | DateType | TimestampType) or kind == StringType():  # without a collation
            yield path


def of_topics(rows: DataFrame, topics: Iterable[str], values: Mapping[str, StructType]) -> dict[str, DataFrame]:
    """The rows of each topic that has a schema, with `value` and `value_error`, which says why a body has no value."""
    own = {topic: rows.where(F.col("topic") == topic) for topic in topics if topic in values}
    return {topic: _with_values(mine, {"": (F.lit(True), values[topic])}) for topic, mine in own.items()}


def by_topic(rows: DataFrame, topics: Sequence[str], values: Mapping[str, StructType]) -> list[pa.Table]:
    """A few rows of several topics, as each topic's table has them: one job parses them, and brings them here."""
    ours = [topic for topic in topics if topic in values]
    parts = [ours[at : at + _MOST_TOGETHER] for at in range(0, len(ours), _MOST_TOGETHER)] or [[]]
    parts[0] = [*parts[0], *(topic for topic in topics if topic not in values)]
    own: dict[str, pa.Table] = {}
    for part in parts:
        own |= _brought(rows, part, values, whole=len(parts) == 1)
    return [own[topic] for topic in topics]


def _brought(
    rows: DataFrame, topics: Sequence[str], values: Mapping[str, StructType], *, whole: bool
) -> dict[str, pa.Table]:
    """The rows of some topics, by topic; `whole` says that there are no rows of others."""
    of = {f"_{n}": (F.col("topic") == topic, values[topic]) for n, topic in enumerate(topics) if topic in values}
    mine = rows if whole else rows.where(F.col("topic").isin([*topics]))
    more = [f"{name}{suffix}" for suffix in of for name in (VALUE, ERROR)]
    every = to_arrow(typed(_with_values(mine, of) if of else mine, TOPIC.schema, "topic", *more))
    found = {}
    for n, topic in enumerate(topics):
        names = {VALUE: f"{VALUE}_{n}", ERROR: f"{ERROR}_{n}"} if topic in values else {}
        part = every.filter(pc.equal(every["topic"], topic)).select([*TOPIC.columns, *names.values()])
        found[topic] = part.rename_columns([*TOPIC.columns, *names])
    return found


def _with_values(rows: DataFrame, of: Mapping[str, tuple[Column, StructType]]) -> DataFrame:
    """Adds both columns, with a suffix, for each condition on the rows that have such a value.

    A struct is parsed once, in a projection of its own: dropping its last field would parse it again.
    """
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _UNFIT}
    text = F.expr("CAST(body AS STRING)")
    wholes = {
        suffix: StructType([*value.fields, StructField(_UNFIT, StringType())]) for suffix, (_, value) in of.items()
    }
    once = rows.withColumns(
        {
            f"parsed{suffix}": F.when(of[suffix][0], F.from_json(text, whole, options))
            for suffix, whole in wholes.items()
        }
    )
    judged = once.withColumns(
        {
            f"{ERROR}{suffix}": F.when(mine, F.expr(_faults(f"parsed{suffix}", value)))
            for suffix, (mine, value) in of.items()
        }
    )
    return judged.withColumns(
        {
            f"{VALUE}{suffix}": F.when(
                mine & F.col(f"{ERROR}{suffix}").isNull(),
                F.struct(*[F.col(f"parsed{suffix}")[name].alias(name) for name in value.fieldNames()]),
            )
            for suffix, (mine, value) in of.items()
        }
    )


def _faults(parsed: str, value: StructType) -> str:
    """SQL of `value_error`. A number for a time is seconds to Spark; milliseconds would be the year 56 000."""
    wrong = "".join(f" OR year({path}) NOT BETWEEN 1 AND 9999" for path in _times(parsed, value))
    return _FAULTS.format(parsed, wrong)


def _times(above: str, value: StructType) -> Iterator[str]:
    for field in value:
        path = f"{above}.`{field.name}`"
        if isinstance(field.dataType, StructType):
            yield from _times(path, field.dataType)
        elif isinstance(field.dataType, TimestampType | DateType):
            yield path


def prepare(tables: Warehouse, schemas: Mapping[str, TopicSchema]) -> dict[str, StructType]:
    """The types of the topics' values; adds columns that tables lack.

    Fields that a schema no longer has stay in the table.

    Raises:
        ConfigError: a schema is none, or a field of the table has another type.
    """
    wanted = {topic: _type_of(tables.spark, topic, each.schema) for topic, each in schemas.items()}
    found: dict[str, StructType] = {}
    run_all(tables.spark, [partial(_prepare, tables, topic, value, found) for topic, value in wanted.items()])
    return found


def _prepare(tables: Warehouse, topic: str, wanted: StructType, found: dict[str, StructType]) -> None:
    """Brings the table of a topic to its schema, and notes the type that its `value` then has."""
    found[topic] = wanted
    if not tables.holds(name := topic_table(topic)):
        return
    there = {field.name.lower(): field.dataType for field in tables.read(name).schema}
    known, error = there.get(VALUE), there.get(ERROR)
    missing = [f"{VALUE} {wanted.simpleString()}", f"{ERROR} STRING"]
    if isinstance(known, StructType) and isinstance(error, StringType):
        found[topic], missing = _joined(topic, known, wanted)
    elif known is not None or error is not None:
        msg = f"topics.schemas: the table of {topic} has a column {VALUE} or {ERROR} of its own; rename it first"
        raise ConfigError(msg)
    if missing:
        tables.add_columns(name, missing)
    _gather_statistics(tables, name, found[topic])


def _gather_statistics(tables: Warehouse, name: str, value: StructType) -> None:
    """Brings a table to the statistics of its layout, unless they are its owner's choice.

    Without them it would get each append from Delta's own writer, a Spark job (`is_as_made`).
    """
    there, wanted = tables.property(name, STATISTICS), with_value(TOPIC, value).properties()[STATISTICS]
    own = TOPIC.properties()[STATISTICS]
    if there != wanted and there is not None and (there == own or there.startswith(f"{own},{VALUE}.")):
        tables.set_property(name, STATISTICS, wanted)


def _type_of(spark: SparkSession, topic: str, ddl: str) -> StructType:
    """The struct of a DDL, each field nullable."""
    try:
        found: DataType = spark.range(0).select(F.from_json(F.lit(""), ddl).alias("v")).schema[0].dataType
    except PySparkException as error:
        msg = f"topics.schemas: the schema of {topic} is not allowed: {root_reason(error)}; give columns, as in SQL"
        raise ConfigError(msg) from error
    if not isinstance(found, StructType) or not _is_allowed(found):
        msg = (
            f"topics.schemas: the schema of {topic} is {ddl!r}; allowed are columns with names of letters, digits, _, "
            "each once in any case, and of types other than VARIANT, TIMESTAMP_NTZ, VOID and INTERVAL"
        )
        raise ConfigError(msg)
    return found


def _is_allowed(kind: DataType) -> bool:
    """Whether Delta can have a type, and other readers read it; and whether its fields need no quotes in SQL."""
    if isinstance(kind, ArrayType):
        return _is_allowed(kind.elementType)
    if isinstance(kind, MapType):
        return _is_allowed(kind.keyType) and _is_allowed(kind.valueType)
    if isinstance(kind, StructType):
        names = [name.lower() for name in kind.fieldNames()]
        are_names = all(map(_NAME.fullmatch, names)) and len({*names}) == len(names) and _UNFIT not in names
        return are_names and all(_is_allowed(field.dataType) for field in kind)
    return not isinstance(kind, _REFUSED)


def _joined(topic: str, known: StructType, wanted: StructType, above: str = VALUE) -> tuple[StructType, list[str]]:
    """The fields of a table with those that a schema adds at their end, and these as SQL adds them."""
    fields, missing = {field.name.lower(): field for field in known}, list[str]()
    for field in wanted:
        name, there = f"{above}.{field.name}", fields.get(field.name.lower())
        if there is None:
            fields[field.name.lower()] = field
            missing.append(f"{name} {field.dataType.simpleString()}")
        elif isinstance(there.dataType, StructType) and isinstance(field.dataType, StructType):
            inner, more = _joined(topic, there.dataType, field.dataType, name)
            fields[field.name.lower()] = StructField(there.name, inner)
            missing += more
        elif there.dataType.simpleString().lower() != field.dataType.simpleString().lower():
            msg = (
                f"topics.schemas: {name} of {topic} is {field.dataType.simpleString()}, and "
                f"{there.dataType.simpleString()} in its table; keep that type, or give the field another name"
            )
            raise ConfigError(msg)
    return StructType(list(fields.values())), missing
