# Databricks notebook source
# MAGIC %md
# MAGIC # CommitLake: the ledger in SQL
# MAGIC
# MAGIC What became of transactions. Each question is a query over tables, and needs no running coordinator and no classic
# MAGIC cluster. As a script: `.venv/bin/python notebooks/ledger.py`, of ./warehouse or `READ_WAREHOUSE`.

# COMMAND ----------

import os

import commitlake
from commitlake import ledger


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
warehouse = parameter("warehouse", "schema:main.commitlake" if "dbutils" in globals() else "./warehouse")
names = ("transactions", "discarded", "rejected")
tables = {name: commitlake.read_table(spark, {"warehouse": warehouse}, name) for name in names}

# COMMAND ----------

# MAGIC %md
# MAGIC ## How transactions ended, by topic

# COMMAND ----------

show(
    spark.sql(
        "SELECT topic, state, reason, count(*) AS messages FROM {transactions} GROUP BY ALL ORDER BY ALL", **tables
    )
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## How long they took
# MAGIC From the broker's append time of the half message to its end.

# COMMAND ----------

show(
    spark.sql(
        """SELECT producer_group, state, percentile_approx(took, 0.5) AS p50_s, percentile_approx(took, 0.99) AS p99_s
           FROM (SELECT producer_group, state, CAST(resolved_at AS DOUBLE) - CAST(stored_at AS DOUBLE) AS took
                 FROM {transactions})
           GROUP BY ALL ORDER BY ALL""",
        **tables,
    )
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## What is open, and what was discarded or rejected

# COMMAND ----------

show(ledger.pending(spark, warehouse).limit(20))
show(
    spark.sql(
        "SELECT topic, producer_group, reason, checks, transaction_id, discarded_at FROM {discarded} LIMIT 20", **tables
    )
)
show(spark.sql("SELECT source, reason, count(*) AS records FROM {rejected} GROUP BY ALL ORDER BY ALL", **tables))

# COMMAND ----------

# MAGIC %md
# MAGIC ## One transaction, in time order

# COMMAND ----------

newest = spark.sql("SELECT max_by(transaction_id, resolved_at) AS id FROM {transactions}", **tables).first()["id"]
show(ledger.transaction(spark, warehouse, parameter("transaction_id", "") or newest))
