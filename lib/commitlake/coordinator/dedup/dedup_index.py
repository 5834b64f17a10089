"""The names that topics hold, from their tables and from each round; landing and coordination use it in turn."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.config.values import Dedup
from commitlake.protocol.clock import BrokerClock
from commitlake.protocol.durations import MARGIN_MS
from commitlake.protocol.encoding import Position
from commitlake.protocol.names import Claims, Names
from commitlake.protocol.states import Source
from commitlake.spark.frames import of_rows
from commitlake.tables import Warehouse, topic_table
from commitlake.tables.columns import coordinate_sql, hashed_sql
from commitlake.tables.schemas import columns

log = logging.getLogger(__name__)

_DUPLICATES = columns("""
bigint place
string duplicate_of
""")
_COORDINATE = 2**63 - 1
_ORDER = ("topic", "rank", "place", "member")


def place_sql(source: str, queue: str, offset: str) -> str:
    """A record as one number: its coordinate, with the highest bit set for a record of `messages`."""
    at = coordinate_sql(queue, offset)
    return f"IF({source} = 'half', {at}, shiftleft(1L, 63) + {at})"


def position(place: int) -> str:
    """`<source>-<queue>-<offset>` of a record."""
    source = Source.HALF if place >= 0 else Source.MESSAGES
    return f"{source.name.lower()}-{Position.from_coordinate(place & _COORDINATE)}"


class DedupIndex:
    """Finds the duplicates among messages of the topics of `topics.dedup`; it reads the names that the topics hold."""

    def __init__(self, warehouse: Warehouse, wanted: Mapping[str, Dedup], clock: BrokerClock) -> None:
        self._warehouse, self._wanted, self._clock = warehouse, wanted, clock
        self._names = {topic: Names(each.window_ms) for topic, each in wanted.items()}
        self._load()

    @property
    def topics(self) -> frozenset[str]:
        """The topics that show a name once."""
        return frozenset(self._wanted)

    def _load(self) -> None:
        """Reads the names that topic tables hold; before that, a fence keeps an older coordinator from adding more."""
        there = [topic for topic in self._wanted if self._warehouse.holds(topic_table(topic))]
        self._warehouse.guard.fence(there)
        for topic in there:
            begun, window_ms = self._clock.now_ms(), self._wanted[topic].window_ms
            self._names[topic] = Names(window_ms, self._shown(topic, begun - window_ms - MARGIN_MS))
            log.info("%d names of %s read in %d ms", len(self._names[topic]), topic, self._clock.now_ms() - begun)

    def duplicates(self, messages: DataFrame) -> DataFrame | None:
        """The messages that must not become visible; the others hold their names from now on.

        Args:
            messages: those that would become visible: topic, keys, message_id, place, at (ms since epoch, UTC), rank
                and member. The order of rank, place and member says which message is the first.

        Returns:
            place and duplicate_of, the position of the message that holds the name; None when there is no duplicate.
        """
        frame = messages.selectExpr("topic", f"{self._name()} AS name", "place", "at", "rank", "member")
        rows = frame.where("name IS NOT NULL").toArrow().sort_by([(name, "ascending") for name in _ORDER])
        found: dict[int, int] = {}
        for topic in rows["topic"].unique().to_pylist():
            claims = _claims(rows.filter(pc.equal(rows["topic"], topic)))
            refused, holder = self._names[topic].claim(claims, self._clock.now_ms())
            found |= dict(zip(claims.place[refused].tolist(), holder[refused].tolist(), strict=True))
        if not found:
            return None
        listed = [{"place": place, "duplicate_of": position(holder)} for place, holder in found.items()]
        return F.broadcast(of_rows(self._warehouse.spark, listed, _DUPLICATES))

    def _name(self) -> str:
        """The hash of a message's name, null for one without."""
        cases = [f"WHEN '{topic}' THEN {_hash(each.by)}" for topic, each in self._wanted.items()]
        return f"CASE topic {' '.join(cases)} END"

    def _shown(self, topic: str, since: int) -> Claims:
        table = self._warehouse.read(topic_table(topic)).where(f"visible_at > timestamp_millis({since})")
        by = _hash(self._wanted[topic].by)
        place = place_sql("source", "source_queue", "source_offset")
        rows = table.selectExpr(f"{by} AS name", f"{place} AS place", "unix_millis(visible_at) AS at")
        return _claims(rows.where("name IS NOT NULL").toArrow())


def _hash(column: str) -> str:
    return f"IF({column} != '', {hashed_sql(column)}, NULL)"


def _claims(rows: pa.Table) -> Claims:
    return Claims(*(rows[name].to_numpy() for name in Claims._fields))
