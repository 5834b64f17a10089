"""Parts of these documents that come from the code: configuration keys, tables, test vectors.

Run it to write them between their marks. A test fails while a document differs.

    .venv/bin/python docs/parts.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from commitlake.config.config import KEYS
from commitlake.tables.schemas import TABLES, TOPIC, TableLayout

DOCS = Path(__file__).parent
VECTORS = DOCS.parent / "tests" / "vectors"


def keys() -> str:
    """The configuration keys as a table."""
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for key in KEYS:
        meaning = key.doc.replace("<", "&lt;")
        default = key.default if isinstance(key.default, str) else json.dumps(key.default)
        lines.append(f"| `{key.name}` | {f'`{default}`' if default else ''} | {meaning} |")
    return "\n".join(lines)


def table(name: str) -> str:
    """The columns of a table in order, a partition column in bold."""
    found: TableLayout = TOPIC if name == "topics" else TABLES[name]
    columns = [
        f"**{field.name}** {_kind(field.dataType.simpleString())}"
        if field.name in found.partition_by
        else f"{field.name} {_kind(field.dataType.simpleString())}"
        for field in found.schema
    ]
    return ", ".join(columns)


def vector(name: str) -> str:
    """A test vector: the record's topic, key, headers and value, byte for byte."""
    found = json.loads((VECTORS / f"{name}.json").read_text())
    record = {part: found[part] for part in ("topic", "key", "headers", "value")}
    description, content = found["description"], json.dumps(record, indent=2, ensure_ascii=False)
    return f"{description[0].upper()}{description[1:]}.\n\n```json\n{content}\n```"


def rendered(text: str) -> str:
    """The text of a document, each part between its marks taken from the code."""
    return re.sub(r"(<!-- (\w+) ?(\w*) -->\n).*?(<!-- end -->)", _filled, text, flags=re.DOTALL)


def _filled(mark: re.Match[str]) -> str:
    part = {"keys": lambda _: keys(), "table": table, "vector": vector}[mark[2]](mark[3])
    return f"{mark[1]}{part}\n{mark[4]}"


def _kind(spark: str) -> str:
    return spark.replace(",", ", ").replace(":", " ")


if __name__ == "__main__":
    for document in DOCS.rglob("*.md"):
        document.write_text(rendered(document.read_text()))
