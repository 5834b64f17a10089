# Databricks notebook source
# MAGIC %md
# MAGIC # CommitLake: send, commit, read, query the ledger
# MAGIC
# MAGIC Forty orders, each a local transaction in SQLite. Most are committed at once, some are rolled back, some give no
# MAGIC answer and are checked, and four stay unknown until they are discarded.
# MAGIC
# MAGIC It needs the extra `notebook`. On Databricks install CommitLake's wheel and matplotlib, and fill in the
# MAGIC widgets. As a script, `.venv/bin/python notebooks/quickstart.py`, it starts a Kafka broker of its own and writes to a
# MAGIC temporary directory.
# MAGIC
# MAGIC **The coordinator needs a cluster with dedicated access mode.** The notebooks reading, ledger and operations run anywhere.

# COMMAND ----------

import os
import sqlite3
import tempfile
import time

import matplotlib.pyplot as plt
import yaml

import commitlake
from commitlake import COMMIT, ROLLBACK, UNKNOWN, ledger
from commitlake import LocalTransactionState, Message, TransactionalProducer, TransactionListener


def parameter(name: str, default: str) -> str:
    """A widget's value in Databricks; elsewhere that of an environment variable."""
    if "dbutils" in globals():
        dbutils.widgets.text(name, default)  # noqa: F821
        return dbutils.widgets.get(name)  # noqa: F821
    return os.environ.get(f"QUICKSTART_{name.upper()}", default)


def show(rows) -> None:
    """As a table: `display` in Databricks, text elsewhere."""
    if "display" in globals():
        display(rows)  # noqa: F821
    else:
        rows.show(truncate=False)


# COMMAND ----------

# MAGIC %md
# MAGIC ## Start the coordinator
# MAGIC It runs in this session until it is stopped, in the last cell. `warehouse` is a directory or a schema,
# MAGIC `schema:<catalog>.<schema>`, `checkpoints` a directory or a volume. `kafka_options` is YAML, in the Java client's names; `secret:<scope>/<key>` stands for a
# MAGIC secret.

# COMMAND ----------

place = parameter("place", tempfile.mkdtemp(prefix="commitlake-quickstart-"))
spark = commitlake.session()
coordinator = commitlake.start(
    spark,
    {
        "warehouse": parameter("warehouse", f"{place}/warehouse"),
        "checkpoints": parameter("checkpoints", f"{place}/checkpoints"),
        "kafka.bootstrap_servers": parameter("bootstrap_servers", "embedded"),
        "kafka.options": yaml.safe_load(parameter("kafka_options", "{}")),
        "kafka.topic_prefix": "quickstart.",
        "trigger_interval": "500ms",
        "transaction": {"timeout": "1s", "check_interval": "10s", "check_max": 2},
    },
)
conf = coordinator.config

# COMMAND ----------

# MAGIC %md
# MAGIC ## Send
# MAGIC The listener's first method runs the local transaction; the second is called when no decision came, and looks the
# MAGIC transaction up in the same database, by its id. Here the order's number determines what goes wrong.

# COMMAND ----------

database = os.path.join(tempfile.mkdtemp(), "orders.db")
with sqlite3.connect(database) as db:
    db.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, tx TEXT)")


class Orders(TransactionListener):
    """Orders in SQLite."""

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState | None:
        number = int(message.keys)
        if number % 10 == 1:
            return ROLLBACK  # the customer's card was refused
        if number % 10 == 2:
            return None  # no idea what happened: nothing was written
        with sqlite3.connect(database) as db:
            db.execute("INSERT INTO orders VALUES (?, ?)", (message.keys, message.transaction_id))
        return None if number % 10 == 3 else COMMIT  # 3: crashed after its commit

    def check_local_transaction(self, message: Message) -> LocalTransactionState:
        with sqlite3.connect(database) as db:
            found = db.execute("SELECT 1 FROM orders WHERE tx = ?", (message.transaction_id,)).fetchone()
        return COMMIT if found else UNKNOWN


producer = TransactionalProducer.from_conf(conf, "quickstart", Orders())
producer.start()
sent = [
    producer.send_message_in_transaction(Message("orders", f"order {number}", tags="new", keys=str(number)))
    for number in range(40)
]

# COMMAND ----------

# MAGIC %md
# MAGIC ## Wait for every transaction's end
# MAGIC Discarding takes the longest: two checks and one more interval.

# COMMAND ----------


def ended() -> int:
    return commitlake.read_table(spark, conf, "transactions").count()


deadline = time.monotonic() + 300
while ended() < len(sent) and time.monotonic() < deadline:
    time.sleep(1)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Read
# MAGIC The topic's table holds what was committed, and nothing else.

# COMMAND ----------

orders = commitlake.read_topic(spark, conf, "orders")
show(
    orders.selectExpr("keys", "CAST(body AS STRING) AS text", "transaction_id", "visible_at")
    .orderBy("visible_at")
    .limit(5)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Query the ledger
# MAGIC Counts by topic, and the history of one transaction.

# COMMAND ----------

show(ledger.summary(spark, conf.warehouse))
show(ledger.transaction(spark, conf.warehouse, sent[2].transaction_id))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Plot
# MAGIC How long each transaction took from its half message to its end, by how it ended.

# COMMAND ----------

ends = (
    commitlake.read_table(spark, conf, "transactions")
    .selectExpr("state", "reason", "CAST(resolved_at AS DOUBLE) - CAST(stored_at AS DOUBLE) AS seconds")
    .toPandas()
)
figure, axes = plt.subplots(figsize=(8, 3))
for (state, reason), group in ends.groupby(["state", "reason"]):
    axes.scatter(group["seconds"], [f"{state.lower()} ({reason.lower()})"] * len(group), alpha=0.5)
axes.set_xlabel("seconds from half message to end")
axes.set_xlim(left=0)
figure.tight_layout()
figure.savefig(f"{place}/quickstart.png")
if "display" in globals():
    display(figure)  # noqa: F821
else:
    print(f"the plot is in {place}/quickstart.png, the tables are in {conf.warehouse}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Stop

# COMMAND ----------

producer.shutdown()
coordinator.stop()
