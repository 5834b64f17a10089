"""The rules of consumers that need no table: cursors, shares of a group, conditions."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from commitlake.clients.consumer import assignment
from commitlake.clients.consumer.arguments import checked_group, topics_of
from commitlake.clients.consumer.cursor import Cursor, Keys
from commitlake.clients.consumer.filters import Filter, condition_sql
from commitlake.clients.consumer.lanes import Lanes
from commitlake.clients.consumer.retries import NEVER, Retries
from commitlake.clients.consumer.rows import place_of
from commitlake.errors import ConsumerError

ROWS = pa.table(
    {
        "tags": ["paid", "shipped", None],
        "keys": ["k1", "k2 k3", None],
        "properties": pa.array(
            [
                [("region", "eu"), ("n", "9"), ("sent.by", "web"), ("id", "9007199254740992")],
                [
                    ("region", "us"),
                    ("n", "10"),
                    ("gift", "true"),
                    ("id", "9007199254740993"),
                    ("keys", "mine"),
                    ("Tags", "own"),
                ],
                [],
            ],
            pa.map_(pa.string(), pa.string()),
        ),
    }
)


def keys(*rows: tuple[int, int, int, int, int]) -> Keys:
    """Of rows (batch or -1, source, queue, offset, index)."""
    return Keys(*(np.asarray(column, np.int64) for column in zip(*rows, strict=True)))


class Name(StrEnum):
    PAID = "paid"


class Plain(str, Enum):  # noqa: UP042 - whose format is its name
    PAID = "paid"


def kept(tags: Any = None, where: str | None = None) -> list[str | None]:
    return list(Filter(tags, where).keep(ROWS)["keys"].to_pylist())


def test_a_cursor_tells_what_comes_after_it_in_batches_and_in_each_source_queue() -> None:
    cursor = Cursor()
    cursor.advance_to_end(keys((3, 0, 1, 7, 0), (-1, 1, 0, 5, 2), (-1, 1, 1, 1, 0)))
    rows = keys(
        (3, 0, 1, 7, 0), (3, 1, 1, 7, 0), (3, 0, 0, 9, 0), (4, 0, 0, 0, 0), (2, 0, 9, 9, 0),
        (-1, 1, 0, 5, 2), (-1, 1, 0, 5, 3), (-1, 1, 0, 6, 0), (-1, 1, 1, 0, 9), (-1, 1, 2, 0, 0),
    )  # fmt: skip
    assert cursor.is_before(rows).tolist() == [False, True, False, True, False, False, True, True, False, True]


def test_a_cursor_is_the_same_after_it_was_kept_and_never_goes_back() -> None:
    cursor = Cursor()
    cursor.advance(4, 0, 1, 2, 0)
    cursor.advance(3, 1, 9, 9, 0)
    cursor.advance(-1, 1, 3, 8, 1)
    cursor.advance(-1, 1, 3, 8, 0)
    assert cursor == Cursor((4, 1, 2, 0), {3: (8, 1)})
    assert Cursor.of_json(cursor.to_json()) == cursor
    other = cursor.copy()
    other.join(Cursor((4, 1, 3, 0), {3: (0, 0), 5: (1, 0)}))
    assert (other.batch, other.normal) == ((4, 1, 3, 0), {3: (8, 1), 5: (1, 0)})
    assert cursor.normal == {3: (8, 1)}


def test_rows_of_batches_come_before_others_in_the_order_of_the_contract() -> None:
    rows = keys((-1, 1, 0, 0, 1), (2, 0, 0, 1, 0), (1, 1, 0, 5, 0), (1, 0, 0, 5, 0), (-1, 1, 0, 0, 0), (1, 0, 1, 0, 0))
    assert rows.order().tolist() == [3, 2, 5, 1, 4, 0]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("region = 'eu'", ["k1"]),
        ("n > 9", ["k2 k3"]),
        ("n BETWEEN 9 AND 10 AND NOT region = 'us'", ["k1"]),
        ("region IN ('us', 'asia')", ["k2 k3"]),
        ("gift = TRUE", ["k2 k3"]),
        ("gift IS NULL", ["k1", None]),
        ("region <> 'eu'", ["k2 k3"]),
        ("TAGS = 'paid' OR keys LIKE '%k3'", ["k1", "k2 k3"]),
        ("region > 5", []),
        ("gift", ["k2 k3"]),
        ("NOT (gift) OR region = 'eu'", ["k1"]),
        ("gift IS TRUE", ["k2 k3"]),
        ("region IS FALSE", []),
        ("keys = 5 OR tags IN (1, 2) OR keys", []),
        ("\"sent.by\" = 'web'", ["k1"]),
        ("'web' = \"sent.by\"", ["k1"]),
        ("KEYS = 'k1' AND \"KEYS\" = 'k1'", ["k1"]),
        ("\"keys\" = 'mine' AND \"Tags\" = 'own'", ["k2 k3"]),
        ("id = 9007199254740993", ["k2 k3"]),
        ("id IN (1, 9007199254740993)", ["k2 k3"]),
        ("id < 9007199254740993", ["k1"]),
        ("id > -9007199254740993 AND n < 1e300", ["k1", "k2 k3"]),
    ],
)
def test_a_condition_on_properties_is_rocketmqs(where: str, expected: list[str]) -> None:
    assert kept(where=where) == expected


@pytest.mark.parametrize("where", ["1", "-n < 0", "n LIKE 5", "'yes'", "n IN (5, 'x')", "n BETWEEN 1 AND 'x'"])
def test_a_condition_that_no_message_can_be_asked_is_refused_before_there_is_one(where: str) -> None:
    with pytest.raises(ConsumerError, match="where: "):
        Filter(None, where)
    with pytest.raises(ConsumerError, match="where: "):
        Filter("paid", where)


def test_a_name_with_a_dot_is_written_in_quotes() -> None:
    with pytest.raises(ConsumerError, match=r'write it as "sent\.by", in double quotes'):
        Filter(None, "sent.by = 'web'")


VALUE = pa.struct(
    {
        "id": pa.int64(),
        "Amount": pa.decimal128(10, 2),
        "at": pa.timestamp("us", "UTC"),
        "paid": pa.bool_(),
        "who": pa.struct({"name": pa.string(), "n": pa.string()}),
    }
)
TYPED = ROWS.append_column(
    "value",
    pa.array(
        [
            {
                "id": 9007199254740993,
                "Amount": Decimal("10.50"),
                "at": datetime(2026, 11, 29, tzinfo=UTC),
                "paid": True,
                "who": {"name": "ann", "n": "7"},
            },
            {"id": 2, "Amount": Decimal(9), "at": datetime(2026, 11, 28, 23, tzinfo=UTC), "who": {"n": "x"}},
            None,
        ],
        VALUE,
    ),
)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("value.amount > 10", ["k1"]),
        ("value.amount = 10.5 AND region = 'eu'", ["k1"]),
        ("VALUE.id = 9007199254740993", ["k1"]),
        ("value.id <= 9007199254740992", ["k2 k3"]),
        ("value.at >= '2026-11-29'", ["k1"]),
        ("value.at < '2026-11-29' AND NOT value.paid", []),
        ("value.paid", ["k1"]),
        ("value.paid IS NULL", ["k2 k3", None]),
        ("value.who.name LIKE 'a%' OR value.who.n = 'x'", ["k1", "k2 k3"]),
        ("value.who.n > 5", ["k1"]),
        ("value.who.n = 7 OR n = 10", ["k1", "k2 k3"]),
        ("\"value.amount\" = 'a property' OR value = 1", []),
    ],
)
def test_a_condition_on_fields_of_the_value_compares_by_their_types(where: str, expected: list[str | None]) -> None:
    assert Filter(None, where).keep(TYPED)["keys"].to_pylist() == expected


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("value.nothing = 1", "can't be used: .*nothing"),
        ("value.at > 'soon'", "can't be used: .*soon"),
        ("value.who > 'ann'", "can't be used: "),
    ],
)
def test_a_field_that_is_not_there_or_of_another_type_is_told(where: str, told: str) -> None:
    with pytest.raises(ConsumerError, match=told):
        Filter(None, where).keep(TYPED)


def test_a_topic_without_a_schema_has_no_fields_to_compare() -> None:
    with pytest.raises(ConsumerError, match=r"value\.id > 1.*the topic has no schema; see topics\.schemas"):
        Filter(None, "value.id > 1").keep(ROWS)


@pytest.mark.parametrize(
    "where", ["", "region =", "SELECT 1", "1; DROP TABLE x", "n IN (SELECT 1)", "read_text('/x') = 1", "n + 0 > 9"]
)
def test_what_is_no_condition_is_refused(where: str) -> None:
    with pytest.raises(ConsumerError, match="where: "):
        condition_sql(where)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (None, ["k1", "k2 k3", None]),
        ("*", ["k1", "k2 k3", None]),
        ("paid", ["k1"]),
        (" paid||shipped ", ["k1", "k2 k3"]),
        ("paid || ", ["k1"]),
        (["paid", "shipped"], ["k1", "k2 k3"]),
        (("shipped",), ["k2 k3"]),
        (Name.PAID, ["k1"]),
        ([Plain.PAID], ["k1"]),
        (Plain.PAID, ["k1"]),
    ],
)
def test_tags_are_joined_by_two_bars_or_a_list(tags: Any, expected: list[str | None]) -> None:
    assert kept(tags) == expected


@pytest.mark.parametrize(
    "tags",
    [[], ["paid||shipped"], ["*"], [" paid"], [""], [None], "||", "paid || *", 5, b"paid", {"paid": 1}, [["paid"]]],
)
def test_what_are_no_tags_is_refused(tags: Any) -> None:
    with pytest.raises(ConsumerError, match=r"tags: .* is not allowed; give a tag"):
        Filter(tags, None)


@pytest.mark.parametrize(
    "where", ['region = "eu"', "region IN ('us', \"eu\")", 'region LIKE "eu"', 'n > 1 AND (region) <> ("eu")']
)
def test_a_text_in_double_quotes_is_told(where: str) -> None:
    with pytest.raises(ConsumerError, match="since a text stands in single quotes: 'eu'"):
        Filter(None, where)


@pytest.mark.parametrize("where", ["region = eu", "n > 1 AND NOT (eu) = region", '"eu" = region'])
def test_two_properties_that_are_compared_are_told(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing may fit, and all messages are passed for good."""
    assert kept(where=where) == []
    assert "; a text stands in single quotes" in caplog.text


