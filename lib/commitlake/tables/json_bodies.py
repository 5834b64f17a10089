"""Bodies of JSON as Spark parses them, but for numbers with which its parser goes wrong.

Spark makes all digits of a decimal: for 1e100000000 it works for a minute or more. For longer ones Java ends for want
of memory, at each start again. A number for a time is seconds to it; it makes microseconds of it, the last 64 bits.
"""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, StringType, StructField, StructType, TimestampType

from commitlake.tables.columns import any_sql

UNFIT = "__unfit__"
"""The field in which Spark's parser puts a text that does not fit; it nulls a field of a wrong type, and goes on."""
_TEXT = "CAST(body AS STRING)"
_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": UNFIT}
_FAULTS = (
    f"CASE WHEN coalesce({_TEXT}, '') RLIKE '^\\\\s*$' THEN 'EMPTY' "  # Spark's parser marks nothing
    # It would take the first object of a list, and ignore what follows an object.
    f"WHEN NOT {_TEXT} RLIKE '(?s)^\\\\s*[{{{{].*[}}}}]\\\\s*$' THEN 'NO_OBJECT' "
    f"WHEN {{0}} IS NULL OR {{0}}.{UNFIT} IS NOT NULL{{1}} THEN 'UNFIT' END"
)
_SUSPECT = r"[0-9.][eE][-+]?[0-9]{4}|[0-9]{13}|\\u"
"""Any body with such a number matches this. Few bodies do, and only these are parsed twice."""
_NUMBER, _TINY = "^[-+]?[0-9.]{{1,1000}}([eE][-+]?[0-9]{{1,3}})?$", '[0-9.][eE]-[0-9]{{4,}}[^-0-9a-zA-Z"_.]'
"""A decimal with which Spark goes right; and the end of a number so small that it is 0.0 as the text of a field."""
_MADE_TEXT = re.compile(r"(?<=[:<,])(decimal\(\d+,\d+\)|timestamp)(?=[,>])")
"""The types of these numbers, in the text of a type."""


def parsed(kind: StructType) -> Column:
    """The body, parsed to a type, with the field `UNFIT` too; null where it has a number of the above."""
    whole = StructType([*kind, StructField(UNFIT, StringType())])
    found = F.from_json(F.expr(_TEXT), whole, _OPTIONS)
    too_large = any_sql("it", kind, _too_large)
    if not too_large:
        return found
    texts = f"from_json({_TEXT}, '{_MADE_TEXT.sub('string', kind.simpleString())}')"
    has_any = F.expr(_TEXT).rlike(_SUSPECT) & F.expr(f"exists(array({texts}), it -> {too_large})")
    return F.when(~F.coalesce(has_any, F.lit(False)), found)


def _too_large(kind: DataType) -> str | None:
    if isinstance(kind, DecimalType):
        return f"NOT {{0}} RLIKE '{_NUMBER}' OR {{0}} RLIKE '^-?0[.]0$' AND {_TEXT} RLIKE '{_TINY}'"
    return "{0} RLIKE '^-?[0-9]{{13}}'" if isinstance(kind, TimestampType) else None


def faults(parsed: str, wrong: str) -> str:
    """SQL of `value_error`, of a body that is `parsed`; `wrong` is more SQL, with which it does not fit."""
    return _FAULTS.format(parsed, wrong)
