"""A collector of OpenTelemetry's spans in memory."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, Tracer


class Collector:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer: Tracer = self.provider.get_tracer("application")

    @property
    def spans(self) -> list[ReadableSpan]:
        """Those that have ended, in the order of their ends."""
        return list(self._exporter.get_finished_spans())

    def one(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found


def traceparent(span: ReadableSpan) -> str:
    """How W3C Trace Context names a span."""
    return _named(span.get_span_context())


def parent(span: ReadableSpan) -> str | None:
    return None if span.parent is None else _named(span.parent)


def attributes(span: ReadableSpan, *names: str) -> list[Any]:
    """Values of attributes, None for one that is absent."""
    return [(span.attributes or {}).get(name) for name in names]


def _named(context: SpanContext | None) -> str:
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