@pytest.mark.parametrize("word", ["select", "current_date", "from", "desc", "case"])
def test_a_word_of_sql_as_a_name_is_told(word: str) -> None:
    with pytest.raises(ConsumerError, match=f'stands in double quotes: "{word}"'):
        Filter(None, f"{word} = 'x'")
    Filter(None, f"\"{word}\" = 'x'")


@pytest.mark.parametrize("where", ["(" * 5_000 + "a" + ")" * 5_000, "NOT " * 5_000 + "a"])
def test_a_condition_that_is_too_deep_is_told(where: str) -> None:
    with pytest.raises(ConsumerError, match="is too deep"):
        Filter(None, where)


def test_names_of_an_enum_are_its_values() -> None:
    assert topics_of([Plain.PAID, Name.PAID]) == ("paid",)
    assert f"{topics_of(Plain.PAID)[0]} {checked_group(Plain.PAID)}" == "paid paid"


def rebalanced(state: assignment.State, *names: str, queues: int = 4, held: tuple[int, ...] = ()) -> assignment.State:
    for name in names:
        state = assignment.rebalance(state, name, (), range(queues), held, {})
    return state


def owners(state: assignment.State) -> list[str | None]:
    return [state["queues"][queue]["owner"] for queue in sorted(state["queues"], key=int)]


