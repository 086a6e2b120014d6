"""Spans of requests to a collector, over OTLP: sampled, redacted, and never waited for."""

from __future__ import annotations

import contextlib
from typing import Any

from orchestra.config.deploy import Tracing
from orchestra.serving.records.spans import Trace, spans

CLOSE_S = 5.0


class SpanSender:
    """Sends what is sampled, in a thread of OpenTelemetry's; what a silent collector leaves waiting is given up."""

    def __init__(self, tracing: Tracing) -> None:
        """`tracing` names the collector; its headers are in OTEL_EXPORTER_OTLP_HEADERS."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._tracing = tracing
        self._spans: Any = BatchSpanProcessor(OTLPSpanExporter(endpoint=tracing.endpoint, timeout=CLOSE_S))

    def send(self, trace: Trace) -> bool:
        """Whether it was among those that are sent."""
        if not trace.sampled(self._tracing.share):
            return False
        for span in spans(trace, self._tracing.content):
            self._spans.on_end(span)
        return True

    def close(self) -> None:
        """Send what waits, some seconds at most."""
        with contextlib.suppress(Exception):
            self._spans.force_flush(int(1000 * CLOSE_S))
        self._spans.shutdown()
