"""Interfaces for an application: the listener of local transactions, and hooks at the end of transactions."""

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
from commitlake.errors import UndecidedError, described

log = logging.getLogger(__name__)

LONGEST_REMARK = 1_000


class TransactionListener(ABC):
    """The application's side of a transaction. Both methods are called from several threads."""

    @abstractmethod
    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState | None:
        """Run the local transaction of an acknowledged half message. None counts as UNKNOW, with a warning."""

    @abstractmethod
    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState | None:
        """Return the outcome of a local transaction of any instance. None counts as UNKNOW, with a warning."""


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
        broker_address: the Kafka bootstrap servers that get the decision.
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
        """Called before each op message is sent; an exception is logged and changes nothing."""


AnyHook = EndTransactionHook | Callable[[EndTransactionContext], object]


class Verdict(NamedTuple):
    """A listener's answer.

    Attributes:
        state: the decision.
        remark: the reason for an UNKNOW that is not the listener's own answer.
        exception: the listener's exception.
    """

    state: LocalTransactionState
    remark: str | None
    exception: BaseException | None = None


def decide(
    call: Callable[[], LocalTransactionState | None],
    span: AbstractContextManager[Traced],
    caught: type[BaseException] = Exception,
) -> Verdict:
    """Call a listener, and return its verdict; after an error of class `caught`, or without a state, it is UNKNOW.

    Raises:
        UndecidedError: the listener can't tell yet.
    """
    try:
        with span as traced:
            return judged(call(), traced)
    except UndecidedError:
        raise
    except caught as error:
        return failed(error)


def judged(state: object, traced: Traced) -> Verdict:
    """The verdict for the value that a listener has returned."""
    if isinstance(state, LocalTransactionState):
        verdict = Verdict(state, None)
    else:
        log.warning("the transaction listener returned %.100r, no LocalTransactionState: this counts as UNKNOWN", state)
        verdict = Verdict(LocalTransactionState.UNKNOW, _remark(f"the listener returned {state!r}"))
    traced.note({"commitlake.decision": verdict.state.value})
    return verdict


def failed(error: BaseException) -> Verdict:
    """The verdict after an exception of the listener."""
    log.warning("the transaction listener failed, so the decision is UNKNOWN", exc_info=error)
    return Verdict(LocalTransactionState.UNKNOW, _remark(described(error)), error)


def _remark(text: str) -> str:
    """A remark that can be sent: an error's text may have characters that UTF-8 can't write."""
    return text[:LONGEST_REMARK].encode(errors="replace").decode()


def run_hooks(hooks: list[AnyHook], context: EndTransactionContext) -> None:
    """Call all hooks; an exception of one is logged, and does not keep the others from being called."""
    for hook in hooks:
        try:
            if inspect.iscoroutine(found := hook_call(hook)(context)):
                found.close()
                log.warning("the end-transaction hook %r returned a coroutine, which was not awaited", hook)
        except Exception:
            log.warning("the end-transaction hook %r failed", hook, exc_info=True)


def hook_call(hook: AnyHook) -> Callable[[EndTransactionContext], object]:
    """The function that calls a hook: the hook itself, or its method `end_transaction`."""
    return hook if callable(hook) else hook.end_transaction
