# Databricks notebook source
# MAGIC %md
# MAGIC # CommitLake: operations
# MAGIC
# MAGIC Whether a coordinator runs and keeps up, and whether all tables agree. Nothing here needs a classic cluster. As a script:
# MAGIC `.venv/bin/python notebooks/operations.py`, of ./warehouse or `READ_WAREHOUSE`.

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
names = ("epochs", "batches", "half", "checks", "maintenance")
tables = {name: commitlake.read_table(spark, {"warehouse": warehouse}, name) for name in names}

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which coordinators ran, and when the last batch was complete
# MAGIC An idle coordinator writes no batch. With half messages newer than the last batch by minutes none runs, or it is stuck.

# COMMAND ----------

show(spark.sql("SELECT * FROM {epochs} ORDER BY epoch DESC LIMIT 5", **tables))
show(
    spark.sql(
        """SELECT (SELECT max(completed_at) FROM {batches}) AS last_batch, (SELECT max(stored_at) FROM {half}) AS last_half,
                  (SELECT max(maintained_at) FROM {maintenance}) AS last_maintenance""",
        **tables,
    )
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Checks by group
# MAGIC Many repeats mean that nobody answers.

# COMMAND ----------

show(
    spark.sql(
        """SELECT producer_group, count_if(repeat = 0) AS asked, count_if(repeat > 0) AS sent_again, max(requested_at) AS last
           FROM {checks} GROUP BY ALL ORDER BY ALL""",
        **tables,
    )
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Whether all agrees
# MAGIC The counts of each topic, then the audit of every message.

# COMMAND ----------

show(ledger.summary(spark, warehouse))
report = commitlake.audit(spark, warehouse)
print("all is well" if report.is_well else "\n".join(map(str, report.findings)), "up to batch", report.last_batch)
