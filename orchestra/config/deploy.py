"""The section `deploy` of params.yaml: how a release is served."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from orchestra.config.section import Factor, Fraction, Margin, Positive, Section, switch


def _address(text: str) -> str:
    """An IP address, or an error in words."""
    import ipaddress

    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise ValueError("it is no IP address, such as 127.0.0.1") from None
    return text


class GatewayLimits(Section):
    """What the gateway takes at once, and for how long."""

    running: Positive = 64
    """Requests that are worked on."""
    waiting: Annotated[int, Field(ge=0, le=10**6)] = 128
    """Requests that wait for a place; all others are refused with 503 and Retry-After."""
    wait_s: Positive = 60
    """Seconds that a request waits for a place at most."""
    request_s: Positive = 1800
    """Seconds that a request may take, whatever its caller allows; the reply then has `stop: "time_limit"`."""
    expert_wait_s: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Seconds that a call waits at most for an expert that its circuit breaker leaves alone; 0: it fails at once."""
    trace_days: Positive = 30
    """Days that traces are kept."""
    trace_mb: Positive = 1024
    """Megabytes of traces that are kept; the oldest go first."""

    @property
    def patience_s(self) -> float:
        """Seconds after which a caller may give up: the gateway has ended the request by then, and said so."""
        return self.request_s + 60.0


class Tracing(Section):
    """OpenTelemetry spans of requests: one of the request, of each turn and of each tool call."""

    share: Fraction = 0.1
    """Share of the requests; those that failed always."""
    content: Literal["none", "redacted", "full"] = "redacted"
    """Texts in spans. redacted: without keys, e-mail addresses, card numbers and international phone numbers; none: no
    text at all."""
    endpoint: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    """Where the gateway sends spans (OTLP over HTTP), headers from $OTEL_EXPORTER_OTLP_HEADERS; null: nowhere.
    `orchestra traces` writes them to MLflow without it."""


class Judging(Section):
    """Which served answers `orchestra monitor` judges: by a rule where the question is a held-out one, otherwise by
    `world.judge`, where one is named."""

    share: Fraction = 0.1
    """Share of the requests."""
    daily_usd: Factor = 1.0
    """Dollars that the judge may cost in a day (UTC)."""


class Canary(Section):
    """How a candidate is tried beside the champion, and what makes it worse."""

    share: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Share of the traffic that a new champion answers before it takes over; 0: it takes over at once."""
    requests: Annotated[int, Field(ge=30, le=10**6)] = 400
    """Requests of the candidate, probes among them, after which one that was not found worse passes."""
    minutes: Factor = 30.0
    """Minutes after which it passes with fewer requests, if its probes were judged."""
    probes: Annotated[int, Field(ge=30, le=10**6)] = 300
    """Held-out questions that both are asked; their answers are judged."""
    probes_at_once: Positive = 4
    """Probes that are not answered yet. Real experts take minutes: ask more at once, or give `minutes` more."""
    error_level: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Largest chance that a candidate which is no worse is rolled back."""
    failure_margin: Margin = 0.03
    """Share of requests that may fail beyond the champion's."""
    latency_margin: Factor = 0.25
    """Share by which a request may take longer than the champion's."""
    cost_margin: Factor = 0.25
    """Share by which a solved probe may cost more than the champion's."""
    failures_in_a_row: Positive = 5
    """This many failed requests in a row end the trial at once."""
    shadow_usd: Factor = 1.0
    """Dollars that the copies of requests in a shadow trial may cost together."""


class VllmServer(Section):
    """How vLLM runs the checkpoint."""

    device: Literal["cpu", "gpu"] = "cpu"
    """gpu: vLLM's own wheel in .venv-vllm, with CUDA graphs."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of weights and activations; a release compares it with the checkpoint in the same type."""
    tensor_parallel: Positive = 1
    """GPUs that share the model."""
    devices: str | None = switch(None)
    """CUDA_VISIBLE_DEVICES of the server, such as "7"; null: those of the process that starts it."""
    gpu_memory: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of a GPU's memory for weights and cache. During a release the old server and the new one share a GPU."""
    sequences: Positive = 64
    """Conversations that are computed at once."""

    @model_validator(mode="after")
    def _gpus_are_there(self) -> Self:
        if self.device == "cpu" and self.tensor_parallel > 1:
            raise ValueError("tensor_parallel shares a model among GPUs: set device to gpu")
        return self


def host_name(name: str) -> str:
    """A name as callers address it; raises `ValueError` for what no request's host can be."""
    if name != "*" and not re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", name):
        raise ValueError("write the name alone, without scheme, port or path: orchestra.example.org")
    return name


class Deploy(Section):
    engine: Literal["vllm", "in_process", "auto"]
    """auto: vLLM where its environment exists, otherwise in process, said so."""
    host: Annotated[str, AfterValidator(_address)]
    """Address that the gateway listens on. Any but 127.0.0.1 needs API keys (`orchestra keys create`)."""
    hosts: list[Annotated[str, AfterValidator(host_name)]] = switch([])
    """Names that callers may address the gateway by, besides 127.0.0.1 and localhost; `*` is any."""
    tls_certificate: str | None = switch(None)
    """File of the certificate chain, in PEM; null: plain HTTP."""
    tls_key: str | None = switch(None)
    """File of the certificate's private key."""
    gateway_port: Annotated[int, Field(ge=0, le=65535)]
    """The gateway's port; 0: any free port."""
    vllm_port: Annotated[int, Field(ge=0, le=65535)]
    """0: any free port."""
    start_timeout_s: Annotated[int, Field(gt=0, le=86_400)]
    """Seconds that a server may take to start."""
    drain_s: Positive = switch(1800)
    """Seconds that a release waits for the requests of what served before; then they are cut."""
    smoke_examples: Positive
    """Held-out examples that a new server must end as the checkpoint does."""
    least_confidence: Annotated[float, Field(ge=-100, le=0)] | None = switch(None)
    """Mean log-probability of a turn's tokens (nats) below which the gateway answers "I cannot know that." instead;
    null: never. `python -m benchmarks.confidence` shows what a value keeps and what it refuses. Turns are then streamed
    whole."""
    gateway: GatewayLimits = switch(GatewayLimits())
    """What the gateway takes at once, and for how long."""
    vllm: VllmServer = switch(VllmServer())
    """How vLLM runs the checkpoint."""
    tracing: Tracing = switch(Tracing())
    """Spans of requests."""
    judging: Judging = switch(Judging())
    """A sample of served answers gets a verdict, so that dollars per solved request are known."""
    canary: Canary = switch(Canary())
    """How a candidate is tried beside the champion."""

    @model_validator(mode="after")
    def _certificate_and_key(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key belong together")
        return self