EMPTY: assignment.State = {"members": {}, "queues": {}}


def test_one_instance_reads_all_queues_and_two_share_them() -> None:
    alone = rebalanced(EMPTY, "a")
    assert owners(alone) == ["a", "a", "a", "a"]
    shared = rebalanced(alone, "b", "a", "b")
    assert owners(shared) == ["a", "b", "a", "b"]
    joined = rebalanced(alone, "b")
    assert [assignment.is_balanced(each, name) for each in (alone, joined, shared) for name in "ab"] == [
        *(True, True),
        *(False, False),
        *(True, True),
    ]


def test_instances_beyond_the_queues_stand_by_until_one_is_gone_or_a_queue_is_new() -> None:
    full = rebalanced(EMPTY, "b", "c", "b", "c", queues=2)
    assert rebalanced(full, "a", "d", queues=2) is full
    assert rebalanced(rebalanced(EMPTY, "b", queues=0), "a", queues=0)["members"].keys() == {"b"}
    assert assignment.rebalance(full, "a", {"c"}, range(2), (), {})["members"].keys() == {"a", "b"}
    assert rebalanced(full, "a", "d", queues=3)["members"].keys() == {"a", "b", "c"}
    assert rebalanced(assignment.leave(full, "b", {}), "a", "d", queues=2)["members"].keys() == {"a", "c"}


