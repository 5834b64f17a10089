"""The Delta tables: schemas, names, creation, reads and appends.

Begin with `schemas.py`, then `warehouse.py`, through which all reads and appends go. Columns are those of the contract.
"""

from __future__ import annotations

from commitlake.tables.schemas import OF_BATCHES, TABLES, TOPIC, TableLayout, TableName, topic_table
from commitlake.tables.warehouse import Warehouse

__all__ = ["OF_BATCHES", "TABLES", "TOPIC", "TableLayout", "TableName", "Warehouse", "topic_table"]
