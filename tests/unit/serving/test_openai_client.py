"""The official client of OpenAI as a stranger: chat, streams, tools, models, and its classes of errors."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest

from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from orchestra.system.processes import LOCALHOST, server_socket
from tests.support.real_gateway import listening
from tests.support.serving_world import backend
from tests.unit.serving.test_own_tools import LOOK_UP, both

QUESTION = "what is 37*24, and what does Ovel owe?"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Gateway:
    folder: Path = tmp_path_factory.mktemp("gateway")
    return Gateway(folder, backend=backend(folder, both))


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with listening(create_app(gateway, load=False)) as port:
        yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def ask(client: openai.OpenAI, messages: list[Any], **options: Any) -> Any:
    return client.chat.completions.create(model="orchestrator", messages=messages, tools=[LOOK_UP], **options)  # type: ignore[list-item]


def test_tools_over_several_turns(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": QUESTION}]
    handed_over = 0
    while True:
        reply = ask(client, messages)
        message = reply.choices[0].message
        if not message.tool_calls:
            break
        assert reply.choices[0].finish_reason == "tool_calls" and message.content is None
        handed_over += 1
        (call,) = message.tool_calls
        assert json.loads(call.function.arguments) == {"reader": "Ovel"}
        # As the client gives it back, every field of it.
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "Ovel owes 12"}]
    assert handed_over == 1 and message.content == "888 and 12" and reply._request_id.startswith("req_")
    assert reply.usage.total_tokens > 0 and reply.orchestra["turns"] == 1


def test_streams(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    chunks = list(ask(client, messages, stream=True, stream_options={"include_usage": True}))
    (call,) = [c.choices[0].delta.tool_calls[0] for c in chunks if c.choices and c.choices[0].delta.tool_calls]
    assert call.function.name == "look_up" and chunks[-1].usage.total_tokens > 0 and not chunks[-1].choices
    with client.chat.completions.stream(
        model="orchestrator",
        messages=[{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "owes 5"},
                  {"role": "user", "content": "888?"}],
    ) as stream:  # fmt: skip
        final = stream.get_final_completion()
    assert str(final.choices[0].message.content).startswith("888 and 5")


def test_models(client: openai.OpenAI) -> None:
    (listed,) = client.models.list().data
    assert client.models.retrieve("orchestrator") == listed
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


def test_classes_of_errors(client: openai.OpenAI, gateway: Gateway) -> None:
    asked = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.BadRequestError) as wrong:
        ask(client, asked, temperature=1.5)
    assert wrong.value.param == "temperature" and wrong.value.code == "unsupported_parameter"
    with pytest.raises(openai.BadRequestError):
        ask(client, asked, extra_body={"budget_us": 1})
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "x"}])
    with server_socket() as silent, pytest.raises(openai.APITimeoutError):
        silent.bind((LOCALHOST, 0))
        silent.listen()
        late = client.with_options(base_url=f"http://{LOCALHOST}:{silent.getsockname()[1]}/v1", timeout=0.2)
        late.models.list()
    # From the first key on; so it is the last test of this gateway.
    _, limited = gateway.keys.create("slow", per_minute=1)
    _, poor = gateway.keys.create("poor", budget_usd=Decimal(0))
    with pytest.raises(openai.AuthenticationError):
        ask(client, asked)
    ask(client.with_options(api_key=limited), asked)
    with pytest.raises(openai.RateLimitError):
        ask(client.with_options(api_key=limited), asked)
    with pytest.raises(openai.RateLimitError) as spent:
        ask(client.with_options(api_key=poor), asked)
    assert spent.value.code == "insufficient_quota"


def test_what_would_come_again_is_asked_for_once(tmp_path: Path) -> None:
    """With as many repetitions as the client makes unless it is told otherwise."""
    made = Gateway(tmp_path, backend=backend(tmp_path, lambda _: "<tool_call>no call"))
    rich, poor = (made.keys.create("k", budget_usd=Decimal(usd)) for usd in (1, 0))
    with listening(create_app(made, load=False)) as port:
        for key, kind in ((rich, openai.InternalServerError), (poor, openai.RateLimitError)):
            asking = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key[1])
            assert asking.max_retries > 0
            with pytest.raises(kind):
                ask(asking, [{"role": "user", "content": "hello?"}])
    assert [key.requests for key in made.keys.list()] == [1, 1]
