"""Sets the demo up: the coordinator, three shops of which one is killed, and two services downstream.

It uses what `commitlake` exports, Spark, Kafka's client and SQLite, as an application would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

import commitlake
from commitlake.tools.demo import report, scenario, shop
from commitlake.tools.demo.comparison import Audit, OrderTables
from commitlake.tools.demo.downstream import Service
from commitlake.tools.demo.instances import Instances
from commitlake.tools.demo.orders import OrderTable
from commitlake.tools.demo.progress import DemoProgress
from commitlake.tools.demo.scenario import Scenario

# Short, so that the story is short. Six seconds, Kafka's least, after which a killed shop's checks go to another one.
SETTINGS: dict[str, object] = {
    "trigger_interval": "1s",
    "transaction": {"timeout": "2s", "check_interval": "2s", "check_max": 4},
    "kafka.options": {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1500"},
}


def run(
    place: Path, directories: Mapping[str, object], session: Callable[[], SparkSession], audit: Audit, columns: int
) -> int:
    """Play the story and print the report; returns 0 when all agree at its end, else 1.

    Args:
        place: a directory for the databases of the services.
        directories: keys of a configuration, where the tables are.
        session: starts Spark.
        audit: compares the tables.
        columns: width of the terminal; 0 when there is none.

    Raises:
        CommitLakeError: something does not start or fails on the way.
    """
    progress = DemoProgress(columns)
    print(scenario.STORY, flush=True)
    progress.write("starting a Kafka broker and the coordinator (longer the first time) ...")
    spark = session()
    try:
        return _play(spark, {**SETTINGS, **directories}, place, audit, progress)
    finally:
        spark.stop()


def _play(spark: SparkSession, conf: Mapping[str, object], place: Path, audit: Audit, progress: DemoProgress) -> int:
    table = OrderTable(str(place / "orders.db"))
    table.create(shop.BALANCES)
    with commitlake.start(spark, conf) as coordinator:
        progress.write("the coordinator runs")
        kafka = shop.producer_arguments(coordinator.config.kafka)
        with (
            Service(coordinator.config, "points", place) as points,
            Service(coordinator.config, "logistics", place, fails_first=7) as logistics,
            Instances(place / "orders.db", kafka, partial(progress.write, scenario.KILLED)) as shops,
        ):
            tables = OrderTables(spark, Path(coordinator.config.warehouse), kafka, audit)
            story = Scenario(coordinator, tables, table, shops, points, logistics, progress)
            try:
                differences = story.play(kafka)
            finally:
                spark.sparkContext.setLogLevel("OFF")  # queries stopped in the middle complain, and that is no news
        report.show(story, differences, progress.seconds)
    return 1 if differences else 0
