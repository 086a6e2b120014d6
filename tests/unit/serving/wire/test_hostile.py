"""Generated callers: whatever bytes arrive, the gateway answers or closes, in time, and the next caller is served."""

import asyncio
import json
import socket
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from orchestra.serving.wire.connection import BoundedProtocol
from orchestra.serving.wire.errors import ApiError
from orchestra.serving.wire.guard import RequestGuard
from orchestra.serving.wire.request import MAX_BODY, NEUTRAL, ChatRequest, parse_request
from tests.support.real_gateway import listening
from tests.support.serving_world import backend

PATH = "/v1/chat/completions"
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "what is 37*24?"}]}
FEW, MANY = 300, 5000
SOCKETS, MANY_SOCKETS = 120, 2000
"""Cases over real connections."""
CLOSED_S = 5.0
"""A gateway whose patience is half a second has closed by then, also on a busy machine."""
LOOP_S = 1.0
"""Processor seconds for which a request may hold the event loop at a stretch."""

CONTROL = ["<think>", "</think>", "<|im_start|>", "<|im_end|>", "<tool_call>", "\u2028", "\x00"]
AWKWARD = [*CONTROL, "\ud800", '"', "\\", "é"]


class Hasty(BoundedProtocol):
    header_s = 0.5


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Gateway:
    folder: Path = tmp_path_factory.mktemp("gateway")
    return Gateway(folder, backend=backend(folder))


@pytest.fixture(scope="module")
def port(gateway: Gateway) -> Iterator[int]:
    app = create_app(gateway, load=False)
    assert isinstance(app, RequestGuard)
    with listening(RequestGuard(app.app, body_s=0.5), Hasty) as port:
        yield port


# Bytes on a connection.

names = st.sampled_from(
    [b"Host", b"Content-Length", b"Transfer-Encoding", b"Content-Type", b"Connection", b"Expect", b"Origin", b"Upgrade",
     b"Authorization", b"X" * 9000, b"", b" ", b"\xff", b"Idempotency-Key", b"Cookie"]
)  # fmt: skip
values = st.sampled_from(
    [b"127.0.0.1", b"evil.example", b"application/json", b"text/plain", b"chunked", b"gzip, chunked", b"100-continue",
     b"close", b"keep-alive", b"websocket", b"-1", b"0", b"1", b"5, 6", b"99999999999999999999", b"1e3", b"\x00",
     b"\xff", b"x" * 70_000, b"a\r\nHost: evil.example", b"Bearer x", b"h2c"]
)  # fmt: skip
lines = st.sampled_from(
    [b"POST /v1/chat/completions HTTP/1.1", b"GET /health HTTP/1.1", b"GET /metrics HTTP/1.0", b"PUT /x HTTP/1.1",
     b"GET /%00%ff/../admin/load HTTP/1.1", b"POST * HTTP/1.1", b"PRI * HTTP/2.0", b"GET /health HTTP/9.9", b"GET", b"",
     b"\x16\x03\x01\x02\x00", b"GET http://evil.example/ HTTP/1.1", b"CONNECT a:1 HTTP/1.1", b"\xff" * 100]
)  # fmt: skip
bodies = st.sampled_from(
    [json.dumps(ASKED).encode(), b"", b"{", b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"zz\r\n", b"-1\r\n",
     b"5;ext=" + b"x" * 20_000 + b"\r\n", b"0\r\nTrailer: x\r\n\r\n", b"\x00" * 5000, b"GET /health HTTP/1.1\r\n\r\n"]
)  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One that is good, or made of pieces; perhaps cut off, perhaps twice on one connection."""
    headers = draw(st.lists(st.tuples(names, values), max_size=6))
    good = [(b"Host", b"127.0.0.1"), (b"Content-Type", b"application/json")] if draw(st.booleans()) else []
    head = b"\r\n".join([draw(lines), *(b": ".join(pair) for pair in [*good, *headers])])
    made = head + draw(st.sampled_from([b"\r\n\r\n", b"\n\n", b"\r\n"])) + draw(bodies)
    made *= draw(st.sampled_from([1, 1, 1, 2, 20]))
    return made[: draw(st.integers(0, len(made)))] if draw(st.booleans()) else made


def assert_answered_or_closed(port: int, said: bytes) -> None:
    """The connection ends in time, whatever was said on it; no answer is a failure of the gateway's own."""
    began, heard = time.monotonic(), b""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(CLOSED_S)
        try:
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(65536):
                heard += chunk
        except TimeoutError:
            pytest.fail("the connection stays open")
        except OSError:
            pass  # It was closed before all was said.
    assert time.monotonic() - began < CLOSED_S
    statuses = [line.split()[1] for line in heard.split(b"\r\n") if line.startswith(b"HTTP/1.")]
    assert all(status in (b"501", b"503") or not status.startswith(b"5") for status in statuses), heard[:300]


