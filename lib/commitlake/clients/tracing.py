"""OpenTelemetry spans around the work of clients, and the trace that a message carries: `commitlake.trace`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from commitlake.errors import SetupError, installed_by
from commitlake.protocol.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanKind, TracerProvider

    from commitlake.protocol.wire import CheckRecord, HalfRecord, MessageRecord

log = logging.getLogger(__name__)

TRACEPARENT = "traceparent"
"""The user property of W3C Trace Context; `tracestate` accompanies it."""
_LONGEST = "0" * 55
Attributes = Mapping[str, "str | int | None"]


class Traced:
    """A span that takes more attributes, or none when tracing is off."""

    def __init__(self, span: Span | None = None) -> None:
        self._span = span

    def note(self, attributes: Attributes) -> None:
        """Set the attributes that are not None."""
        if self._span is not None:
            with _logging_failures():
                self._span.set_attributes(_present(attributes))

    def sends(self, record: MessageRecord) -> None:
        """Set the ids of a message, which exist once its record is made."""
        if self._span is not None:
            self.note(_ids(record.msg_id, getattr(record, "transaction_id", None)))


class Tracing:
    """Opens spans, and reads and writes the trace of a message. Needs OpenTelemetry; None means its global provider."""

    def __init__(self, provider: TracerProvider | None) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation import tracecontext

        self.kinds = trace.SpanKind
        self._tracer = trace.get_tracer("commitlake", __version__, provider)
        self._format = tracecontext.TraceContextTextMapPropagator()
        self._current = context.get_current

    def carried(self) -> dict[str, str]:
        """The properties that name the current span; empty without a span."""
        found: dict[str, str] = {}
        with _logging_failures():
            self._format.inject(found)
        return found

    @contextmanager
    def span(
        self,
        operation: str,
        topic: str,
        kind: SpanKind,
        attributes: Attributes,
        properties: Mapping[str, str] | None = None,
    ) -> Iterator[Traced]:
        """Open a span, which is the current one within the `with` block.

        Args:
            operation: the action, such as `send`; the span's name begins with it.
            topic: the destination topic; the span's name ends with it.
            kind: producer, consumer or internal.
            attributes: attributes besides operation and topic.
            properties: user properties of the message whose trace the span continues. None, or properties without a
                trace: the span continues the current trace.
        """
        own = {
            "messaging.system": "commitlake",
            "messaging.operation.name": operation,
            "messaging.destination.name": topic,
            **attributes,
        }
        stack = ExitStack()
        traced = Traced()
        with _logging_failures():
            parent = None if properties is None else self._format.extract(properties, self._current())
            opened = self._tracer.start_as_current_span(f"{operation} {topic}", parent, kind, _present(own))
            traced = Traced(stack.enter_context(opened))
        try:
            yield traced
        except BaseException as error:
            traced.note({"error.type": type(error).__qualname__})  # the span itself notes its text
            with _logging_failures(error):
                stack.__exit__(type(error), error, error.__traceback__)
            raise
        with _logging_failures():
            stack.close()


@contextmanager
def _logging_failures(but: BaseException | None = None) -> Iterator[None]:
    """Log errors of a processor, a sampler or an exporter: such an error must not change a send or a decision."""
    try:
        yield
    except Exception as error:
        if error is not but:
            log.warning("tracing failed, and what was traced goes on: %s: %s", type(error).__name__, error)


class _Switch:
    """Holds the tracing of this process, once it is on."""

    on: Tracing | None = None


_SWITCH = _Switch()
_NOTHING = nullcontext(Traced())


def trace(tracer_provider: TracerProvider | None = None) -> None:
    """Trace all producers and consumers of this process with OpenTelemetry, from now on.

    A send is a span. Its message carries the trace in the user properties `traceparent` and `tracestate`, unless the
    application has set `traceparent` itself. Local transactions, answers to checks and handlers of `Consumer.run` are
    spans of that trace, also in other processes.

    Args:
        tracer_provider: OpenTelemetry's; by default the global one, which may also be set later. Until one is set,
            nothing is recorded, and messages carry the current trace.

    Raises:
        SetupError: OpenTelemetry is missing.
    """
    try:
        _SWITCH.on = Tracing(tracer_provider)
    except ModuleNotFoundError as error:
        remedy = f"install it with {installed_by('opentelemetry')}"
        msg = f"commitlake.trace needs the module {error.name}; {remedy}"
        raise SetupError(msg) from error


def carried() -> Mapping[str, str]:
    """The properties with which a message carries the current trace; empty when tracing is off."""
    return {} if (on := _SWITCH.on) is None else on.carried()


def reserved() -> Mapping[str, str]:
    """Properties at least as long as those that a send will add: the send's span does not exist yet."""
    return {} if (on := _SWITCH.on) is None else {TRACEPARENT: _LONGEST, **on.carried()}


def sending(topic: str, batch: int | None = None) -> AbstractContextManager[Traced]:
    """The span of a send, until Kafka has acknowledged it; `batch` is the number of messages in a batch."""
    if (on := _SWITCH.on) is None:
        return _NOTHING
    attributes = {"messaging.operation.type": "send", "messaging.batch.message_count": batch}
    return on.span("send", topic, on.kinds.PRODUCER, attributes)


def executing(half: HalfRecord) -> AbstractContextManager[Traced]:
    """The span of a local transaction, in the trace of its half message."""
    if (on := _SWITCH.on) is None:
        return _NOTHING
    ids = _ids(half.msg_id, half.transaction_id)
    return on.span("execute", half.topic, on.kinds.INTERNAL, ids, half.properties)


def checking(check: CheckRecord) -> AbstractContextManager[Traced]:
    """The span of a listener's answer to a check, in the trace of the transaction's first half message."""
    if (on := _SWITCH.on) is None:
        return _NOTHING
    attributes = {**_ids(check.msg_id, check.transaction_id), "commitlake.check_id": check.check_id}
    return on.span("check", check.topic, on.kinds.INTERNAL, attributes, check.properties)


def is_on() -> bool:
    """Whether `trace` was called in this process."""
    return _SWITCH.on is not None


def processing(
    group: str, topic: str, message_id: str, transaction_id: str | None, attempt: int, properties: Mapping[str, str]
) -> AbstractContextManager[Traced]:
    """The span of a handler's call, in the trace of its message."""
    if (on := _SWITCH.on) is None:
        return _NOTHING
    own = {"messaging.operation.type": "process", "messaging.consumer.group.name": group}
    attributes = {**own, **_ids(message_id, transaction_id), "commitlake.attempt": attempt}
    return on.span("process", topic, on.kinds.CONSUMER, attributes, properties)


def _ids(message_id: str, transaction_id: str | None) -> dict[str, str | None]:
    return {"messaging.message.id": message_id, "commitlake.transaction_id": transaction_id}


def _present(attributes: Attributes) -> dict[str, str | int]:
    return {name: value for name, value in attributes.items() if value is not None}
