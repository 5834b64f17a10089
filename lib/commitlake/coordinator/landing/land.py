"""One landing: it writes a batch of Kafka records to Delta tables, each record to exactly one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from commitlake.config import Config
from commitlake.coordinator.counters import Times
from commitlake.coordinator.dedup.dedup_index import DedupIndex, place_sql
from commitlake.coordinator.landing import classify, landed_rows, positions, used_offsets
from commitlake.coordinator.landing.ordinary import RECORD, Classification
from commitlake.coordinator.landing.positions import LandingPosition, PartialLanding
from commitlake.coordinator.landing.topic_admission import Topics
from commitlake.coordinator.landing.used_offsets import UsedOffsets
from commitlake.kafka.log_ends import LogEnds, Offsets
from commitlake.protocol.clock import BrokerClock
from commitlake.spark.frames import checkpoint_lazily, in_few_tasks, release
from commitlake.tables import TableName, Warehouse, topic_table
from commitlake.tables.small_files import are_few
from commitlake.tables.spans import Span


@dataclass(frozen=True)
class Landed:
    """The records of a batch, classified and cached until `release`.

    Attributes:
        tables: The rows of each fixed table that gets some; those of `half` also serve the decisions that follow.
        shown: Makes the rows of topic tables, with `topic`: normal messages, and members of batches. Without such rows
            it is not called, so nothing is planned.
        topics: The topics of these rows.
        since: When Kafka stored the records of these rows.
        half_spans: The offsets of the half messages, by queue.
        rows: The number of records.
        bytes: About how many bytes the records take.
        few: Whether the driver writes the files of the tables.
        rejected: The number of rejected records, by reason.
        answers: The number of records that answer a check.
        position: The position when all tables are written.
        is_whole: Whether no record was left out because it stands in a table already.
    """

    classified: DataFrame
    tables: Mapping[TableName, DataFrame]
    shown: Callable[[], DataFrame]
    topics: Sequence[str]
    since: Times
    half_spans: Mapping[int, Span]
    rows: int
    bytes: int
    few: bool
    rejected: Mapping[str, int]
    answers: int
    position: LandingPosition
    is_whole: bool

    @property
    def marker(self) -> dict[str, int]:
        """Marker of the landing's commits."""
        return {"landing_id": self.position.landing_id}

    def release(self) -> None:
        """Frees the memory of the cache."""
        release(self.classified)


