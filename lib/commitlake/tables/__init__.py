"""The Delta tables: schemas, locations, creation, reads and appends."""

from __future__ import annotations

from commitlake.tables.schemas import TABLES, TOPIC, Table
from commitlake.tables.warehouse import Warehouse

__all__ = ["TABLES", "TOPIC", "Table", "Warehouse"]
