"""The handle of a transaction: clients echo it as the transaction id, so any gateway can end the transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, unquote

from commitlake.errors import GatewayRefusal, RecordError
from commitlake.protocol.encoding import MAX_ID_LENGTH, Position
from commitlake.protocol.wire import MAX_HALF_MESSAGES, CheckRecord, OpRecord


@dataclass(frozen=True, kw_only=True)
class TransactionHandle:
    """Names an open transaction, and the check that asks about it.

    Attributes:
        transaction_id: as in the coordinator's tables.
        group: producer group.
        half_messages: positions of the half messages in `half`, the first one first.
        check_id: id of the check; None for the producer's own decision.
    """

    transaction_id: str
    group: str
    half_messages: tuple[Position, ...]
    check_id: str | None = None

    @classmethod
    def of_check(cls, check: CheckRecord) -> Self:
        """The handle that a check carries to the client."""
        return cls(
            transaction_id=check.transaction_id,
            group=check.producer_group,
            half_messages=check.half_messages,
            check_id=check.check_id,
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """The handle that `__str__` has written.

        Raises:
            GatewayRefusal: `INVALID_TRANSACTION_ID`.
        """
        try:
            transaction_id, group, places, check_id = map(unquote, text.split(":"))
            halves = tuple(Position.parse(place) for place in places.split(","))
            are_names = all(0 < len(name) <= MAX_ID_LENGTH for name in (transaction_id, group))
            if are_names and len(halves) <= MAX_HALF_MESSAGES:
                return cls(transaction_id=transaction_id, group=group, half_messages=halves, check_id=check_id or None)
        except (ValueError, RecordError):
            pass
        msg = f"{text[:100]!r} is not a transaction id of this gateway; end a transaction with the id of its send"
        raise GatewayRefusal(msg, "INVALID_TRANSACTION_ID")

    def __str__(self) -> str:
        """`<transaction id>:<group>:<queue>-<offset>,...:<check id>`, each percent-encoded."""
        places = ",".join(map(str, self.half_messages))
        fields = (self.transaction_id, self.group, places, self.check_id or "")
        return ":".join(quote(field, safe=",") for field in fields)

    def op(self, decision: str, remark: str | None = None) -> OpRecord:
        """The record that ends the transaction, or its check."""
        return OpRecord(
            transaction_id=self.transaction_id,
            producer_group=self.group,
            decision=decision,
            half_messages=self.half_messages,
            from_check=self.check_id is not None,
            check_id=self.check_id,
            remark=remark,
        )
