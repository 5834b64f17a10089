"""Topics with columns for their bodies: `value` and `value_error`, which Spark parses as it writes them."""

from __future__ import annotations

import logging
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from commitlake.config.values import AVRO, SUBJECT, TopicSchema
from commitlake.errors import ConfigError, root_reason
from commitlake.spark.frames import to_arrow, typed
from commitlake.spark.parallel import run_all
from commitlake.tables import avro_bodies, json_bodies
from commitlake.tables.avro_bodies import Avro
from commitlake.tables.columns import any_sql
from commitlake.tables.existing_tables import ExistingTables
from commitlake.tables.names import topic_table
from commitlake.tables.schema_registry import registry
from commitlake.tables.schemas import STATISTICS, TOPIC, TableLayout

log = logging.getLogger(__name__)

VALUE, ERROR = "value", "value_error"
_LAST_SCHEMA = "commitlake.schema"
"""The table property that has the schema of a subject, in base64, as it was at the last start that had one."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFUSED = (T.VariantType, T.TimestampNTZType, T.NullType, T.AnsiIntervalType, T.CalendarIntervalType)
"""Types that Delta has not, that readers without Spark refuse, or for which a table needs a feature that they lack."""
_MOST_STATISTICS = 8
"""Fields with statistics: each makes some 60 bytes of Delta's log a file, and a round writes a file for each queue."""
_EXACT_DIGITS = 15
"""Digits of a decimal that a number of JSON has in every reader."""
_MOST_TOGETHER = 16
"""Topics that one job parses: each row has the columns of all of them on its way to the driver."""


@dataclass(frozen=True)
class Value:
    """The column `value` of a topic, and how bodies become it.

    Attributes:
        column: the column's type: the fields of the schema, and those that the table had before.
        parsed: the type of a parsed body: the fields of the schema.
        avro: how bodies of Avro are parsed; None for JSON.
        subject: the schema that a subject of a registry had; empty without one.
    """

    column: T.StructType
    parsed: T.StructType
    avro: Avro | None = None
    subject: str = ""

    def properties(self) -> tuple[tuple[str, str], ...]:
        """The note in the topic's table for a start while the registry is away."""
        return ((_LAST_SCHEMA, b64encode(self.subject.encode()).decode()),) if self.subject else ()


def with_value(layout: TableLayout, value: Value | None) -> TableLayout:
    """The layout of a topic's table with its typed columns; unchanged for a topic without a schema."""
    if value is None:
        return layout
    more = [T.StructField(VALUE, value.column), T.StructField(ERROR, T.StringType())]
    stats = _ordered(VALUE, value.column)
    return replace(
        layout,
        schema=T.StructType([*layout.schema.fields, *more]),
        stats=(*layout.stats, *islice(stats, _MOST_STATISTICS)),
        more=value.properties(),
    )


_PLAIN = T.StringType()
"""A text without a collation."""


def _ordered(above: str, value: T.StructType) -> Iterator[str]:
    """Paths of the fields that have a lowest and a highest value, in Delta's log and for all its readers."""
    for field in value:
        path, kind = f"{above}.{field.name}", field.dataType
        if isinstance(kind, T.StructType):
            yield from _ordered(path, kind)
        elif isinstance(kind, T.DecimalType):
            yield from [path] if kind.precision <= _EXACT_DIGITS else []
        elif isinstance(kind, T.NumericType | T.DateType | T.TimestampType) or kind == _PLAIN:
            yield path


def of_these(rows: DataFrame, topics: Iterable[str], values: Mapping[str, Value]) -> Mapping[str, Value]:
    """The values with what the parsing of these rows needs to know of registries; unchanged without any."""
    asked = {topic: avro for topic in topics if topic in values and (avro := values[topic].avro) and avro.registry}
    found = avro_bodies.written_by(rows, asked) if asked else {}
    return {**values, **{topic: replace(values[topic], avro=avro) for topic, avro in found.items()}}


def of_topics(rows: DataFrame, topics: Iterable[str], values: Mapping[str, Value]) -> dict[str, DataFrame]:
    """The rows of each topic that has a schema, with `value` and `value_error`, which says why a body has no value."""
    own = {topic: rows.where(F.col("topic") == topic) for topic in topics if topic in values}
    return {topic: _with_values(mine, {"": (F.lit(True), values[topic])}) for topic, mine in own.items()}


