# Databricks notebook source
# MAGIC %md
# MAGIC # CommitLake: Delta commits and streaming queries as local transactions, and names that are shown once
# MAGIC
# MAGIC A job appends rows to a Delta table and tells others, both or neither. A streaming query sends each row once, also
# MAGIC when Spark does a micro-batch again. Nobody writes a listener: checks look into the tables' logs.
# MAGIC
# MAGIC As a script, `.venv/bin/python notebooks/delta_tables.py`, it starts a Kafka broker of its own and writes to a temporary
# MAGIC directory. **The coordinator needs a cluster with dedicated access mode**, and of one machine, whose disk has all tables here.

# COMMAND ----------

import os
import tempfile
import time

from deltalake import DeltaTable

import commitlake
from commitlake import Message, Producer

# A plain path would be in Databricks' own file system.
place = os.environ.get("DELTA_PLACE") or f"file:{tempfile.mkdtemp(prefix='commitlake-delta-')}"
spark = commitlake.session()
coordinator = commitlake.start(
    spark,
    {
        "warehouse": f"{place}/warehouse",
        "checkpoints": f"{place}/checkpoints",
        "trigger_interval": "500ms",
        "transaction": {"timeout": "1s", "check_interval": "1s"},
        "checks": {"nightly": {"table": "delta-log", "places": [f"{place}/orders"], "every": "1s"}},
        "topics": {"dedup": {"payments": {"by": "keys", "window": "30d"}}},
    },
)
conf = coordinator.config

# COMMAND ----------

# MAGIC %md
# MAGIC ## Rows and a message, both or neither

# COMMAND ----------

with commitlake.delta_transaction(spark, conf, group="nightly") as tx:
    tx.send(Message("orders-ready", "2026-11-22", keys="day"))
    tx.append(spark.range(1_000), f"{place}/orders")

# COMMAND ----------

# MAGIC %md
# MAGIC ## A job that fails leaves neither

# COMMAND ----------

try:
    with commitlake.delta_transaction(spark, conf, group="nightly") as tx:
        tx.send(Message("orders-ready", "2026-11-23", keys="day"))
        tx.append(spark.range(1_000), f"{place}/orders")
        raise RuntimeError("the job fails")
except RuntimeError as error:
    print(error)

# COMMAND ----------

# MAGIC %md
# MAGIC ## A streaming query sends each row once

# COMMAND ----------

to = commitlake.sink(conf, "orders-new", name="orders", group="nightly", keys="id", body="CAST(id AS STRING)")
rows = spark.readStream.format("delta").load(f"{place}/orders").where("id < 20")
query = rows.writeStream.foreachBatch(to).option("checkpointLocation", f"{place}/orders-checkpoint")
query.trigger(availableNow=True).start().awaitTermination()

# COMMAND ----------

# MAGIC %md
# MAGIC ## A business key is shown once
# MAGIC
# MAGIC A service that sends a payment again, after a crash or from a second job, makes a second message of one key.

# COMMAND ----------

with Producer.from_conf(conf, "payments") as producer:
    for attempt in ("first", "again"):
        producer.send(Message("payments", f"{attempt} attempt", keys="order-17"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## What others see

# COMMAND ----------


def shown(topic: str) -> int:
    there = DeltaTable.is_deltatable(f"{place}/warehouse/topics/{topic}")
    return commitlake.read_topic(spark, conf, topic).count() if there else 0


deadline = time.monotonic() + 120
while time.monotonic() < deadline and not (shown("orders-new") == 20 and shown("payments") and shown("orders-ready")):
    time.sleep(1)
print(f"{spark.read.format('delta').load(f'{place}/orders').count()} rows in the table")
print(f"{shown('orders-ready')} message of it, {shown('orders-new')} of the streaming query")

for refused in spark.read.format("delta").load(f"{place}/warehouse/rejected").collect():
    print(f"{shown('payments')} payment; {bytes(refused.value).decode()}: {refused.reason} {refused.detail.split('-')[0]}")

# COMMAND ----------

coordinator.stop()