def assert_serves(port: int) -> None:
    reply = httpx.post(f"http://127.0.0.1:{port}{PATH}", json=ASKED, timeout=30, trust_env=False)
    assert reply.status_code == 200 and reply.json()["choices"][0]["message"]["content"] == "888"


def test_any_bytes_are_answered_or_hung_up_on(port: int) -> None:
    @settings(max_examples=SOCKETS)
    @given(requests())
    def hold(said: bytes) -> None:
        assert_answered_or_closed(port, said)

    hold()
    assert_serves(port)


@pytest.mark.slow
def test_thousands_of_byte_strings_are_answered_or_hung_up_on(port: int) -> None:
    @settings(max_examples=MANY_SOCKETS)
    @given(requests() | st.binary(max_size=3000))
    def hold(said: bytes) -> None:
        assert_answered_or_closed(port, said)

    hold()
    assert_serves(port)


# Bodies.

texts = st.lists(st.sampled_from([*AWKWARD, "what is 2*3?", "a", " "]), max_size=8).map("".join) | st.text(max_size=20)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.just(10**400)
junk = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
spelled = junk.map(json.dumps) | st.sampled_from(
    ['{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', '{"\\udfff": 1}', '{"a": 1, "a": 2}', '{"a": "</tool_call>"}']
)  # fmt: skip
"""JSON in a text, which may spell what a record cannot hold."""
nested = st.tuples(st.sampled_from([("[", "]"), ('{"a": ', "}")]), st.integers(1, 950)).map(
    lambda made: f'{{"a": {made[0][0] * made[1]}1{made[0][1] * made[1]}}}'
)
roles = st.sampled_from(["user", "assistant", "system", "developer", "tool", "root", ""])
calls = st.fixed_dictionaries({"id": texts, "type": st.just("function"), "function": st.fixed_dictionaries(
    {"name": st.sampled_from(["f", "calculator", "", "f f"]),
     "arguments": texts | spelled | nested | st.just("{}")})})  # fmt: skip
parts = st.fixed_dictionaries({"type": texts | st.just("text"), "text": texts})
messages = st.fixed_dictionaries(
    {"role": roles, "content": texts | junk | st.lists(parts, max_size=2)},
    optional={"tool_calls": st.lists(calls, max_size=2), "tool_call_id": texts, "name": texts},
)  # fmt: skip
schemas = st.fixed_dictionaries(
    {"type": st.sampled_from(["object", "string", "nothing"])},
    optional={"properties": st.dictionaries(texts, junk, max_size=3), "required": st.lists(texts, max_size=2),
              "$ref": st.just("#"), "enum": junk, "pattern": st.sampled_from(["(a+)+$", "[", ".*"]), "allOf": junk},
)  # fmt: skip
functions = st.fixed_dictionaries(
    {"name": st.sampled_from(["f", "g", "python", "x" * 70])}, optional={"description": texts, "parameters": schemas}
)
tools = st.fixed_dictionaries({"type": st.just("function"), "function": functions})
fields = st.dictionaries(st.sampled_from([*ChatRequest.model_fields, *NEUTRAL, "admin", "__class__"]), junk, max_size=3)


@st.composite
def asked(draw: st.DrawFn) -> bytes:
    """A body that is nearly a request, its bytes perhaps changed."""
    body = {"messages": draw(st.lists(messages, max_size=3))} | draw(fields)
    if draw(st.booleans()):
        body["messages"] = [*draw(st.lists(messages, max_size=1)), *ASKED["messages"]]
    if draw(st.booleans()):
        body["tools"] = draw(st.lists(tools, max_size=3))
    raw = json.dumps(body).encode()
    if draw(st.integers(0, 7)) == 0:
        coding = draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-7"]))
        raw = json.dumps(body, ensure_ascii=False).encode(coding, "surrogatepass")
    elif draw(st.integers(0, 3)) == 0:
        place, other = draw(st.integers(0, len(raw))), draw(st.binary(max_size=4))
        raw = raw[:place] + other + raw[place + draw(st.integers(0, 4)) :]
    return raw


def assert_taken_or_refused(raw: bytes) -> None:
    try:
        assert isinstance(parse_request(raw), ChatRequest)
    except ApiError as error:
        assert error.status in (400, 413) and len(json.dumps(error.body)) < 2000
        assert json.loads(json.dumps(error.body))["error"]["message"]


