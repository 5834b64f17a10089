"""The demo: a broker, the coordinator, three shops of which one is killed, and a points service. Needs two minutes.

./spark-submit.sh [--dir DIRECTORY]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from commitlake import config
from commitlake.config import Config
from commitlake.coordinator import Coordinator
from commitlake.demo import orders, report, scenario, shop
from commitlake.demo.directory import fresh
from commitlake.demo.instances import Instances
from commitlake.demo.orders import OrderTable
from commitlake.demo.points import PointsService
from commitlake.demo.progress import Progress
from commitlake.demo.scenario import Scenario
from commitlake.kafka.embedded import provide
from commitlake.spark import process, session
from commitlake.tables import topic_table

DIRECTORY = Path(__file__).parents[1] / "demo"

# Short, so that the story is short. Six seconds, Kafka's least, after which a killed shop's checks go to another one.
SETTINGS: dict[str, object] = {
    "trigger_interval": "1s",
    "transaction": {"timeout": "2s", "check_interval": "5s", "check_max": 5},
    "kafka.options": {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1500"},
}


def run(arguments: Sequence[str]) -> int:
    """Play the story in a fresh directory; 0 when everybody agrees at its end, else 1."""
    parser = argparse.ArgumentParser(prog="./spark-submit.sh", description="The demo of CommitLake.")
    parser.add_argument("--dir", type=Path, default=DIRECTORY, help="for the tables; an earlier demo's are removed")
    place = parser.parse_args(arguments).dir.absolute()
    progress = Progress(process.terminal_columns())
    print(scenario.STORY, flush=True)
    progress.say("starting a Kafka broker and the coordinator (longer the first time) ...")
    with fresh(place) as directories, provide(config.from_mapping(SETTINGS | directories)) as conf:
        spark = session.build(conf, app_name="commitlake-demo", short_lived=True)
        try:
            return demo(spark, conf, place, progress)
        finally:
            spark.stop()


def demo(spark: SparkSession, conf: Config, place: Path, progress: Progress) -> int:
    """The coordinator and all around it; prints the report."""
    table = OrderTable(str(place / "orders.db"))
    table.create(shop.BALANCES)
    with Coordinator(spark, conf).start() as coordinator:
        warehouse = coordinator.warehouse
        warehouse.ensure_topic(orders.TOPIC)  # the points service starts before the first order
        progress.say("the coordinator runs")
        with (
            PointsService(spark, warehouse.locate(topic_table(orders.TOPIC)), place) as points,
            Instances(place / "orders.db", conf.kafka, partial(progress.say, scenario.KILLED)) as shops,
        ):
            story = Scenario(coordinator, table, shops, points, progress)
            try:
                differences = story.play()
            finally:
                spark.sparkContext.setLogLevel("OFF")  # queries stopped in the middle complain, and that is no news
        report.show(story, differences, progress.seconds)
    return 1 if differences else 0


if __name__ == "__main__":
    process.main(run)