class Landing:
    """Lands batches, one after the other; the first ones leave out what a landing that was cut short has written."""

    def __init__(
        self,
        warehouse: Warehouse,
        config: Config,
        classification: Classification,
        topics: Topics,
        dedup: DedupIndex,
        position: LandingPosition,
        clock: BrokerClock,
        uncommitted: PartialLanding | None = None,
    ) -> None:
        self._warehouse, self._prefix, self._topics = warehouse, config.kafka.topic_prefix, topics
        self._dedup, self._clock = dedup, clock
        self._classification = classification
        self._whole_rounds = 0
        self._uncommitted = uncommitted
        self._used = UsedOffsets(warehouse, position) if position.again else None
        self._own_topics: set[str] = set()
        self._lock = Lock()
        self._begun = self.position = position
        self._held = position.held

    def classify(self, raw: DataFrame, ends: Offsets) -> Landed:
        """Classifies every record of a batch, once, and admits new topics."""
        records = classify.normalise(in_few_tasks(raw), self._prefix)
        classified, counts = self._classified(records)
        if _names_others(counts):
            self._topics.admit(classified)
            counts = _count(classified, self._topics.names)
        rows = classify.close_topics(classified, self._topics.names) if _names_others(counts) else classified
        now = self._clock.now_ms()
        duplicates = self._duplicates(rows, counts, now)
        if duplicates is not None:
            rows = classify.refuse_duplicates(rows, duplicates)
            counts = _count(rows, self._topics.names)
        size, position = sum(row["bytes"] for row in counts), self.position.advanced(ends)
        return Landed(
            classified=classified,
            tables=_of_fixed_tables(rows, counts, now),
            shown=partial(landed_rows.topic_rows, rows, position.landing_id),
            topics=sorted(_shown_topics(counts)),
            since=_since(counts),
            half_spans=_half_spans(counts),
            rows=sum(row["n"] for row in counts),
            bytes=size,
            few=are_few(sum(row["rows"] for row in counts), sum(row["written"] for row in counts)),
            rejected=_rejected(counts),
            answers=sum(row["answers"] for row in counts),
            position=position,
            is_whole=self._uncommitted is None,
        )

    def writes(self, landed: Landed) -> list[Callable[[], int | None]]:
        """The appends of a landing, in any order; those to topics return the time when their rows could be read."""
        append = partial(self._warehouse.append, marker=landed.marker, few=landed.few)
        writes: list[Callable[[], int | None]] = [partial(append, rows, name) for name, rows in landed.tables.items()]
        if not landed.topics:
            return writes
        shown = landed.shown()
        first = [topic for topic in landed.topics if self._warehouse.guard.fences and topic not in self._own_topics]
        writes += [partial(self._append_first, landed, shown, topic) for topic in first]
        known = [topic for topic in landed.topics if topic not in first]
        if known:
            rows = shown.where(F.col("topic").isin(*known)) if first else shown
            writes.append(partial(self._show, landed, rows, known))
        return writes

    def _show(self, landed: Landed, rows: DataFrame, topics: Sequence[str]) -> int:
        self._warehouse.append_to_topics(rows, topics, landed.marker, self._clock.onward_ms, few=landed.few)
        return self._clock.onward_ms()

    def _append_first(self, landed: Landed, shown: DataFrame, topic: str) -> int | None:
        rows = self._without_others(topic, shown.where(F.col("topic") == topic))
        self._own_topics.add(topic)
        if rows.isEmpty():  # then Delta commits nothing, but a start would look for the landing there
            return None
        return self._show(landed, rows, [topic])

    def _without_others(self, topic: str, rows: DataFrame) -> DataFrame:
        """The first rows of a topic in this run, without those that an older coordinator has landed meanwhile.

        Its append may have been in flight when this start looked for uncommitted rows. After the fence it has either
        failed, or its rows are found here.
        """
        self._warehouse.guard.fence([topic])
        found = positions.uncommitted(self._warehouse, self._begun, [topic_table(topic)])
        if found is None:
            return rows
        with self._lock:
            self._uncommitted = self._uncommitted.with_more(found) if self._uncommitted else found
        return found.excluded(rows.selectExpr("*", "source_queue AS partition", "source_offset AS offset"))

    def remember(self, held: LogEnds) -> None:
        """Keeps where the logs end; the next positions record that."""
        self._held = held

    def complete(self, landed: Landed) -> None:
        """Appends the position, once all tables are written."""
        self.position = replace(landed.position, held=self._held)
        if self._uncommitted and self._uncommitted.is_passed(self.position):
            self._uncommitted = None
        if self._uncommitted is None and not self._warehouse.guard.fences:  # else an older append may still come
            self.position = replace(self.position, clean_id=self.position.landing_id)
        if not self.position.again:
            self._used = None
        positions.append(self._warehouse, self.position)

    def _classified(self, records: DataFrame) -> tuple[DataFrame, list[Row]]:
        """Classified records, cached, and their counts: by the short steps, as long as these can judge all records."""
        short = None
        if not (self._whole_rounds or self._uncommitted or self._used):
            short = checkpoint_lazily(classify.classify(records, self._classification.short))
            counts = _count(short, self._topics.names)
            if all(row["is_judged"] for row in counts):
                return short, counts
            records, self._whole_rounds = short.select(*RECORD), _WHOLE_ROUNDS
        whole = checkpoint_lazily(self._new(classify.classify(records, self._classification.whole)))
        counts = _count(whole, self._topics.names)
        if short is not None:
            release(short)
        self._whole_rounds = max(0, self._whole_rounds - 1)
        return whole, counts

    def _new(self, classified: DataFrame) -> DataFrame:
        new = used_offsets.drop_already_landed(classified, self._uncommitted) if self._uncommitted else classified
        return self._used.refuse(new) if self._used else new

    def _duplicates(self, rows: DataFrame, counts: Sequence[Row], now: int) -> DataFrame | None:
        """The normal and batch messages that must not be shown (`DedupIndex.duplicates`)."""
        topics = _shown_topics(counts) & self._dedup.topics
        if not topics:
            return None
        shown = landed_rows.topic_rows(rows, self.position.landing_id).where(F.col("topic").isin(*topics))
        place = f"{place_sql('source', 'source_queue', 'source_offset')} AS place"
        at = f"greatest({now}L, unix_millis(stored_at)) AS at"
        order = ("unix_millis(stored_at) AS rank", "source_index AS member")
        each = [*("topic", "keys", "message_id"), place, at, *order]
        return self._dedup.duplicates(shown.selectExpr(*each))