def by_topic(rows: DataFrame, topics: Sequence[str], values: Mapping[str, Value]) -> list[pa.Table]:
    """A few rows of several topics, as each topic's table has them: one job parses them, and brings them here."""
    ours = [topic for topic in topics if topic in values]
    parts = [ours[at : at + _MOST_TOGETHER] for at in range(0, len(ours), _MOST_TOGETHER)] or [[]]
    parts[0] = [*parts[0], *(topic for topic in topics if topic not in values)]
    own: dict[str, pa.Table] = {}
    for part in parts:
        own |= _brought(rows, part, values, whole=len(parts) == 1)
    return [own[topic] for topic in topics]


def _brought(
    rows: DataFrame, topics: Sequence[str], values: Mapping[str, Value], *, whole: bool
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


def _with_values(rows: DataFrame, of: Mapping[str, tuple[Column, Value]]) -> DataFrame:
    """Adds both columns, with a suffix, for each condition on the rows that have such a value.

    A struct is parsed once, in a projection of its own: dropping its last field would parse it again.
    """
    once = rows.withColumns({f"parsed{suffix}": F.when(mine, _parsed(value)) for suffix, (mine, value) in of.items()})
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
                _fields(F.col(f"parsed{suffix}"), value.parsed, value.column),
            )
            for suffix, (mine, value) in of.items()
        }
    )


def _parsed(value: Value) -> Column:
    return avro_bodies.parsed(value.avro, value.parsed) if value.avro else json_bodies.parsed(value.parsed)


def _fields(parsed: Column, there: T.StructType, wanted: T.StructType) -> Column:
    """A struct of the fields of a table; null in those that a parsed body can't have, since its schema lost them."""
    kinds = {field.name.lower(): field.dataType for field in there}

    def field(name: str, kind: T.DataType) -> Column:
        value, own = parsed[name], kinds.get(name.lower())
        if own is None:
            value = F.lit(None).cast(kind)
        elif isinstance(own, T.StructType) and isinstance(kind, T.StructType) and own != kind:
            value = F.when(value.isNotNull(), _fields(value, own, kind))
        return value.alias(name)

    return F.struct(*[field(each.name, each.dataType) for each in wanted])


def _faults(parsed: str, value: Value) -> str:
    """SQL of `value_error`. A number for a time is seconds to Spark; milliseconds would be the year 56 000."""
    far = any_sql(parsed, value.parsed, _far)
    wrong = f" OR {far}" if far else ""
    return avro_bodies.faults(parsed, value.avro, wrong) if value.avro else json_bodies.faults(parsed, wrong)


def _far(kind: T.DataType) -> str | None:
    return "year({}) NOT BETWEEN 1 AND 9999" if isinstance(kind, T.TimestampType | T.DateType) else None


def prepare(tables: ExistingTables, schemas: Mapping[str, TopicSchema]) -> dict[str, Value]:
    """The values of the topics; adds columns and statistics that tables lack.

    Fields that a schema no longer has stay in the table. Where a registry is away, or a subject's newest schema does
    not fit the table, the topic keeps that of the start before: no other topic must wait for it.

    Raises:
        ConfigError: a schema is none, or a field of the table has another type; and there was none before.
    """
    found: dict[str, Value] = {}
    run_all(tables.spark, [partial(_prepare, tables, topic, each, found) for topic, each in schemas.items()])
    return found


def _prepare(tables: ExistingTables, topic: str, given: TopicSchema, found: dict[str, Value]) -> None:
    """Brings the table of a topic to its schema, and notes the column `value` that it then has."""
    name = topic_table(topic)
    if not tables.holds(name):
        found[topic] = _value_of(tables.spark, topic, given)
        return
    there = tables.read(name).schema
    last = tables.property(name, _LAST_SCHEMA) if given.schema.startswith(SUBJECT) else None
    try:
        found[topic], missing = _fitted(tables.spark, topic, given, there)
    except ConfigError as error:
        if last is None:
            raise
        log.warning("%s keeps the schema of its subject that it had before: %s", topic, error)
        before = given._replace(schema=b64decode(last).decode())
        found[topic], missing = _fitted(tables.spark, topic, before, there)
    if missing:
        tables.add_columns(name, missing)
    _gather_statistics(tables, name, found[topic])
    for key, text in found[topic].properties():
        if text != last:
            tables.set_property(name, key, text)


