"""What a server's answer says of a transaction of PostgreSQL that a half message names."""

from __future__ import annotations

import pytest

from commitlake.errors import RecordError
from commitlake.protocol.postgresql import Xact, answer_of, judged, xact, xact_of

ASKED = Xact("7391", 26, 745)


def test_a_half_message_names_a_transaction_of_a_cluster_and_a_timeline() -> None:
    taken = xact("-7391", "0000001A", "4294967300")
    assert str(taken) == "-7391/26/4294967300"
    assert xact_of(str(taken)) == taken


@pytest.mark.parametrize(
    "text",
    ["", "745", "7391/26", "7391/26/745/1", "7391/1A/745", " 7391/26/745", "7391/26/745\n", "7391/26/-745", "7391/26/٣",
     "7391/26/2", "7391/26/9223372036854775808", "7391/26/1','2", "x" * 100_000],
)  # fmt: skip
def test_what_is_no_transaction_is_told(text: str) -> None:
    with pytest.raises(RecordError, match=r"postgresql.transaction: .* is not allowed; allowed is SYSTEM/TIMELINE/XID"):
        xact_of(text)


@pytest.mark.parametrize(
    ("row", "decision", "reason"),
    [
        (("7391", "0000001A", "745", "committed"), "COMMIT", "committed"),
        (("7391", "0000001A", "745", "aborted"), "ROLLBACK", "aborted"),
        (("7391", "0000001A", "745", "in progress"), None, "in progress"),
        (("7391", "0000001A", "745", None), None, "no longer knows it"),
        (("7391", None, "745", None), None, "a replica"),
        (
            ("7391", "0000001B", "745", "committed"),
            None,
            "another timeline, by a restore or a failover: 7391 timeline 27",
        ),
        (("7392", "0000001A", "745", "aborted"), None, "another cluster: 7392 timeline 26"),
    ],
)
def test_only_the_cluster_and_the_timeline_of_a_transaction_decide_it(
    row: tuple[str, str | None, str, str | None], decision: str | None, reason: str
) -> None:
    found, told = judged(ASKED, answer_of(*row))
    assert found == decision
    assert reason in told