def test_a_queue_with_open_messages_stays_until_they_are_finished() -> None:
    state = rebalanced(rebalanced(EMPTY, "a"), "b")
    state = assignment.rebalance(state, "a", (), range(4), [1], {1: "at 7"})
    assert owners(state) == ["a", "a", "a", None]
    assert state["queues"]["1"]["cursor"] == "at 7"
    assert owners(rebalanced(state, "a", "b")) == ["a", "b", "a", "b"]


def test_queues_of_an_instance_that_is_gone_are_free_and_it_finds_itself_without_them() -> None:
    state = rebalanced(EMPTY, "a", "b", "a", "b")
    state = assignment.rebalance(state, "b", {"a"}, range(4), (), {})
    assert owners(state) == ["b"] * 4
    assert assignment.owned(state, "a") == {}
    assert owners(assignment.leave(state, "b", {})) == [None] * 4


def test_a_beat_that_stands_still_tells_that_an_instance_is_gone_by_the_own_clock() -> None:
    watch = assignment.Watch(silence_s=10)
    assert watch.gone({"a": 1, "b": 1}, 100) == set()
    assert watch.gone({"a": 1, "b": 2}, 109) == set()
    assert watch.gone({"a": 1, "b": 2}, 111) == {"a"}
    assert watch.gone({"a": 1, "b": 2}, 111, {"a": 60, "b": 1}) == set(), "it beats as often as its own lease needs"


def test_a_member_whose_beat_is_not_there_has_a_lease_to_show_one() -> None:
    """It joined between the two looks, or others took it for gone and removed its beat."""
    watch = assignment.Watch(silence_s=10)
    assert watch.gone({"a": None}, 100) == set()
    assert watch.gone({"a": None}, 111) == {"a"}
    assert watch.gone({"a": 1}, 112) == set()


def test_only_a_beat_that_changes_shows_that_an_instance_lives() -> None:
    watch = assignment.Watch(silence_s=10)
    for at, beat in ((100, 1), (105, 1), (106, 2)):
        assert not watch.has_seen_alive("a")
        watch.gone({"a": beat}, at)
    assert watch.has_seen_alive("a")


def receipt(offset: int, due_ms: int, attempt: int) -> dict[str, Any]:
    place = {"source": "half", "source_queue": 0, "source_offset": offset, "source_index": 0}
    return {**place, "state": "RETRY", "attempt": attempt, "due_at": datetime.fromtimestamp(due_ms / 1_000, UTC)}


def test_a_retry_waits_for_its_pause_though_the_table_was_looked_at_while_it_was_due() -> None:
    retries = Retries()
    first = [receipt(1, 1_000, 1), receipt(2, 1_001, 1)]
    retries.replace(first)
    handed = retries.due(2_000, 100)
    retries.replace(first)  # neither is in somebody's hands yet
    assert [retries.begin(place_of(row)) for row in handed] == [True, True]
    retries.note(receipt(1, 9_000, 2))
    assert (retries.due(2_000, 100), retries.due_ms()) == ([], 9_000)
    assert [row["attempt"] for row in retries.due(9_000, 100)] == [2]


def test_what_was_put_off_is_not_due_at_its_first_time() -> None:
    retries = Retries()
    retries.replace([receipt(1, 1_000, 1)])
    (row,) = retries.due(2_000, 100)
    retries.put_off(place_of(row), 5_000)
    assert (retries.due(2_000, 100), retries.due_ms()) == ([], 5_000)


def test_what_was_handed_over_meanwhile_is_not_put_off() -> None:
    retries = Retries()
    retries.replace([receipt(1, 1_000, 1)])
    (row,) = retries.due(2_000, 100)
    assert retries.begin(place_of(row))
    retries.put_off(place_of(row), 5_000)
    assert retries.due_ms() == NEVER
    retries.note(receipt(1, 9_000, 2))
    retries.put_off(place_of(row), 5_000)
    assert retries.due_ms() == 9_000


def test_queues_take_turns_with_their_retries() -> None:
    lanes, queues = Lanes(), (0, 1)
    state = {"members": {"a": 15}, "queues": {str(queue): {"owner": "a", "cursor": None} for queue in queues}}
    lanes.follow(state, "a", set())
    lanes.set_waiting(
        [{**receipt(10 * queue + n, n, 1), "queue_id": queue} for queue in queues for n in range(queue + 2)]
    )
    assert [row["source_offset"] for _, row in lanes.due(10, 4)] == [0, 10, 1, 11]
    assert [row["source_offset"] for _, row in lanes.due(0, 4)] == [0, 10]
