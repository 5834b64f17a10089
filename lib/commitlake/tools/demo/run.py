"""Sets the demo up: a broker, the coordinator, three shops of which one is killed, and two services downstream."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from commitlake import config
from commitlake.config import Config
from commitlake.coordinator.coordinator import Coordinator
from commitlake.kafka.embedded import provide
from commitlake.spark import process, session
from commitlake.tools.demo import report, scenario, shop
from commitlake.tools.demo.directory import fresh
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


def run(place: Path) -> int:
    """Play the story in a fresh directory and print the report; returns 0 when all agree at its end, else 1.

    Raises:
        CommitLakeError: something does not start or fails on the way.
    """
    progress = DemoProgress(process.terminal_columns())
    print(scenario.STORY, flush=True)
    progress.write("starting a Kafka broker and the coordinator (longer the first time) ...")
    with fresh(place) as directories, provide(config.from_mapping(SETTINGS | directories)) as conf:
        spark = session.build(conf, app_name="commitlake-demo")
        try:
            return _play(spark, conf, place, progress)
        finally:
            spark.stop()


def _play(spark: SparkSession, conf: Config, place: Path, progress: DemoProgress) -> int:
    table = OrderTable(str(place / "orders.db"))
    table.create(shop.BALANCES)
    with Coordinator(spark, conf).start() as coordinator:
        progress.write("the coordinator runs")
        with (
            Service(coordinator.config, "points", place) as points,
            Service(coordinator.config, "logistics", place, fails_first=7) as logistics,
            Instances(place / "orders.db", conf.kafka, partial(progress.write, scenario.KILLED)) as shops,
        ):
            story = Scenario(coordinator, table, shops, points, logistics, progress)
            try:
                differences = story.play()
            finally:
                spark.sparkContext.setLogLevel("OFF")  # queries stopped in the middle complain, and that is no news
        report.show(story, differences, progress.seconds)
    return 1 if differences else 0