def _of_fixed_tables(rows: DataFrame, counts: Sequence[Row], now: int) -> dict[TableName, DataFrame]:
    """The rows of each fixed table that gets some of the classified records."""
    makers: dict[str, Callable[[DataFrame], DataFrame]] = {
        classify.HALF: landed_rows.half_rows,
        classify.OP: landed_rows.op_rows,
        classify.DELAYED: landed_rows.delayed_rows,
        classify.REJECTED: partial(landed_rows.rejected_rows, now_ms=now),
    }
    targets = {classify.REJECTED if row["topic"] == _OTHERS else row["target"] for row in counts}
    return {TableName(target): makers[target](rows) for target in makers if target in targets}


def _shown_topics(counts: Sequence[Row]) -> set[str]:
    """The topics of normal and batch messages that become visible."""
    return {row["topic"] for row in counts if row["target"] == classify.TOPIC} - {_OTHERS}


_WHOLE_ROUNDS = 20
"""After a record that the short steps can't judge, the whole steps classify so many rounds. Records of its kind come
again, and a round that runs both steps takes longer than one that runs the whole steps at once."""
_OTHERS = ""
"""Stands for all topics without a table: hostile records may name 400 000 in one batch."""


# `rows`: `inputs` has a row for each half message that an op lists. `written`: each member's row has its batch's key.
_COUNTED = (
    *("count(*) AS n", "sum(bytes) AS bytes"),
    "sum(greatest(size(members), size(op.half_messages), 1)) AS rows",
    "sum(bytes + greatest(size(members) - 1, 0) * bigint(coalesce(octet_length(key), 0))) AS written",
    "bool_and(is_judged) AS is_judged",
    f"count_if(target = '{classify.OP}' AND op.from_check) AS answers",
    *("min(offset) AS first", "max(offset) AS last", "avg(unix_millis(stored_at)) AS mean"),
    "array(min(unix_millis(stored_at)), max(unix_millis(stored_at))) AS ends",
)


def _count(classified: DataFrame, known: Collection[str]) -> list[Row]:
    """Counts by partition, target and (unless rejected) known topic, with the range of offsets; one small job."""
    listed = ", ".join(f"'{topic}'" for topic in sorted(known)) or "NULL"  # no character of a topic needs quoting
    topic = f"IF(topic IN ({listed}), topic, '{_OTHERS}')"
    of_message = F.expr(f"IF(target IN ('{classify.OP}', '{classify.REJECTED}'), NULL, {topic}) AS topic")
    return (
        classified.groupBy("source", "partition", "target", "reason", of_message).agg(*map(F.expr, _COUNTED)).collect()
    )


def _since(counts: Sequence[Row]) -> Times:
    """When Kafka stored normal messages: by partition and topic the first, the last, and the mean of the others."""
    found: list[tuple[float, int]] = []
    for row in counts:
        if row["target"] == classify.TOPIC and row["topic"] != _OTHERS:
            (first, last), number = row["ends"], row["n"]
            found += [(first, 1), (last, min(1, number - 1))]
            if number > 2:
                found.append(((row["mean"] * number - first - last) / (number - 2), number - 2))
    return found


def _names_others(counts: Sequence[Row]) -> bool:
    return any(row["topic"] == _OTHERS for row in counts)


def _rejected(counts: Sequence[Row]) -> Mapping[str, int]:
    """Rejected records by reason. Topics are closed after the count, so a record rejected before keeps its reason."""
    found: Counter[str] = Counter()
    for row in counts:
        if row["target"] == classify.REJECTED or row["topic"] == _OTHERS:
            found[row["reason"] or "TOPIC_NOT_ALLOWED"] += row["n"]
    return found


def _half_spans(counts: Sequence[Row]) -> dict[int, Span]:
    """The offsets of half messages, by queue; without rejected records, which may be at an offset used before."""
    found: dict[int, Span] = {}
    for row in counts:
        if row["target"] == classify.HALF:
            queue = row["partition"]
            last = found.get(queue, Span(queue, row["first"], row["last"]))
            found[queue] = Span(queue, min(row["first"], last.low), max(row["last"], last.high))
    return found
