# Databricks notebook source
# MAGIC %md
# MAGIC # CommitLake: read what was committed
# MAGIC
# MAGIC Topic tables are plain Delta tables: a batch, a stream, several topics at one point. Nothing here needs the coordinator
# MAGIC or a classic cluster. As a script: `.venv/bin/python notebooks/reading.py`, of ./warehouse or `READ_WAREHOUSE`.

# COMMAND ----------

import os
import tempfile

import commitlake


def parameter(name: str, default: str) -> str:
    """A widget's value in Databricks; elsewhere that of an environment variable."""
    if "dbutils" in globals():
        dbutils.widgets.text(name, default)  # noqa: F821
        return dbutils.widgets.get(name)  # noqa: F821
    return os.environ.get(f"READ_{name.upper()}", default)


def show(rows) -> None:
    """As a table: `display` in Databricks, text elsewhere."""
    if "display" in globals():
        display(rows)  # noqa: F821
    else:
        rows.show(truncate=False)


spark = commitlake.session()
conf = {"warehouse": parameter("warehouse", "schema:main.commitlake" if "dbutils" in globals() else "./warehouse")}
topic = parameter("topic", "orders")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which topics there are

# COMMAND ----------

show(commitlake.read_table(spark, conf, "destinations").orderBy("topic"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## A batch
# MAGIC In the order of the topic: transactional and delayed rows by batch, queue and offset.

# COMMAND ----------

rows = commitlake.read_topic(spark, conf, topic).selectExpr(
    "keys",
    "tags",
    "CAST(body AS STRING) AS text",
    "transaction_id",
    "visible_at",
    "batch_id",
    "source_queue",
    "source_offset",
)
show(rows.orderBy("batch_id", "source_queue", "source_offset").limit(20))

# COMMAND ----------

# MAGIC %md
# MAGIC ## A stream
# MAGIC Each row comes once. Rows that go by age, or are erased, do not disturb it. Here it takes what is there and ends; without
# MAGIC the trigger it goes on.

# COMMAND ----------

place = parameter("checkpoint", tempfile.mkdtemp(prefix="commitlake-reading-"))
query = (
    commitlake.read_topic(spark, conf, topic, stream=True)
    .selectExpr("keys", "CAST(body AS STRING) AS text")
    .writeStream.format("memory")
    .queryName("committed")
    .option("checkpointLocation", place)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
show(spark.table("committed").limit(20))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Several topics at one point
# MAGIC A batch appends to its topic tables one after the other. Up to the newest complete batch, read first, all of a
# MAGIC transaction's messages are there or none. A later read up to the same batch gives the same rows.

# COMMAND ----------

complete = commitlake.read_table(spark, conf, "batches").selectExpr("coalesce(max(batch_id), -1)").first()[0]
for row in commitlake.read_table(spark, conf, "destinations").orderBy("topic").collect():
    at_one_point = commitlake.read_topic(spark, conf, row.topic, up_to=complete)
    print(f"{row.topic}: {at_one_point.count()} rows up to batch {complete}")
