"""Bodies of Avro as Spark parses them. `from_avro` alone does not tell which of them fit their schema.

It makes of a body that is cut short a struct of nulls, as of one whose fields all are null, and ignores bytes behind a
body. So a mark is put behind each body, and read as one more field: only of a body that fits it is what it was.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import DataType, StructType

END = "__end__"
"""The field in which the mark is found."""
_MARK = bytes(range(8))
"""No beginning of it is an end of it, so a few bytes before it never make it up."""
_END_FIELD = {"name": END, "type": {"type": "fixed", "name": END, "namespace": "commitlake", "size": len(_MARK)}}
_MARKED = f"concat({{}}, X'{_MARK.hex()}')"
_OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}


class Avro(NamedTuple):
    """How the bodies of a topic are parsed.

    Attributes:
        schema: the topic's schema (`with_end`).
        parsed: the type of what it describes.
    """

    schema: str
    parsed: StructType


def with_end(schema: str) -> str:
    """A schema of Avro with the field of the mark.

    Raises:
        ValueError: it is no JSON, or not that of a record.
    """
    found = json.loads(schema)
    if not isinstance(found, dict) or found.get("type") != "record" or not isinstance(found.get("fields"), list):
        msg = "it is no record of Avro"
        raise ValueError(msg)
    return json.dumps({**found, "fields": [*found["fields"], _END_FIELD]})


def type_of(spark: SparkSession, schema: str) -> DataType:
    """Spark's type for what a schema (`with_end`) describes; errors are Spark's own, or those of Avro in its JVM."""
    found = spark.range(0).select(from_avro(F.lit(b""), schema, _OPTIONS).alias("v")).schema[0].dataType
    return StructType(found.fields[:-1]) if isinstance(found, StructType) else found


def parsed(avro: Avro) -> Column:
    """The body, parsed; it has the field `END` too."""
    return from_avro(F.expr(_MARKED.format("body")), avro.schema, _OPTIONS)


def faults(parsed: str, wrong: str) -> str:
    """SQL of `value_error`, of a body that is `parsed`; `wrong` is more SQL, with which it does not fit."""
    return (
        "CASE WHEN coalesce(octet_length(body), 0) = 0 THEN 'EMPTY' "
        f"WHEN {parsed}.{END} IS NULL OR {parsed}.{END} <> X'{_MARK.hex()}'{wrong} THEN 'UNFIT' END"
    )
