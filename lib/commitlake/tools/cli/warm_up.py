"""Makes the archive of classes that makes later starts faster (`spark.class_archive`); for the set-up of a clone.

A coordinator processes a few messages on an embedded broker, in a temporary directory, in a driver of its own.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from commitlake import config
from commitlake.clients.producer import (
    DefaultMQProducer,
    Message,
    MessageExt,
    Transaction,
    TransactionListener,
    TransactionMQProducer,
)
from commitlake.coordinator.coordinator import Coordinator
from commitlake.kafka.embedded import provide
from commitlake.spark import class_archive, given, process, runtime, session, submit

# The thread that looks after state stores runs on after Spark has stopped, while Java writes the archive. A minute
# after the first store it begins: on slow machines it would find no Spark, and print a stack.
_NO_CARE_OF_STATE = "--conf spark.sql.streaming.stateStore.maintenanceInterval=1h"


def main() -> None:
    """Runs the coordinator where there is no archive yet."""
    archive = class_archive.path(runtime.java(), session.jars_of_one_machine())
    if archive.exists():
        return
    part = archive.with_suffix(f".{os.getpid()}")
    os.environ[class_archive.MAKE] = str(part)
    os.environ[given.VARIABLE] = f"{_NO_CARE_OF_STATE} {os.environ.get(given.VARIABLE, '')}"
    code = submit.launch(Path(__file__), [], name="commitlake-warm-up", master="local[*]")
    if code == 0 and part.exists():
        part.replace(archive)
    else:  # starts are slower without it, and nothing else
        part.unlink(missing_ok=True)


def coordinate(_: Sequence[str]) -> None:
    """Loads the classes that a coordinator needs, by running one."""
    with tempfile.TemporaryDirectory(prefix="commitlake-warm-up-") as place:
        given = {"warehouse": f"{place}/warehouse", "checkpoints": f"{place}/checkpoints"}
        with provide(config.from_mapping({"kafka.bootstrap_servers": "embedded", **given})) as conf:
            spark = session.build(conf, app_name="commitlake-warm-up", short_lived=True)
            Coordinator(spark, conf).start(available_now=True).stop()  # publishes the limits for producers
            _send(conf)
            Coordinator(spark, conf).start(available_now=True).stop()
            spark.stop()


class _NobodyAsks(TransactionListener):
    """For transactions that are decided before a check is due."""

    def execute_local_transaction(self, message: Message, arg: object) -> None:
        """Never called: `begin_transaction` leaves the local transaction to its caller."""

    def check_local_transaction(self, message: MessageExt) -> None:
        """Never called."""


def _send(conf: config.Config) -> None:
    with DefaultMQProducer.from_conf(conf, "warm-up") as producer:
        producer.send(Message("warm-up", "normal"))
    with TransactionMQProducer.from_conf(conf, "warm-up", _NobodyAsks()) as transactions:
        for end in (Transaction.commit, Transaction.rollback):
            transaction = transactions.begin_transaction()
            transaction.send(Message("warm-up", "half"))
            end(transaction)


if __name__ == "__main__":
    process.main(coordinate) if process.is_driver() else main()
