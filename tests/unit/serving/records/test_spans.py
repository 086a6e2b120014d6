"""Spans of a request that was answered by the real loop: names, times, tokens, dollars; sampled, redacted, sent."""

import asyncio
import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import StatusCode

from orchestra.config.deploy import Tracing
from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from orchestra.serving.records.spans import MAX_TEXT, Content, Trace, spans
from orchestra.serving.wire.request import MAX_BODY
from tests.support.serving_world import backend

QUESTION = "what is 37*24?"


def traced(tmp_path: Path, question: str = QUESTION, tracing: Tracing | None = None, **body: Any) -> Trace:
    """The trace of one request through the gateway, read back from its file."""
    gateway = Gateway(tmp_path, backend=backend(tmp_path), tracing=tracing)

    async def ask() -> None:
        transport = httpx.ASGITransport(app=create_app(gateway, load=False))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            messages = [{"role": "user", "content": question}]
            await client.post("/v1/chat/completions", json={"messages": messages, **body})

    asyncio.run(ask())
    gateway.telemetry.close()
    (file,) = (tmp_path / ".state/traces").iterdir()
    return Trace.parse(file.read_text(encoding="utf-8"))


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_request_has_a_span_each_turn_one_and_each_call_one(tmp_path: Path) -> None:
    trace = traced(tmp_path)
    made = spans(trace, "full")
    assert [span.name for span in made] == [
        "invoke_agent orchestrator",
        "chat orchestrator",
        "execute_tool calculator",
        "chat orchestrator",
    ]
    root, first, tool, last = made
    assert trace.episode is not None and root.parent is None
    assert all(span.parent is not None and span.parent.span_id == root.context.span_id for span in made[1:])
    assert {f"{span.context.trace_id:032x}" for span in made} == {trace.record["trace_id"]}
    assert len({span.context.span_id for span in made}) == 4
    moments = [moment for span in (first, tool, last) for moment in (span.start_time, span.end_time)]
    assert moments == sorted(moments, key=lambda moment: moment or 0)
    assert root.start_time is not None and root.end_time is not None
    assert root.start_time <= (first.start_time or 0) and (last.end_time or 0) <= root.end_time + 2_000_000
    assert attributes(tool)["gen_ai.tool.call.result"] == "888"
    assert json.loads(attributes(tool)["gen_ai.tool.call.arguments"]) == {"expression": "37*24"}
    assert json.loads(attributes(root)["gen_ai.input.messages"])[0]["parts"][0]["content"] == QUESTION
    assert json.loads(attributes(root)["gen_ai.output.messages"])[0]["parts"][0]["content"] == "888"


def test_dollars_and_tokens_of_the_parts_make_the_whole(tmp_path: Path) -> None:
    trace = traced(tmp_path)
    root, *parts = (attributes(span) for span in spans(trace, "none"))
    assert trace.episode is not None
    assert root["orchestra.cost_usd"] == pytest.approx(float(trace.episode.cost_usd)) and root["orchestra.cost_usd"] > 0
    assert sum(part["orchestra.cost_usd"] for part in parts) == pytest.approx(root["orchestra.cost_usd"])
    written = sum(part.get("gen_ai.usage.output_tokens", 0) for part in parts)
    assert written == sum(len(turn.ids) for turn in trace.episode.turns)


def test_names_are_those_of_the_pinned_conventions_or_our_own(tmp_path: Path) -> None:
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {name for span in spans(traced(tmp_path), "full") for name in attributes(span)}
    assert {name for name in used if not name.startswith("orchestra.")} <= {*known, "error.type"}


@pytest.mark.parametrize(("content", "shown"), [("full", True), ("redacted", False), ("none", False)])
def test_texts_are_shown_as_far_as_is_set(tmp_path: Path, content: Content, shown: bool) -> None:
    made = spans(traced(tmp_path, "mail anna@example.org what 37*24 is"), content)
    text = json.dumps([attributes(span) for span in made])
    assert ("anna@example.org" in text) is shown
    assert ("what 37*24 is" in text) is (content != "none")


def test_what_no_span_shows_costs_no_time(tmp_path: Path) -> None:
    """A text as long as a body may be, of the beginnings of secrets."""
    text = "anna@example.org " + "names of a_password " * (MAX_BODY // 20)
    record = {"trace_id": "f" * 32, "time": "2026-01-01T00:00:00.000+00:00", "version": "1", "error": "vLLM: is down"}
    began = time.thread_time()
    (span,) = spans(Trace(record, [("user", text)], None), "redacted")
    assert time.thread_time() - began < 0.5
    (message,) = json.loads(attributes(span)["gen_ai.input.messages"])
    shown = message["parts"][0]["content"]
    assert shown.startswith("[redacted] names of") and shown.endswith("…") and len(shown) == MAX_TEXT + 1


def test_a_failed_request_is_always_told_and_says_why(tmp_path: Path) -> None:
    failed = {"trace_id": "f" * 32, "time": "2026-01-01T00:00:00.000+00:00", "version": "1", "error": "vLLM: is down"}
    trace = Trace({**failed, "cost_usd": 0.25}, [("user", "hi")], None)
    (span,) = spans(trace, "full")
    assert trace.sampled(0.0) and span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "vLLM" and attributes(span)["orchestra.cost_usd"] == 0.25


def test_the_sampled_share_is_what_is_set_and_the_same_each_time(tmp_path: Path) -> None:
    trace = traced(tmp_path)
    ids = [f"{number * 0x9E3779B97F4A7C15 % 2**64:032x}" for number in range(1, 2001)]
    told = [Trace({**trace.record, "trace_id": one}, (), trace.episode).sampled(0.1) for one in ids]
    assert 0.08 < sum(told) / len(told) < 0.12
    assert told == [Trace({**trace.record, "trace_id": one}, (), trace.episode).sampled(0.1) for one in ids]


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A collector of OTLP over HTTP: its address, and what it was sent."""
    got: list[ExportTraceServiceRequest] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = ExportTraceServiceRequest()
            sent.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
            got.append(sent)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_gateway_sends_spans_to_a_collector(
    tmp_path: Path, collector: tuple[str, list[ExportTraceServiceRequest]]
) -> None:
    url, got = collector
    traced(tmp_path, "mail anna@example.org", Tracing(share=1.0, endpoint=url))
    sent = [span for one in got for part in one.resource_spans for scope in part.scope_spans for span in scope.spans]
    assert sent[0].name == "invoke_agent orchestrator" and len(sent) >= 2
    assert "anna@example.org" not in str(got)


def test_a_silent_collector_costs_no_answer_and_no_trace(tmp_path: Path) -> None:
    trace = traced(tmp_path, tracing=Tracing(share=1.0, endpoint="http://127.0.0.1:9/v1/traces"))
    assert trace.episode is not None and trace.episode.answer == "888"
