"""Clients of others: schemathesis over the OpenAPI description, LangChain, and the official client's errors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from schemathesis.checks import CheckContext
from schemathesis.specs.openapi import checks

from orchestra.errors import ServiceError
from orchestra.rollout.policies.base import Conversation
from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from orchestra.serving.wire.openapi import description
from tests.support.real_gateway import listening
from tests.support.serving_world import backend
from tests.unit.serving.test_own_tools import both

schema = schemathesis.openapi.from_dict(description())


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Gateway:
    folder: Path = tmp_path_factory.mktemp("gateway")

    def decide(conversation: Conversation) -> str:
        if "break" in conversation.example.instruction:
            raise ServiceError("gone", where="vLLM")
        return both(conversation)

    return Gateway(folder, backend=backend(folder, decide))


@pytest.fixture(scope="module")
def url(gateway: Gateway) -> Iterator[str]:
    with listening(create_app(gateway, load=False)) as port:
        yield f"http://127.0.0.1:{port}"


def typed(_: CheckContext, response: Any, case: Any) -> None:
    """A failure of the server says whose it is."""
    if response.status_code >= 500:
        error = response.json()["error"]
        assert error["type"] != "server_error" and error["code"], f"{case.method} {case.path}: {error}"


CHECKS: Any = [
    typed,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


@schema.parametrize()
@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_answer_is_one_that_the_description_has(case: Any, url: str) -> None:
    case.call_and_validate(base_url=url, checks=CHECKS)


def model(url: str, **options: Any) -> Any:
    make: Any = ChatOpenAI
    return make(base_url=f"{url}/v1", api_key="none", model="orchestrator", max_retries=0, **options)


def test_langchain_asks_and_streams(url: str) -> None:
    chat = model(url, temperature=0, max_tokens=500)
    said = chat.invoke([SystemMessage("be brief"), HumanMessage("what is 37*24? Ovel owes 12")])
    assert "888" in str(said.content)
    assert said.usage_metadata is not None and said.usage_metadata["total_tokens"] > 0
    pieces = [str(piece.content) for piece in chat.stream("what is 37*24? Ovel owes 12")]
    assert "".join(pieces) == said.content


def test_langchain_brings_a_tool_and_its_result(url: str) -> None:
    def look_up(reader: str) -> str:
        """Looks a reader up."""
        return f"{reader} owes 12"

    mine: Any = tool(look_up)

    chat = model(url).bind_tools([mine])
    messages: list[Any] = [HumanMessage("what is 37*24, and what does Ovel owe?")]
    said = chat.invoke(messages)
    (call,) = said.tool_calls
    assert call["name"] == "look_up" and call["args"] == {"reader": "Ovel"}
    messages += [said, mine.invoke(call)]
    assert chat.invoke(messages).content == "888 and 12"


@pytest.mark.parametrize(
    ("kind", "question", "headers"),
    [
        (openai.InternalServerError, "break", {}),
        (openai.PermissionDeniedError, "what is 1+1?", {"Host": "elsewhere.example"}),
        (openai.BadRequestError, "", {}),
    ],
)
def test_the_official_client_has_a_class_for_each_failure(
    url: str, kind: type[openai.APIStatusError], question: str, headers: dict[str, str]
) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    with pytest.raises(kind) as failed:
        client.chat.completions.create(
            model="orchestrator", messages=[{"role": "user", "content": question}], extra_headers=headers
        )
    assert failed.value.code and failed.value.type and failed.value.request_id


def test_an_idempotency_key_of_another_request_is_a_conflict(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    headers = {"Idempotency-Key": "stranger"}

    def ask(question: str) -> Any:
        return client.chat.completions.create(
            model="orchestrator", messages=[{"role": "user", "content": question}], extra_headers=headers
        )

    assert ask("what is 1+1?").id == ask("what is 1+1?").id
    with pytest.raises(openai.ConflictError):
        ask("what is 2+2?")
