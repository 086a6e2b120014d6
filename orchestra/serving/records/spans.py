"""A request's trace as OpenTelemetry spans: one of the request, one of each turn, one of each tool call.

Attributes `gen_ai.*` have the names of the GenAI conventions in opentelemetry-semantic-conventions 0.66b2; dollars and
what else they lack have names of our own, `orchestra.*`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from orchestra.accounting.ledger import total
from orchestra.serving.records.redaction import redact_start
from orchestra.serving.wire.request import MODEL
from orchestra.tools.base import call_failed
from orchestra.types import Charge, Component, Episode, StopReason, Turn

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

PROVIDER = "orchestra"
MAX_TEXT = 8_000
"""Characters of one text in a span."""
FAILED = (StopReason.TOOL_FAILURE, StopReason.MALFORMED, StopReason.CANCELLED)

Content = Literal["none", "redacted", "full"]


@dataclass(frozen=True)
class Trace:
    """A line of the traces, as it was written or read."""

    record: dict[str, Any]
    """`trace_id`, `time` of the end (ISO), `wall_s`, `times` of the turns, `version`, `engine`, `fingerprint`, `error`
    where there is no episode, and `role` where no user got the answer: `shadow` or `check`."""
    messages: Sequence[tuple[str, str]]
    """Role and text."""
    episode: Episode | None

    @classmethod
    def parse(cls, line: str) -> Trace:
        """From a line of a file; raises `ValueError` for half a one."""
        record = json.loads(line)
        request, episode = record.pop("request", None) or {}, record.pop("episode", None)
        said = [(message["role"], _text(message.get("content"))) for message in request.get("messages", ())]
        return cls(record, said, None if episode is None else Episode.model_validate(episode))

    @property
    def failed(self) -> bool:
        return self.episode is None or self.episode.stop in FAILED

    def sampled(self, share: float) -> bool:
        """Whether it is among the share that is told, always the same by its id; one that failed always is."""
        return self.failed or int(self.record["trace_id"][16:], 16) < share * 2**64


TOLD = ("version", "engine", "fingerprint", "role", "cost_usd")
"""What of a record its span says; dollars only of a request without an episode."""


def spans(trace: Trace, content: Content) -> list[ReadableSpan]:
    """The spans, the request's first. Their ids follow from the trace's, so that told twice they are the same."""
    return list(_Spans(trace, content).all())


class _Spans:
    def __init__(self, trace: Trace, content: Content) -> None:
        from opentelemetry.sdk.resources import Resource

        self._record, self._trace, self._content = trace.record, trace, content
        self._end_ns = int(datetime.fromisoformat(trace.record["time"]).timestamp() * 1e9)
        self._start_ns = self._end_ns - int(1e9 * trace.record.get("wall_s", 0.0))
        self._resource = Resource({"service.name": "orchestra-gateway", "service.version": trace.record["version"]})

    def all(self) -> Iterator[ReadableSpan]:
        episode, error = self._trace.episode, self._record.get("error")
        failure = type_of(error) if error else episode.stop.value if episode and episode.stop in FAILED else None
        yield self._span("", f"invoke_agent {MODEL}", self._request(), (0.0, None), failure)
        for number, turn in enumerate(episode.turns if episode is not None else ()):
            began, written, ended = self._times(number)
            yield self._span(f"{number}", f"chat {MODEL}", self._turn(number, turn), (began, written))
            if turn.call is not None:
                last = episode is not None and number == len(episode.turns) - 1
                wrong = "tool_failure" if last and failure == StopReason.TOOL_FAILURE.value else None
                wrong = wrong or ("call_error" if call_failed(turn) else None)
                name = f"execute_tool {turn.call.name[:200]}"
                yield self._span(f"{number} tool", name, self._tool(number, turn), (written, ended), wrong)

    def _request(self) -> dict[str, Any]:
        record, episode = self._record, self._trace.episode
        found: dict[str, Any] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.agent.name": MODEL,
            "gen_ai.agent.version": record["version"],
            "gen_ai.request.model": MODEL,
            **{f"orchestra.{key}": record[key] for key in TOLD if key in record},
            **self._said("gen_ai.input.messages", [(role, {"content": text}) for role, text in self._trace.messages]),
        }
        if episode is None:
            return found
        return {
            **found,
            **self._said("gen_ai.output.messages", [("assistant", {"content": episode.answer or ""})]),
            **_spent(episode.charges),
            "orchestra.stop": episode.stop.value,
            "orchestra.turns": len(episode.turns),
            "orchestra.simulated": episode.simulated,
        }

    def _turn(self, number: int, turn: Turn) -> dict[str, Any]:
        own = [charge for charge in turn.charges if charge.component is Component.POLICY]
        turns = self._trace.episode.turns if self._trace.episode is not None else ()
        heard = [("tool", {"content": turns[number - 1].observation or ""})] if number else []
        heard = heard or [(role, {"content": text}) for role, text in self._trace.messages]
        return {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": MODEL,
            "gen_ai.response.model": self._record["version"],
            "gen_ai.response.finish_reasons": ["tool_call" if turn.call else "error" if turn.parse_error else "stop"],
            **_spent(own, tokens=True),
            **self._said("gen_ai.input.messages", heard),
            **self._said("gen_ai.output.messages", [("assistant", {"content": turn.text})]),
        }

    def _tool(self, number: int, turn: Turn) -> dict[str, Any]:
        assert turn.call is not None
        found: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": turn.call.name[:200],
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": f"{self._record['trace_id']}-{number}",
            **_spent([charge for charge in turn.charges if charge.component is not Component.POLICY]),
        }
        if self._content != "none":
            found["gen_ai.tool.call.arguments"] = self._shown(json.dumps(turn.call.arguments, ensure_ascii=False))
            found["gen_ai.tool.call.result"] = self._shown(turn.observation or "")
        return found

    def _said(self, key: str, messages: Sequence[tuple[str, dict[str, str]]]) -> dict[str, str]:
        """Messages in the conventions' JSON; nothing where texts are left out."""
        if self._content == "none":
            return {}
        parts = [
            {"role": role, "parts": [{"type": "text", "content": self._shown(said["content"])}]}
            for role, said in messages
        ]
        return {key: json.dumps(parts, ensure_ascii=False)}

    def _shown(self, text: str) -> str:
        # Redacted before it is cut: what is cut in the midst of a secret would no longer look like one. Twice as much
        # is read as is shown, because a redacted text is shorter.
        text = redact_start(text, 2 * MAX_TEXT) if self._content == "redacted" else text
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"

    def _times(self, number: int) -> tuple[float, float, float]:
        """Of a turn, seconds since the request came; older lines do not tell them."""
        times = self._record.get("times", ())
        return tuple(times[number]) if number < len(times) else (0.0, 0.0, 0.0)

    def _span(
        self,
        key: str,
        name: str,
        attributes: dict[str, Any],
        seconds: tuple[float, float | None],
        failure: str | None = None,
    ) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanKind, Status, StatusCode

        start = self._start_ns + int(1e9 * seconds[0])
        end = self._end_ns if seconds[1] is None else self._start_ns + int(1e9 * seconds[1])
        return ReadableSpan(
            name,
            context=self._context(key),
            parent=None if key == "" else self._context(""),
            resource=self._resource,
            attributes=attributes if failure is None else {**attributes, "error.type": failure},
            kind=SpanKind.CLIENT if name.startswith("chat") else SpanKind.INTERNAL,
            status=Status(StatusCode.OK) if failure is None else Status(StatusCode.ERROR, failure),
            start_time=start,
            end_time=max(start, end),
            instrumentation_scope=InstrumentationScope("orchestra.serving"),
        )

    def _context(self, key: str) -> Any:
        from opentelemetry.trace import SpanContext, TraceFlags

        trace_id = self._record["trace_id"]
        digest = hashlib.sha256(f"{trace_id}/{key}".encode()).digest()
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(
            int(trace_id, 16), int.from_bytes(digest[:8], "big") or 1, is_remote=False, trace_flags=flags
        )


def type_of(error: str) -> str:
    """A short name of a failure, for a label: its words up to the first colon."""
    return error.partition(":")[0][:80]


def _spent(charges: Sequence[Charge], *, tokens: bool = False) -> dict[str, Any]:
    """Dollars and listed seconds; `tokens`: the policy's too, in the conventions' names."""
    found: dict[str, Any] = {
        "orchestra.cost_usd": float(total(charges)),
        "orchestra.latency_s": round(sum(charge.latency_s for charge in charges), 6),
    }
    if tokens:
        usages = [charge.usage for charge in charges]
        found["gen_ai.usage.input_tokens"] = sum(usage.input_tokens for usage in usages)
        found["gen_ai.usage.output_tokens"] = sum(usage.output_tokens for usage in usages)
        found["gen_ai.usage.cache_read.input_tokens"] = sum(usage.cached_input_tokens for usage in usages)
    return found


def _text(content: Any) -> str:
    """Of a message's content: text, parts of it, or nothing."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return str(content or "")
