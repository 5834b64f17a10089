"""The Delta tables: schemas, names, creation, reads and appends.

Begin with `schemas.py`, whose columns are those of the contract. All reads go through `existing_tables.py`, and
all appends through `warehouse.py`.
"""

from __future__ import annotations

from commitlake.tables.names import TableName, topic_table
from commitlake.tables.schemas import OF_BATCHES, TABLES, TOPIC, TableLayout
from commitlake.tables.warehouse import Warehouse

__all__ = ["OF_BATCHES", "TABLES", "TOPIC", "TableLayout", "TableName", "Warehouse", "topic_table"]