def _fitted(spark: SparkSession, topic: str, given: TopicSchema, there: T.StructType) -> tuple[Value, list[str]]:
    """The value of a topic with such a table, and the columns that it lacks, as SQL adds them."""
    wanted, kinds = _value_of(spark, topic, given), {field.name.lower(): field.dataType for field in there}
    known, error = kinds.get(VALUE), kinds.get(ERROR)
    if isinstance(known, T.StructType) and isinstance(error, T.StringType):
        column, missing = _joined(topic, known, wanted.column)
        return replace(wanted, column=column), missing
    if known is not None or error is not None:
        msg = f"topics.schemas: the table of {topic} has a column {VALUE} or {ERROR} of its own; rename it first"
        raise ConfigError(msg)
    return wanted, [f"{VALUE} {wanted.column.simpleString()}", f"{ERROR} STRING"]


def _gather_statistics(tables: ExistingTables, name: str, value: Value) -> None:
    """Brings a table to the statistics of its layout, unless they are its owner's choice.

    Without them it would get each append from Delta's own writer, a Spark job (`is_as_made`).
    """
    there, wanted = tables.property(name, STATISTICS), with_value(TOPIC, value).properties()[STATISTICS]
    own = TOPIC.properties()[STATISTICS]
    if there != wanted and there is not None and (there == own or there.startswith(f"{own},{VALUE}.")):
        tables.set_property(name, STATISTICS, wanted)


def _value_of(spark: SparkSession, topic: str, given: TopicSchema) -> Value:
    """The value that a schema describes, each field nullable."""
    asked = registry(given.registry) if given.registry else None
    text, subject = given.schema, ""
    if asked and text.startswith(SUBJECT):
        text = subject = asked.latest(text.removeprefix(SUBJECT))
    try:
        schema = avro_bodies.with_end(text) if given.format == AVRO else None
        found = avro_bodies.type_of(spark, schema) if schema else _of_ddl(spark, text)
    except (PySparkException, Py4JJavaError, ValueError) as error:
        such = "a record of Avro, as JSON" if given.format == AVRO else "columns, as in SQL"
        msg = f"topics.schemas: the schema of {topic} is not allowed: {root_reason(error)}; give {such}"
        raise ConfigError(msg) from error
    if not isinstance(found, T.StructType) or not _is_allowed(found):
        msg = (
            f"topics.schemas: the schema of {topic} is {text!r}; allowed are columns with names of letters, "
            "digits, _, each once in any case, and of types other than VARIANT, TIMESTAMP_NTZ, VOID and INTERVAL"
        )
        raise ConfigError(msg)
    return Value(found, found, Avro(schema, asked) if schema else None, subject)


def _of_ddl(spark: SparkSession, ddl: str) -> T.DataType:
    return spark.range(0).select(F.from_json(F.lit(""), ddl).alias("v")).schema[0].dataType


def _is_allowed(kind: T.DataType) -> bool:
    """Whether Delta can have a type, and other readers read it; and whether its fields need no quotes in SQL."""
    if isinstance(kind, T.ArrayType):
        return _is_allowed(kind.elementType)
    if isinstance(kind, T.MapType):
        return _is_allowed(kind.keyType) and _is_allowed(kind.valueType)
    if isinstance(kind, T.StructType):
        names = [name.lower() for name in kind.fieldNames()]
        are_names = (
            all(map(_NAME.fullmatch, names))
            and len({*names}) == len(names)
            and not {json_bodies.UNFIT, avro_bodies.END} & {*names}
        )
        return are_names and all(_is_allowed(field.dataType) for field in kind)
    return not isinstance(kind, _REFUSED)


def _joined(
    topic: str, known: T.StructType, wanted: T.StructType, above: str = VALUE
) -> tuple[T.StructType, list[str]]:
    """The fields of a table with those that a schema adds at their end, and these as SQL adds them."""
    fields, missing = {field.name.lower(): field for field in known}, list[str]()
    for field in wanted:
        name, there = f"{above}.{field.name}", fields.get(field.name.lower())
        if there is None:
            fields[field.name.lower()] = field
            missing.append(f"{name} {field.dataType.simpleString()}")
        elif isinstance(there.dataType, T.StructType) and isinstance(field.dataType, T.StructType):
            inner, more = _joined(topic, there.dataType, field.dataType, name)
            fields[field.name.lower()] = T.StructField(there.name, inner)
            missing += more
        elif there.dataType.simpleString().lower() != field.dataType.simpleString().lower():
            msg = (
                f"topics.schemas: {name} of {topic} is {field.dataType.simpleString()}, and "
                f"{there.dataType.simpleString()} in its table; keep that type, or give the field another name"
            )
            raise ConfigError(msg)
    return T.StructType(list(fields.values())), missing