@settings(max_examples=FEW)
@given(asked())
def test_any_body_is_taken_or_refused_by_name(raw: bytes) -> None:
    assert_taken_or_refused(raw)


@pytest.mark.slow
@settings(max_examples=MANY)
@given(asked() | st.binary(max_size=200))
def test_thousands_of_bodies_are_taken_or_refused(raw: bytes) -> None:
    assert_taken_or_refused(raw)


async def _answered(gateway: Gateway, raw: bytes) -> tuple[httpx.Response, float]:
    """The answer, and the longest that the loop worked without a pause, in processor seconds."""
    longest, over = 0.0, False

    async def watch() -> None:
        nonlocal longest
        while not over:
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)

    transport = httpx.ASGITransport(app=create_app(gateway, load=False), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        watching = asyncio.ensure_future(watch())
        headers = {"Content-Type": "application/json"}
        reply = await asyncio.wait_for(http.post(PATH, content=raw, headers=headers), 60)
        over = True
        await watching
    return reply, longest


def assert_handled(gateway: Gateway, raw: bytes) -> None:
    """An answer or a refusal, and the loop was free for others meanwhile.

    A body that holds the loop does so each time; a collection of the test process's garbage does it once."""
    held_s = []
    for _ in range(3):
        reply, longest = asyncio.run(_answered(gateway, raw))
        assert reply.status_code in (200, 400, 404, 413, 503), reply.text[:300]
        held_s.append(longest)
        if longest < LOOP_S:
            return
    raise AssertionError(f"the loop was held each time: {held_s} s")


@settings(max_examples=FEW // 3)
@given(asked())
def test_any_request_is_answered_or_refused(gateway: Gateway, raw: bytes) -> None:
    assert_handled(gateway, raw)


@pytest.mark.slow
@settings(max_examples=MANY // 2)
@given(asked())
def test_thousands_of_requests_are_answered_or_refused(gateway: Gateway, raw: bytes) -> None:
    assert_handled(gateway, raw)


def call_of(arguments: str) -> dict[str, Any]:
    """A conversation in which a call has these arguments."""
    made = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    said = [{"role": "assistant", "tool_calls": [made]}, {"role": "tool", "tool_call_id": "a", "content": "1"}]
    return {"messages": [*ASKED["messages"], *said, *ASKED["messages"]]}


@settings(max_examples=60)
@given(spelled | nested)
def test_any_arguments_of_a_call_are_answered_or_refused(gateway: Gateway, arguments: str) -> None:
    assert_handled(gateway, json.dumps(call_of(arguments)).encode())


@pytest.mark.parametrize(
    "raw",
    [
        json.dumps(ASKED).encode("utf-16"),
        '{"messages": [{"role": "user", "content": "\ud800"}]}'.encode("utf-8", "surrogatepass"),
        b'{"messages": [], ' + json.dumps(ASKED).encode()[1:],
        b'{"messages": [{"role": "system", "role": "user", "content": "x"}]}',
        json.dumps({**ASKED, "budget_usd": "1E-999999999"}).encode(),
        json.dumps({**ASKED, "budget_usd": "0." + "1" * 900_000}).encode(),
        json.dumps({**ASKED, "metadata": {"x" * 900_000: "y"}}).encode(),
    ],
    ids=["another encoding", "half a pair", "two fields", "two roles", "tiny", "long number", "long name"],
)
def test_what_is_not_plain_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parse_request(raw)
    assert refused.value.status == 400 and len(json.dumps(refused.value.body)) < 2000


SHAPES: dict[str, Any] = {
    "arguments": lambda n: {"properties": {f"a{i}": {"type": "string"} for i in range(n)}},
    "required": lambda n: {"required": [f"a{i}" for i in range(n)]},
    "choices": lambda n: {"properties": {"a": {"enum": list(range(n))}}},
    "kinds": lambda n: {"anyOf": [{"required": [str(i)]} for i in range(n)]},
    "text": lambda n: {"properties": {"a": {"description": '"' * 10 * n}}},
    "definitions": lambda n: {"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(n)}},
}


@pytest.mark.parametrize("many", [1, 20])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_size_of_tools_holds_the_loop(gateway: Gateway, shape: str, many: int) -> None:
    """Up to the limit of a body, in one tool and in many."""
    for count in (300, 1_200, 40_000):
        schema = {"type": "object", **SHAPES[shape](count // many)}
        function = {"description": "d", "parameters": schema}
        tools = [{"type": "function", "function": {**function, "name": f"f{i}"}} for i in range(many)]
        raw = json.dumps({**ASKED, "tools": tools}).encode()
        assert_handled(gateway, raw[:MAX_BODY])


def named(count: int, value: Any = 0) -> dict[str, Any]:
    return {f"{number:x}": value for number in range(count)}


def said(count: int, **fields: Any) -> dict[str, Any]:
    """Messages before the question that have these fields."""
    return {"messages": [{"role": "assistant", "content": "a", **fields}] * count + ASKED["messages"]}


PART = {"type": "text", "text": ""}
CALL = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
LONG: dict[str, tuple[dict[str, Any], str]] = {
    "wrong parts": (said(1, content=[0] * 499_000), "messages"),
    "parts": (said(1, content=[PART] * 36_000), "messages"),
    "parts of many messages": (said(900, content=[PART] * 40), "messages"),
    "calls": (said(1, tool_calls=[CALL] * 17_000), "messages"),
    "unknown fields of messages": (said(900, **named(120)), "messages"),
    "unknown fields": (ASKED | named(100_000), ""),
    "metadata": (ASKED | {"metadata": named(100_000)}, "metadata"),
    "stop": (ASKED | {"stop": [0] * 490_000}, "stop"),
    "logit_bias": (ASKED | {"logit_bias": named(100_000)}, "logit_bias"),
    "tools": (ASKED | {"tools": [0] * 490_000}, "tools"),
    "names to prefer": (ASKED | {"preference": {"prefer": [0] * 490_000}}, "preference"),
    "weights": (ASKED | {"preference": {"tools": named(100_000, 9)}}, "preference"),
    "stream_options": (ASKED | {"stream_options": named(100_000)}, "stream_options"),
    "tool_choice": (ASKED | {"tool_choice": {"type": "function", "function": {"a": [0] * 400_000}}}, "tool_choice"),
}
"""Bodies of many values within `MAX_BODY`, and the field that the refusal names."""
SHORT: dict[str, tuple[dict[str, Any], str]] = {
    "parts": (said(1, content=[PART] * 1_001), "messages.0.content: at most 1000 entries"),
    "wrong parts": (said(1, content=[0] * 29_000), "messages.0.content.0: "),
    "calls": (said(1, tool_calls=[CALL] * 129), "messages.0.tool_calls: at most 128 entries"),
    "wrong calls": (said(1, tool_calls=[0] * 29_000), "messages.0.tool_calls.0: "),
    "messages": (said(1_000), "messages: at most 1000 entries"),
    "metadata": (ASKED | {"metadata": named(17, "a")}, "metadata: at most 16 entries"),
    "names": (ASKED | {"preference": {"avoid": ["a"] * 201}}, "preference.avoid: at most 200 entries"),
    "unknown fields": (ASKED | named(14_000), "unknown field "),
}
"""Fewer values, in one list; what the refusal says first."""


@pytest.mark.parametrize(("body", "told"), [*LONG.values(), *SHORT.values()], ids=[*LONG, *(f"few {k}" for k in SHORT)])
def test_no_number_of_values_takes_time_or_memory(body: dict[str, Any], told: str) -> None:
    """A refusal names the field and the limit; it costs no more than reading the body."""
    raw = json.dumps(body, separators=(",", ":")).encode()
    assert len(raw) <= MAX_BODY
    began = time.thread_time()
    with pytest.raises(ApiError) as refused:
        parse_request(raw)
    assert time.thread_time() - began < LOOP_S
    tracemalloc.start()
    with pytest.raises(ApiError):
        parse_request(raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * MAX_BODY
    message = refused.value.message
    assert message.startswith(told) and ("the body has more than 30000 names and values" in message or told in message)


def test_many_values_within_the_limit_are_taken() -> None:
    parts, commas = [PART] * 999 + [{"type": "text", "text": "hi"}], "," * 900_000
    for body in (said(4, content=parts), said(999), {"messages": [{"role": "user", "content": commas}]}):
        assert isinstance(parse_request(json.dumps(body).encode()), ChatRequest)


letters = st.sampled_from([*CONTROL, '"', "\\", "<", "a", " ", "\n", "ß", "\U0001f642", "9"])
pieces = st.lists(letters, min_size=1, max_size=4)


@settings(max_examples=12)
@given(pieces, st.integers(1, MAX_BODY))
def test_no_length_of_any_text_holds_the_loop(gateway: Gateway, parts: list[str], size: int) -> None:
    piece = "".join(parts)
    text = piece * max(1, size // len(json.dumps(piece).encode()))
    assert_handled(gateway, json.dumps({"messages": [{"role": "user", "content": text}]}).encode())
