"""Telemetry of serving: Prometheus metrics, and the traces of requests read back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from orchestra.config.deploy import Tracing
from orchestra.serving.records.traces import TraceWriter, records, trace_files
from orchestra.serving.wire.request import ChatRequest
from orchestra.types import Component, Episode, Turn

if TYPE_CHECKING:
    from orchestra.serving.releases.trial import ReleaseTrial

TRACES = ".state/traces"
CALLERS = "caller's"
"""The label of all tools of callers: their names are unbounded, and anybody may read /metrics."""
SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Telemetry:
    """Metrics in a registry of their own, and traces (see `TraceWriter`)."""

    def __init__(self, folder: Path, *, days: int = 30, megabytes: int = 1024, tracing: Tracing | None = None) -> None:
        """`tracing` names a collector to tell; None, or one without an endpoint: files are all."""
        self._sender = None
        if tracing is not None and tracing.endpoint is not None:
            from orchestra.serving.records.sender import SpanSender

            self._sender = SpanSender(tracing)
        told = None if self._sender is None else self._sender.send
        self.registry = registry = CollectorRegistry()
        self.traces_lost = Counter("orchestra_traces_lost", "Traces that were not written", registry=registry)
        self.traces = TraceWriter(folder, days=days, megabytes=megabytes, told=told, lost=self.traces_lost.inc)
        self.requests = Counter("orchestra_requests", "Chat completions by HTTP status", ["code"], registry=registry)
        self.episodes = Counter("orchestra_episodes", "Episodes by how they ended", ["stop"], registry=registry)
        self.cost = Counter("orchestra_cost_usd", "Dollars by who spent them", ["component"], registry=registry)
        self.check_cost = Counter(
            "orchestra_check_cost_usd", "Dollars of the workspace's own questions", registry=registry
        )
        self.calls = Counter("orchestra_tool_calls", "Tool calls written, by tool", ["tool"], registry=registry)
        self.turns = Counter("orchestra_turns", "Turns by whether they parsed", ["parsed"], registry=registry)
        self.tokens = Counter("orchestra_policy_tokens", "The policy's tokens", ["kind"], registry=registry)
        self.seconds = Histogram(
            "orchestra_request_seconds", "Seconds by the clock", buckets=SECONDS, registry=registry
        )
        self.ledger_seconds = Histogram(
            "orchestra_ledger_seconds",
            "Seconds by the ledger: listed latency",
            buckets=SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge("orchestra_in_flight", "Requests being worked on", registry=registry)
        self.ready = Gauge("orchestra_ready", "1 when a model serves", registry=registry)
        self.restarts = Counter(
            "orchestra_model_restarts", "Times that the model server was started again", registry=registry
        )
        self.trials = Gauge(
            "orchestra_trial_share", "Share of a trial's requests", ["mode", "version"], registry=registry
        )
        self.trial_requests = Counter(
            "orchestra_trial_requests", "Requests of a trial", ["arm", "failed"], registry=registry
        )
        self.trial_rollbacks = Counter(
            "orchestra_trial_rollbacks", "Candidates withdrawn because they were worse", registry=registry
        )
        self.serving = Gauge("orchestra_serving_info", "What serves", ["version", "engine"], registry=registry)

    def observe(self, episode: Episode, wall_s: float) -> None:
        """Count one episode; its turns are counted by `paid`."""
        self.episodes.labels(episode.stop.value).inc()
        self.seconds.observe(wall_s)
        self.ledger_seconds.observe(episode.latency_s)

    def paid(self, turns: Sequence[Turn], tools: frozenset[str], own: frozenset[str] = frozenset()) -> None:
        """Count turns, be it that no episode came of them. `tools`, those offered, and `own`, the caller's among them,
        bound the label: a name that the model made up counts as `unknown`."""
        for charge in (charge for turn in turns for charge in turn.charges):
            self.cost.labels(charge.component.value).inc(float(charge.cost_usd))
            if charge.component is Component.POLICY:
                self.tokens.labels("input").inc(charge.usage.input_tokens)
                self.tokens.labels("output").inc(charge.usage.output_tokens)
        for turn in turns:
            self.turns.labels("no" if turn.parse_error else "yes").inc()
            if turn.call is not None:
                name = turn.call.name
                self.calls.labels(CALLERS if name in own else name if name in tools else "unknown").inc()

    def released(self, version: str, engine: str) -> None:
        """Say what serves from now on."""
        self.serving.clear()
        self.serving.labels(version, engine).set(1)
        self.ready.set(1)

    def trial(self, trial: ReleaseTrial | None) -> None:
        """Say what is tried from now on; None: nothing."""
        self.trials.clear()
        if trial is not None:
            self.trials.labels(trial.mode, trial.serving.version).set(trial.share)

    def render(self) -> bytes:
        """The text format of /metrics."""
        return generate_latest(self.registry)

    def trace(self, record: dict[str, Any], request: ChatRequest | None = None, episode: Episode | None = None) -> None:
        """Keep one line; it is written by another thread, which no request waits for."""
        if not self.traces.put(record, request, episode):
            self.traces_lost.inc()

    def close(self) -> None:
        """Write what waits, then end the thread."""
        self.traces.close()
        if self._sender is not None:
            self._sender.close()


@dataclass(frozen=True)
class ServedAnswer:
    """One request of one user message, with its episode."""

    trace_id: str
    question: str
    episode: Episode


def served(folder: Path, fingerprint: str, limit: int = 1000) -> list[Episode]:
    """The latest episodes that one release answered, the newest first, at most `limit`."""
    return [episode for episode, _ in served_with_domain(folder, fingerprint, limit)]


def served_with_domain(folder: Path, fingerprint: str, limit: int = 1000) -> list[tuple[Episode, bool]]:
    """The same, each with whether its request named a domain."""
    found: list[tuple[Episode, bool]] = []
    for record in _records(folder, fingerprint):
        request = record.get("request")
        named = isinstance(request, dict) and request.get("domain") is not None
        with contextlib.suppress(ValueError):
            found.append((Episode.model_validate(record["episode"]), named))
        if len(found) >= limit:
            break
    return found


def answered(folder: Path, fingerprint: str) -> Iterator[ServedAnswer]:
    """The same, newest first, with what was asked; conversations of several user messages are left out."""
    for record in _records(folder, fingerprint):
        with contextlib.suppress(ValueError):
            asked = [m.text for m in ChatRequest.model_validate(record.get("request")).messages if m.role == "user"]
            if len(asked) == 1:
                yield ServedAnswer(record["trace_id"], asked[0], Episode.model_validate(record["episode"]))


def _records(folder: Path, fingerprint: str) -> Iterator[dict[str, Any]]:
    """Lines with an episode of one release that a user asked for, the newest first: none with a `role`."""
    # Right after a release nearly all lines are of others: to parse each takes minutes.
    for record in (one for file in trace_files(folder) for one in records(file, holding=fingerprint)):
        if record.get("fingerprint") == fingerprint and "episode" in record and "role" not in record:
            yield record
