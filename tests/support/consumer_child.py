"""A consumer in a process of its own: notes each message in a database, in the order in which it got them."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time

import commitlake
from commitlake.clients.consumer.group import Group, Texts


def die_at(commit: int, when: str) -> None:
    """End by SIGKILL `before` or `after` a commit of the group's leases, counted from 1."""
    replace, count = Group._replace, 0

    def replace_or_die(self: Group, before: Texts, after: Texts) -> None:
        nonlocal count
        count += 1
        if (count, when) == (commit, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(self, before, after)
        if count == commit:
            os.kill(os.getpid(), signal.SIGKILL)

    Group._replace = replace_or_die  # type: ignore[method-assign]


def main() -> None:
    plan = json.loads(sys.argv[1])
    if "dies" in plan:
        die_at(*plan["dies"])
    with sqlite3.connect(plan["database"], timeout=60, isolation_level=None) as db:
        db.execute("CREATE TABLE IF NOT EXISTS got (position TEXT, attempt INT, instance TEXT)")
        db.execute("CREATE TABLE IF NOT EXISTS booked (position TEXT)")
        books = sqlite3.connect(plan["database"], timeout=60)
        with commitlake.consume({"warehouse": plan["warehouse"]}, "orders", **plan["arguments"]) as messages:
            print("READY", flush=True)
            for message in messages:
                db.execute("INSERT INTO got VALUES (?, ?, ?)", [message.position, message.attempt, plan["name"]])
                with message.once(books, create=True) as is_new:
                    if is_new:
                        books.execute("INSERT INTO booked VALUES (?)", [message.position])
                time.sleep(plan.get("pause_s", 0))
                if message.attempt <= plan.get("failures", {}).get(message.keys, 0):
                    message.retry("200ms")
                else:
                    message.done()
    print("CLOSED", flush=True)


if __name__ == "__main__":
    main()
