# Databricks notebook source
# MAGIC %md
# MAGIC # CommitLake: a topic whose bodies are columns
# MAGIC
# MAGIC `topics.schemas` gives a topic's table the fields of its bodies. Spark, DuckDB and consumers read them, and what does not
# MAGIC fit says why.
# MAGIC
# MAGIC As a script, `.venv/bin/python notebooks/typed_topics.py`, it starts a Kafka broker of its own and writes to a temporary
# MAGIC directory. **The coordinator needs a cluster with dedicated access mode**, and of one machine, whose disk has all tables here.

# COMMAND ----------

import json
import os
import tempfile
import time

import duckdb
from deltalake import DeltaTable
from pyspark.sql import functions as F

import commitlake
from commitlake import Message, Producer

# A plain path would be in Databricks' own file system.
place = os.environ.get("TYPED_PLACE") or f"file:{tempfile.mkdtemp(prefix='commitlake-typed-')}"
spark = commitlake.session()
coordinator = commitlake.start(
    spark,
    {
        "warehouse": f"{place}/warehouse",
        "checkpoints": f"{place}/checkpoints",
        "trigger_interval": "500ms",
        "topics": {"schemas": {"orders": {"format": "json", "schema": "customer STRING, amount DECIMAL(10, 2)"}}},
    },
)
conf = coordinator.config

# COMMAND ----------

# MAGIC %md
# MAGIC ## Send
# MAGIC An order changes, so its key comes twice. Messages of one sharding key have one order. The last body is no JSON.

# COMMAND ----------

ORDERS = [("o-1", "ann", "12.00"), ("o-2", "bob", "5.50"), ("o-1", "ann", "20.00")]

with Producer.from_conf(conf, "shop") as producer:
    for order, customer, amount in ORDERS:
        body = json.dumps({"customer": customer, "amount": amount})
        producer.send(Message("orders", body, keys=order, sharding_key=order))
    producer.send(Message("orders", "one espresso", keys="o-3", sharding_key="o-3"))

table = f"{place}/warehouse/topics/orders"
deadline = time.monotonic() + 120
while time.monotonic() < deadline and not (DeltaTable.is_deltatable(table) and DeltaTable(table).count() == 4):
    time.sleep(1)

# COMMAND ----------

# MAGIC %md
# MAGIC ## With Spark
# MAGIC The latest row of each order. Normal messages of a queue are in the order of their offsets.

# COMMAND ----------

orders = commitlake.read_topic(spark, conf, "orders").where("value IS NOT NULL")
latest = orders.groupBy("keys").agg(
    F.expr("max_by(value, struct(source_queue, source_offset, source_index)) AS value"), F.count("*").alias("changes")
)
for row in latest.selectExpr("keys AS id", "value.*", "changes").orderBy("id").collect():
    print(f"Spark: {row.id} {row.customer} {row.amount}, sent {row.changes} times")

# COMMAND ----------

# MAGIC %md
# MAGIC ## With DuckDB
# MAGIC No Spark, no JVM: the same rows, from the files that the table's log names.

# COMMAND ----------

shown = duckdb.read_parquet(DeltaTable(table).file_uris(), hive_partitioning=True, union_by_name=True)
latest = shown.query(
    "orders",
    """SELECT keys, value.customer, value.amount FROM orders WHERE value IS NOT NULL
       QUALIFY row_number() OVER (PARTITION BY keys ORDER BY source_offset DESC, source_index DESC) = 1
       ORDER BY keys""",
)
for keys, customer, amount in latest.fetchall():
    print(f"DuckDB: {keys} {customer} {amount}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## What does not fit
# MAGIC It was sent, so it is shown, without a value.

# COMMAND ----------

for keys, error, body in shown.filter("value_error IS NOT NULL").project("keys, value_error, body").fetchall():
    print(f"{keys}: {error}, {bytes(body).decode()}")

# COMMAND ----------

coordinator.stop()
