"""Topics with columns for their bodies: `value` and `value_error`, which Spark parses as it writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType

from commitlake.errors import ConfigError, root_reason
from commitlake.spark.frames import to_arrow, typed
from commitlake.tables.names import topic_table
from commitlake.tables.schemas import TOPIC, TableLayout

if TYPE_CHECKING:
    from commitlake.config.values import TopicSchema
    from commitlake.tables.warehouse import Warehouse

VALUE, ERROR = "value", "value_error"
_UNFIT = "__unfit__"
"""The field in which Spark's parser puts a text that does not fit; it nulls a field of a wrong type, and goes on."""
_UNREADABLE = ("variant", "timestamp_ntz")
"""Types that readers without Spark refuse, or for which the table would need a feature that they lack."""
_FAULTS = (
    "CASE WHEN body IS NULL OR trim(CAST(body AS STRING)) = '' THEN 'EMPTY' "  # Spark's parser marks nothing
    "WHEN NOT CAST(body AS STRING) RLIKE '^\\\\s*[{{]' THEN 'NO_OBJECT' "  # of a list it would take the first object
    f"WHEN {{0}} IS NULL OR {{0}}.{_UNFIT} IS NOT NULL THEN 'UNFIT' END"
)


def with_value(layout: TableLayout, value: StructType | None) -> TableLayout:
    """The layout of a topic's table with its typed columns; unchanged for a topic without a schema."""
    if value is None:
        return layout
    more = [StructField(VALUE, value), StructField(ERROR, StringType())]
    return replace(layout, schema=StructType([*layout.schema.fields, *more]))


def parsed(rows: DataFrame, value: StructType) -> DataFrame:
    """Rows with `value` and `value_error`, which says why a body has no value: `EMPTY`, `NO_OBJECT` or `UNFIT`."""
    return _with_values(rows, {"": (F.lit(True), value)})


def of_topics(rows: DataFrame, topics: Iterable[str], values: Mapping[str, StructType]) -> dict[str, DataFrame]:
    """The rows of each topic that has a schema, parsed."""
    own = {topic: rows.where(F.col("topic") == topic) for topic in topics if topic in values}
    return {topic: parsed(mine, values[topic]) for topic, mine in own.items()}


def by_topic(rows: DataFrame, topics: Sequence[str], values: Mapping[str, StructType]) -> list[pa.Table]:
    """A few rows of several topics, as each topic's table has them: one job parses them all and brings them here."""
    of = {f"_{n}": (F.col("topic") == topic, values[topic]) for n, topic in enumerate(topics) if topic in values}
    more = [f"{name}{suffix}" for suffix in of for name in (VALUE, ERROR)]
    every = to_arrow(typed(_with_values(rows, of) if of else rows, TOPIC.schema, "topic", *more))
    own = []
    for n, topic in enumerate(topics):
        mine = every.filter(pc.equal(every["topic"], topic))
        names = {VALUE: f"{VALUE}_{n}", ERROR: f"{ERROR}_{n}"} if topic in values else {}
        found = mine.select([*TOPIC.columns, *names.values()])
        own.append(found.rename_columns([*TOPIC.columns, *names]))
    return own


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
            f"{ERROR}{suffix}": F.when(mine, F.expr(_FAULTS.format(f"parsed{suffix}")))
            for suffix, (mine, _) in of.items()
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


def prepare(tables: Warehouse, schemas: Mapping[str, TopicSchema]) -> dict[str, StructType]:
    """The types of the topics' values; adds columns that tables lack.

    Fields that a schema no longer has stay in the table.

    Raises:
        ConfigError: a schema is none, or a field of the table has another type.
    """
    found: dict[str, StructType] = {}
    for topic, each in schemas.items():
        found[topic] = wanted = _type_of(tables.spark, topic, each.schema)
        if tables.holds(name := topic_table(topic)):
            there = {field.name: field.dataType for field in tables.read(name).schema}.get(VALUE)
            known = there if isinstance(there, StructType) else StructType()
            found[topic], missing = _joined(topic, known, wanted)
            if not known.fields:
                tables.add_columns(name, [f"{VALUE} {wanted.simpleString()}", f"{ERROR} STRING"])
            elif missing:
                tables.add_columns(name, missing)
    return found


def _type_of(spark: SparkSession, topic: str, ddl: str) -> StructType:
    """The struct of a DDL, each field nullable."""
    try:
        found: DataType = spark.range(0).select(F.from_json(F.lit(""), ddl).alias("v")).schema[0].dataType
    except PySparkException as error:
        msg = f"topics.schemas: the schema of {topic} is not allowed: {root_reason(error)}; give columns, as in SQL"
        raise ConfigError(msg) from error
    refused = next((each for each in _UNREADABLE if each in found.simpleString()), None)
    if refused or not isinstance(found, StructType) or _UNFIT in found.fieldNames():
        msg = f"topics.schemas: the schema of {topic} is {ddl!r}; allowed are columns of types other than {_UNREADABLE}"
        raise ConfigError(msg)
    return found


def _joined(topic: str, known: StructType, wanted: StructType, above: str = VALUE) -> tuple[StructType, list[str]]:
    """The fields of a table with those that a schema adds at their end, and these as SQL adds them."""
    fields, missing = {field.name: field for field in known}, list[str]()
    for field in wanted:
        name, there = f"{above}.`{field.name}`", fields.get(field.name)
        if there is None:
            fields[field.name] = field
            missing.append(f"{name} {field.dataType.simpleString()}")
        elif isinstance(there.dataType, StructType) and isinstance(field.dataType, StructType):
            inner, more = _joined(topic, there.dataType, field.dataType, name)
            fields[field.name] = StructField(field.name, inner)
            missing += more
        elif there.dataType != field.dataType:
            msg = (
                f"topics.schemas: {name} of {topic} is {field.dataType.simpleString()}, and "
                f"{there.dataType.simpleString()} in its table; keep that type, or give the field another name"
            )
            raise ConfigError(msg)
    return StructType(list(fields.values())), missing
