"""One scripted history that meets every rule of coordination: six starts, timings changed from start to start.

Ages come from the timings, not from sleeping: a start with `transaction.timeout` 0 finds every half message old. Of the
most common ends there are several, for tests that damage a copy of the tables, each kind of damage at another message.
"""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql import SparkSession
from tests.support.lake import Lake, Record

from commitlake.protocol import message_batch, wire
from commitlake.protocol.encoding import Position

NEVER = Position(0, 1_000_000)
COMMITTED = [f"committed {n}" for n in range(11)]
DELIVERED = [f"delivered {n}" for n in range(5)]
DISCARDED = [f"discarded {n}" for n in range(5)]
DELAYED = [f"delayed {n}" for n in range(6)]
NORMAL = [f"normal {n}" for n in range(3)]
REJECTED = [f"rejected {n}" for n in range(2)]


class Story:
    """What was sent, by name: `half` and `message` positions, `op` records.

    Of each start `until` is the last batch_id, `landed` the newest landing. A rejected half message stands in `op`
    too, by its record.
    """

    def __init__(self, lake: Lake, spark: SparkSession) -> None:
        self.lake, self.spark = lake, spark
        self.half: dict[str, Position] = {}
        self.message: dict[str, Position] = {}
        self.op: dict[str, Record] = {}
        self.until: dict[str, int] = {}
        self.landed: dict[str, int] = {}
        self.rejected_after: dict[str, int] = {}

    def play(self) -> None:
        self.several_of_each_end()
        self.decisions()
        self.conflicts_and_mismatches()
        self.several_half_messages()
        self.delays()
        self.normal_messages()
        self.ops_that_come_early()
        self.run("ops")
        self.latecomers()
        self.run("parked", transaction_op_park_time="0s", transaction_timeout="0s")
        self.an_op_without_its_part()
        self.lake.answer_unknown()
        self.run("discarded", transaction_timeout="0s", transaction_check_interval="1ms")
        self.resumes()
        self.run("resumed", transaction_op_park_time="0s")
        self.after_the_resume()
        self.run("expired", transaction_retention="1ms", transaction_op_park_time="0s")
        self.begin("pending")
        self.run("again", transaction_op_park_time="0s")

    def run(self, name: str, **changes: object) -> None:
        self.until[name] = self.lake.run(self.spark, **changes)
        self.landed[name] = max(row["landing_id"] for row in self.lake.rows("positions"))
        self.rejected_after[name] = len(self.lake.rows("rejected"))

    def begin(self, *names: str, **more: Any) -> None:
        """One half message for each transaction."""
        for name in names:
            self.half[name] = self.lake.half(name, **more)

    def decide(
        self, name: str, decision: str, *listed: str, tid: str | None = None, called: str = "", **more: Any
    ) -> None:
        """An op on the transaction `name`."""
        places = [self.half[each] for each in listed or (name,)]
        self.op[called or name] = self.lake.op(decision, tid or name, *places, **more)

    def several_of_each_end(self) -> None:
        self.begin(*COMMITTED, *DISCARDED)
        self.begin(*DELIVERED, delays={"TIMER_DELAY_MS": "1"})
        for name in [*COMMITTED, *DELIVERED]:
            self.decide(name, "COMMIT")
        for name in DELAYED:
            self.message[name] = self.lake.message(name, topic="orders", delays={"TIMER_DELAY_MS": "1"})
        for name in REJECTED:
            self.half[name] = self.lake.half(name, topic="no topic")
            self.op[name] = Record("half", *self.half[name])

    def decisions(self) -> None:
        self.begin("committed", queue=1, queue_id=3, tags="t", keys="k", properties={"a": "b"}, sharding_key=b"s")
        self.begin("rolled back", "unknown", "from check", "forced", "first wins")
        self.half["immune"] = self.lake.half("immune", check_immunity_s=3_600)
        self.decide("committed", "COMMIT")
        self.decide("rolled back", "ROLLBACK")
        self.decide("unknown", "UNKNOWN")
        self.decide("from check", "COMMIT", from_check=True)
        self.op["forced"] = self.lake.admin("COMMIT", "forced", self.half["forced"])
        self.decide("first wins", "COMMIT", queue=1)
        self.decide("first wins", "ROLLBACK", called="second loses")
        self.op["never"] = self.lake.op("COMMIT", "never", NEVER)
        self.op["resume in op"] = self.lake.op("RESUME", "unknown", self.half["unknown"])

    def conflicts_and_mismatches(self) -> None:
        self.decide("committed", "COMMIT", called="same again")
        self.decide("committed", "ROLLBACK", called="too late to roll back")
        self.decide("rolled back", "COMMIT", called="too late to commit")
        self.begin("wrong id", "wrong group")
        self.decide("wrong id", "COMMIT", tid="other")
        self.decide("wrong group", "COMMIT", group="other")
        self.decide("committed", "ROLLBACK", tid="other", group="other", called="wrong id and group, decided")
        self.decide("committed", "ROLLBACK", group="other", called="wrong group, decided")

    def several_half_messages(self) -> None:
        self.begin("three", "unlisted", "waits", "late part", "late, rolled back", "missing", "late to a deadline")
        self.begin("whole", "foreign", "resumed and committed", "resumed with a part")
        self.add("three", "three 2", queue=1)
        self.add("three", "three 3", topic="payments")
        self.decide("three", "COMMIT", "three", "three 2", "three 3")
        self.decide("three", "COMMIT", "three 2", called="names a part of what is committed first")
        self.add("unlisted", "unlisted 2")
        self.decide("unlisted", "COMMIT")
        self.add("whole", "whole 2", queue=1)
        self.decide("whole", "COMMIT", "whole 2", called="names a part first")
        self.decide("foreign", "COMMIT", "foreign", "three 2", called="lists another's part")
        self.op["missing"] = self.lake.op("COMMIT", "missing", self.half["missing"], NEVER)
        self.decide("late part", "COMMIT")
        self.decide("late, rolled back", "ROLLBACK")
        self.half["orphan"] = self.lake.half("orphan", first=NEVER)
        self.half["stranger by group"] = self.lake.half("whole", first=self.half["whole"], group="other")
        self.half["stranger by id"] = self.lake.half("other", first=self.half["whole"])

    def add(self, name: str, part: str, queue: int = 0, **more: Any) -> None:
        self.half[part] = self.lake.half(name, queue, first=self.half[name], **{"msg_id": part, **more})

    def delays(self) -> None:
        self.start_ms = time.time_ns() // 1_000_000
        hour = self.start_ms + 3_600_000
        send = self.lake.message
        self.message["past"] = send("past", delays={"TIMER_DELIVER_MS": "1"})
        self.message["level"] = send("level", delays={"DELAY": "1"})
        self.message["waiting"] = send("waiting", delays={"TIMER_DELIVER_MS": str(hour)})
        self.message["recalled"] = send("recalled", delays={"TIMER_DELIVER_MS": str(hour)})
        for seconds in (2, 1):
            due = str(self.start_ms + seconds * 1_000)
            self.message[f"in {seconds} s"] = send(f"in {seconds} s", queue=1, delays={"TIMER_DELIVER_MS": due})
        self.op["recalled"] = self.lake.recall("recalled", self.message["recalled"])
        self.op["recall by another id"] = self.lake.recall("other", self.message["waiting"])
        self.op["recall by another topic"] = self.lake.recall("waiting", self.message["waiting"], topic="other")
        self.op["recall of nothing"] = self.lake.recall("nothing", NEVER)
        self.message["recalled early"] = self.lake.end("messages", 1)
        self.op["recalled early"] = self.lake.recall("recalled early", self.message["recalled early"])
        self.begin("relative", delays={"TIMER_DELAY_MS": "3600000"})
        self.begin("absolute", delays={"TIMER_DELIVER_MS": str(hour)})
        self.begin("relative, over", delays={"TIMER_DELAY_MS": "1"})
        for name in ("relative", "absolute", "relative, over"):
            self.decide(name, "COMMIT")

    def normal_messages(self) -> None:
        for name in NORMAL:
            self.message[name] = self.lake.message(name, topic="orders")
        members = message_batch.pack(message_batch.Member(body, {"UNIQ_KEY": body.decode()}) for body in (b"a", b"b"))
        batch = wire.MessageRecord(topic="orders", msg_id="batch", body=members, batch=2)
        self.message["batch"] = self.lake.send("messages", wire.encode_message(batch), 0).position

    def ops_that_come_early(self) -> None:
        """Before the half message, and before a part that they list."""
        coming = self.lake.end("half", 1)
        self.half["early"], self.half["waits 2"] = coming, Position(1, coming.offset + 1)
        self.decide("early", "COMMIT")
        self.decide("waits", "COMMIT", "waits", "waits 2")

    def latecomers(self) -> None:
        """What the ops of the first start wait for."""
        assert self.lake.half("early", 1) == self.half["early"]
        assert self.lake.half("waits", 1, first=self.half["waits"], msg_id="waits 2") == self.half["waits 2"]
        hour = str(self.start_ms + 3_600_000)
        early = self.lake.message("recalled early", 1, delays={"TIMER_DELIVER_MS": hour})
        assert early == self.message["recalled early"]
        self.op["recalled again"] = self.lake.recall("recalled", self.message["recalled"])
        self.op["recalled too late"] = self.lake.recall("past", self.message["past"])
        self.add("late part", "late part 2", queue=1)
        self.add("late, rolled back", "late, rolled back 2")

    def an_op_without_its_part(self) -> None:
        """It waits while the deadline of its transaction runs."""
        late = self.half["late to a deadline"]
        self.op["late to a deadline"] = self.lake.op("COMMIT", "late to a deadline", late, NEVER)

    def resumes(self) -> None:
        self.decide("unknown", "ROLLBACK", called="after the discard")
        for name in ("unknown", "whole", "committed", "orphan"):
            self.op[f"resume {name}"] = self.lake.admin("RESUME", name, self.half[name])
        for name in ("resumed and committed", "resumed with a part"):
            self.lake.admin("RESUME", name, self.half[name])
        self.decide("resumed and committed", "COMMIT")
        self.add("resumed with a part", "resumed with a part 2", queue=1)
        self.op["resume twice"] = self.lake.admin("RESUME", "unknown", self.half["unknown"])
        self.op["resume immune"] = self.lake.admin("RESUME", "immune", self.half["immune"])
        self.op["resume nothing"] = self.lake.admin("RESUME", "never", NEVER)
        self.op["resume by another id"] = self.lake.admin("RESUME", "other", self.half["wrong id"])
        self.op["recall by an administrator"] = Record("admin", 0, self._recall_in_admin())

    def _recall_in_admin(self) -> int:
        recall = wire.RecallRecord(msg_id="waiting", topic="delays", message=self.message["waiting"])
        return self.lake.send("admin", wire.encode_recall(recall), 0).offset

    def after_the_resume(self) -> None:
        self.decide("unknown", "COMMIT", called="after the resume")
        self.decide("whole", "COMMIT", called="whole after the resume")
        self.decide("resumed with a part", "COMMIT", "resumed with a part", "resumed with a part 2")
