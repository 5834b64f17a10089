"""What an application implements: the listener of local transactions, and hooks on their end."""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from commitlake.clients.producer.message import LocalTransactionState, Message, MessageExt
from commitlake.clients.tracing import Traced

log = logging.getLogger(__name__)

LONGEST_REMARK = 1_000


class TransactionListener(ABC):
    """The application's side of a transaction. Both methods are called from several threads."""

    @abstractmethod
    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState | None:
        """Run the local transaction of a half message that Kafka has acknowledged; None means unknown."""

    @abstractmethod
    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState | None:
        """Return how a local transaction ended, also one that another instance ran; None means unknown."""


@dataclass(frozen=True, kw_only=True)
class EndTransactionContext:
    """A decision that is about to be sent, as a hook gets it.

    Attributes:
        producer_group: the group that decides.
        msg_id: id of the transaction's first half message.
        transaction_id: id of the transaction.
        topic: destination of the first half message.
        state: the decision.
        from_check: whether it answers a check.
        broker_address: the Kafka bootstrap servers it goes to.
        message: the transaction's first half message; in answer to a check, as the check shows it.
    """

    producer_group: str
    msg_id: str
    transaction_id: str
    topic: str
    state: LocalTransactionState
    from_check: bool
    broker_address: str
    message: Message


class EndTransactionHook(Protocol):
    """An object that is called at the end of transactions."""

    def end_transaction(self, context: EndTransactionContext) -> None:
        """Called before each op message; an exception is logged and changes nothing."""


AnyHook = EndTransactionHook | Callable[[EndTransactionContext], object]


class Verdict(NamedTuple):
    """What a listener has said: the state, and a remark when that is UNKNOW for another reason than its answer."""

    state: LocalTransactionState
    remark: str | None


def decide(call: Callable[[], LocalTransactionState | None], span: AbstractContextManager[Traced]) -> Verdict:
    """Call a listener, and return the state and a remark: for an exception, or no state, UNKNOW and the reason."""
    try:
        with span as traced:
            return judged(call(), traced)
    except Exception as error:
        return failed(error)


def judged(state: object, traced: Traced) -> Verdict:
    """The decision for what a listener has returned."""
    if isinstance(state, LocalTransactionState):
        verdict = Verdict(state, None)
    else:
        if state is not None:  # None is an answer of RocketMQ's listeners, too
            log.warning("the transaction listener returned %.100r, no LocalTransactionState: UNKNOWN", state)
        verdict = Verdict(LocalTransactionState.UNKNOW, _remark(f"the listener returned {state!r}"))
    traced.note({"commitlake.decision": verdict.state.value})
    return verdict


def failed(error: BaseException) -> Verdict:
    """The decision after an exception of the listener."""
    log.warning("the transaction listener failed, so the decision is UNKNOWN", exc_info=error)
    return Verdict(LocalTransactionState.UNKNOW, _remark(f"{type(error).__name__}: {error}"))


def _remark(text: str) -> str:
    """As it may be sent: an error's text may hold what UTF-8 can't."""
    return text[:LONGEST_REMARK].encode(errors="replace").decode()


def run_hooks(hooks: list[AnyHook], context: EndTransactionContext) -> None:
    """Call all hooks; an exception in one is logged, and the others are called."""
    for hook in hooks:
        try:
            if inspect.iscoroutine(found := hook_call(hook)(context)):
                found.close()
                log.warning("the end-transaction hook %r returned a coroutine, which was not awaited", hook)
        except Exception:
            log.warning("the end-transaction hook %r failed", hook, exc_info=True)


def hook_call(hook: AnyHook) -> Callable[[EndTransactionContext], object]:
    """The function of a hook."""
    return hook if callable(hook) else hook.end_transaction
