"""A batch of the Kafka source in parts, none of which has more bytes than a round can hold in memory.

Spark limits a batch by its number of records, and Kafka does not say how large waiting records are. A backlog of 16 000
records of 40 kB took all of 2 GiB. So the sizes of the last records give the number that is safe for a round. When a
batch has more, the sizes of its first records are read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from math import floor

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from commitlake.config import Config
from commitlake.coordinator.landing import query
from commitlake.kafka.log_ends import Offsets
from commitlake.protocol.kafka_topics import ADMIN

MOST_BYTES = 256 << 20
"""Bytes of the records of one round, more or less: some 4 s of work, and an eighth of the default heap."""
RECORD = 256
"""Bytes of a record besides its value, its key and its headers."""
_LOOKED, _SURE, _GROWTH = 1_000, 2, 100
"""A look reads the sizes of so many records. Of the largest possible, 4 GiB go through Spark, and none stay in memory.

Without a look a round has at most twice as many records as the last ones: after an outage the waiting records may be
larger. With a look it has at most a hundred times as many as were seen.
"""
_FORGET = 400_000
"""After so many records, all earlier ones count half."""


def size(names: Column, values: Column) -> Column:
    """About how many bytes a record takes, with its headers: properties may be larger than a body."""
    headers = [F.coalesce(each.cast("array<binary>"), F.array().cast("array<binary>")) for each in (names, values)]
    data = F.concat(F.array("key", "value"), *headers)
    own = F.lit(RECORD).cast("bigint")
    return F.aggregate(data, own, lambda total, each: total + F.coalesce(F.octet_length(each), F.lit(0)))


class Sizes:
    """How many records the next round may have, by the sizes that this run has seen.

    Args:
        largest: bytes of the largest value, `max_message_size`: before the first sizes are known, all may be so large.
    """

    def __init__(self, largest: int) -> None:
        self._first = max(1, MOST_BYTES // largest)
        self._records, self._bytes, self._last, self._seen, self._recent = 0.0, 0.0, 0.0, 0.0, 0.0

    def note(self, records: int, size: int) -> None:
        """Notes the number and the bytes of records that have landed."""
        self.looked(records, size)
        self._recent = max(records, 0.8 * self._recent)

    def looked(self, records: int, size: int) -> None:
        """Notes the number and the bytes of records that come next."""
        if records:
            kept = 1.0 if self._records < _FORGET else 0.5
            self._records, self._bytes = kept * self._records + records, kept * self._bytes + size
            self._last, self._seen = size / records, max(records, self._recent)

    def wants_look(self, records: int) -> bool:
        """Whether so many records need a look: the earlier ones are too few to estimate their sizes."""
        return records > max(self._first, _SURE * self._recent)

    def most(self) -> int:
        """Records of the next round at most."""
        if not self._records:
            return self._first
        mean = max(self._last, self._bytes / self._records)
        return max(1, int(min(MOST_BYTES / mean, _GROWTH * self._seen)))


def cut(begin: Offsets, ends: Offsets, most: int) -> Offsets:
    """Where so many records end, the same share of each partition; `ends` when there are no more.

    Ops of `admin` come last: a producer's op that Kafka stored before a forced one decides first.

    Args:
        begin: the next offset of each partition; 0 for one that is missing.
        ends: where the batch ends.
        most: how many records; up to one more for each partition, as a share is rounded up.
    """
    waiting = _between(begin, ends)
    every = sum(waiting.values())
    share = min(1.0, most / max(1, every))
    admin_waits = share < 1 and every > sum(left for (source, _), left in waiting.items() if source == ADMIN)
    shares = {place: 0.0 if admin_waits and place[0] == ADMIN else share for place in waiting}
    return {place: ends[place] - floor((1 - shares[place]) * left) for place, left in waiting.items()}


def _between(begin: Offsets, ends: Offsets) -> Offsets:
    """How many offsets of each partition lie between."""
    return {place: end - begin.get(place, 0) for place, end in ends.items()}


class Parts:
    """Lands the batches of a run, each in as many rounds as it takes.

    Args:
        spark: the coordinator's session.
        config: says where Kafka is.
        begin: where the first batch begins.
        run_round: runs a round of records up to their ends; returns their number and bytes, or None to stop there.
        ends: returns where the batch of a number ends.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        begin: Offsets,
        run_round: Callable[[DataFrame, Offsets], tuple[int, int] | None],
        ends: Callable[[int], Offsets],
    ) -> None:
        self._spark, self._config, self._at, self._run_round, self._ends = spark, config, begin, run_round, ends
        # A fixed group: else each part has consumers of its own, which keep their fetched records for five minutes. A
        # new one for each run: under a group that its JVM knows, Spark refuses other options, such as a new password.
        group = {"kafka.group.id": f"{config.kafka.topic('landing-parts')}-{uuid.uuid4()}"}
        self._options = query.source_options(config) | group
        self._sizes = Sizes(config.max_message_size)

    def land(self, raw: DataFrame, batch_id: int) -> None:
        """Lands a batch of the Kafka source."""
        ends = self._ends(batch_id)
        if self._sizes.wants_look(sum(_between(self._at, ends).values())):
            self._read_sizes(cut(self._at, ends, _LOOKED))
        until = cut(self._at, ends, self._sizes.most())
        if until == ends:
            self._landed(raw, ends)
            return
        while self._landed(self._records(self._at, until), until) and until != ends:
            until = cut(self._at, ends, self._sizes.most())

    def _read_sizes(self, until: Offsets) -> None:
        """Read the sizes of the first records: then a start, or a burst after little, lands in one round if safe."""
        total = F.sum(size(F.col("headers.key"), F.col("headers.value"))).alias("bytes")
        seen = self._records(self._at, until).agg(F.count("*").alias("n"), total).first()
        if seen is not None:
            self._sizes.looked(seen["n"], seen["bytes"])

    def _landed(self, records: DataFrame, until: Offsets) -> bool:
        took = self._run_round(records, until)
        if took is not None:
            self._sizes.note(*took)
            self._at = until
        return took is not None

    def _records(self, begin: Offsets, until: Offsets) -> DataFrame:
        """The records of Kafka from `begin` up to `until`. The batch's own frame would read all of it for each part."""
        return query.read(self._spark, self._config, begin, until, self._options)
