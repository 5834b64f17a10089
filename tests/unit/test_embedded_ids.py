"""The ids of embedded brokers."""

from __future__ import annotations

import base64

from commitlake.kafka import embedded


def test_a_cluster_id_is_never_taken_for_an_option() -> None:
    ids = [embedded._new_id() for _ in range(2_000)]  # drawn only once, 31 of them would begin with "-"
    assert not [id_ for id_ in ids if id_.startswith("-")]
    assert {len(base64.urlsafe_b64decode(id_ + "==")) for id_ in ids} == {16}
