"""One question to what serves, and its answer with the tool calls and dollars behind it."""

from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestra.errors import ConfigError, ServiceError
from orchestra.processes import services

GATEWAY = "gateway"
"""Name of the gateway's service."""


def gateway_url(root: Path) -> str:
    """Address of the running gateway, `http://127.0.0.1:<port>`; `ServiceError` when nothing serves."""
    for service in services(root):
        if service.name == GATEWAY:
            return service.url.rstrip("/")
    raise ServiceError("nothing serves here", where=".state", fix="make pipeline, or: orchestra release")


def ask(
    question: str,
    preference: str | None = None,
    *,
    url: str,
    budget_usd: Decimal | None = None,
    max_turns: int | None = None,
    domain: str | None = None,
    timeout_s: float = 120.0,
) -> dict[str, Any]:
    """The whole chat completion; raises `ConfigError` when the request is at fault, otherwise `ServiceError`."""
    import httpx

    optional = {"preference": preference, "max_turns": max_turns, "domain": domain}
    body: dict[str, Any] = {"model": "orchestrator", "messages": [{"role": "user", "content": question}]}
    body |= {key: value for key, value in optional.items() if value is not None}
    if budget_usd is not None:
        body["budget_usd"] = str(budget_usd)
    try:
        # Not through a proxy that the environment names: the gateway is on this machine.
        response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=timeout_s, trust_env=False)
    except httpx.TimeoutException:
        raise ServiceError(f"no answer within {timeout_s:g} s", where=url, fix="orchestra status") from None
    except httpx.HTTPError as error:
        raise ServiceError(f"{type(error).__name__}: {error}", where=url, fix="orchestra status") from None
    if response.status_code != 200:
        kind = ConfigError if response.status_code in (400, 422) else ServiceError
        raise kind(_message(response), where=url, fix="change the question" if kind is ConfigError else "try again")
    found: dict[str, Any] = response.json()
    return found


def _message(response: Any) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}"


def describe(completion: dict[str, Any]) -> str:
    """The tool calls with what they returned and cost, the answer, and the bill."""
    about = completion["orchestra"]
    lines = []
    for call in about["tool_calls"]:
        arguments = ", ".join(f"{key}={value!r}" for key, value in call["arguments"].items())
        seen = " ".join(str(call["observation"] or "not made").split())
        seen = seen if len(seen) <= 100 else seen[:97] + "..."
        lines.append(f"  {call['name']}({arguments}) → {seen}  [${call['cost_usd']:.6f}]")
    answer = completion["choices"][0]["message"]["content"]
    lines.append(f"  {answer}" if answer else f"  no answer ({about['stop']})")
    simulated = ", simulated experts" if about.get("simulated") else ""
    lines.append(f"  ${about['cost_usd']:.6f}, {about['wall_s']:.2f} s, {about['engine']}{simulated}")
    return "\n".join(lines)
