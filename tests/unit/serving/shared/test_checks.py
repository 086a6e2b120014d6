"""The workspace's own questions are known by their mark, which hides no other request from the monitor."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from orchestra.serving.records.spans import Trace
from orchestra.serving.records.telemetry import TRACES, answered, served
from orchestra.serving.shared.checks import FILE, HEADER, mark
from tests.support.serving_world import backend

ASKED = "what is 1+1?"


def asked(root: Path, headers: dict[str, str], question: str = ASKED, *before: str, **fields: Any) -> Gateway:
    """The gateway after one request."""
    gateway = Gateway(root, backend=backend(root))
    messages = [{"role": "user", "content": text} for text in (*before, question)]

    async def go() -> None:
        transport = httpx.ASGITransport(app=create_app(gateway, load=False))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            body = {"messages": messages, **fields}
            assert (await http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200

    asyncio.run(go())
    gateway.telemetry.close()
    return gateway


def test_an_own_question_is_traced_and_paid_but_is_no_traffic(tmp_path: Path) -> None:
    counted = asked(tmp_path, mark(tmp_path, ASKED)).telemetry.render().decode()
    (line,) = [line for file in (tmp_path / TRACES).iterdir() for line in file.read_text().splitlines()]
    assert Trace.parse(line).record["role"] == "check"
    assert served(tmp_path / TRACES, "f7") == [] == list(answered(tmp_path / TRACES, "f7"))
    figures = dict(line.rsplit(" ", 1) for line in counted.splitlines() if not line.startswith("#"))
    assert figures['orchestra_requests_total{code="200"}'] == "1.0"
    assert float(figures["orchestra_check_cost_usd_total"]) > 0
    told = ("orchestra_episodes_total", "orchestra_cost_usd_total", "orchestra_tool_calls_total")
    assert (
        not [name for name in figures if name.startswith(told)] and figures["orchestra_request_seconds_count"] == "0.0"
    )


@pytest.mark.parametrize(
    ("said", "asks"),
    [
        ({}, (ASKED,)),
        ({HEADER: "x"}, (ASKED,)),
        ({HEADER: "\xe9"}, (ASKED,)),
        (None, ("what is 2+2?",)),
        (None, (ASKED, "what is 2+2?")),
        (None, ("what is 2+2?", ASKED)),
    ],
    ids=["none", "a guess", "no ASCII", "of another question", "of the last of several", "of the first of several"],
)
def test_a_request_without_its_mark_is_a_users(
    tmp_path: Path, said: dict[str, str] | None, asks: tuple[str, ...]
) -> None:
    header = mark(tmp_path, ASKED) if said is None else said
    headers = {name: value.encode("latin-1") for name, value in header.items()}
    counted = asked(tmp_path, headers, asks[0], *asks[1:]).telemetry.render().decode()  # type: ignore[arg-type]
    assert len(served(tmp_path / TRACES, "f7")) == 1 and 'orchestra_episodes_total{stop="answered"} 1.0' in counted


def test_the_secret_is_private_and_stays(tmp_path: Path) -> None:
    first = mark(tmp_path, ASKED)
    assert mark(tmp_path, ASKED) == first != mark(tmp_path, "what is 2+2?")
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / FILE).read_text() not in first[HEADER]
