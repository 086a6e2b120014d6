"""What a model is asked when it writes an object: its schema in words, its limits, and one more try for a cut reply."""

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestra.accounting.budget import Budget
from orchestra.config.judge import JudgeSettings
from orchestra.config.schema import load_params
from orchestra.config.synthesis import ModelWriting
from orchestra.errors import DataError
from orchestra.synthesis.writers.domains import Subjects
from orchestra.synthesis.writers.endpoint import URL, writing_chat
from orchestra.synthesis.writers.prompts import REPAIR, SHORTER, SUBJECTS
from orchestra.synthesis.writers.structured import Writer, as_json
from orchestra.tools.chat.client import Chat
from orchestra.tools.experts.metered import PaidChat
from orchestra.types import Component, Price
from tests.support.endpoint import answer, serving
from tests.support.experts import expert
from tests.support.worlds import ROOT

PRICE = Price(input_per_million=Decimal(1), output_per_million=Decimal(1))
GOOD = json.dumps({"subjects": [{"name": "museum", "subject": "who shows which painting where"}]})


def reply(content: Any, finish: str = "stop") -> tuple[int, Any, float]:
    body = answer(content)
    body["choices"][0]["finish_reason"] = finish
    return 200, body, 0


CUT = {
    "half an object": reply(GOOD[:40], "length"),
    "no word after its thoughts": reply("", "length"),
    "thoughts without an end": reply("<think>let me see", "length"),
}


def write(
    folder: Path, replies: list[tuple[int, Any, float]], **options: Any
) -> tuple[Subjects | DataError, list[Any]]:
    """What came of it, and the requests."""

    async def made() -> Subjects:
        values = {"count": "1", "taken": "none"}
        try:
            return await writer.write(Subjects, SUBJECTS, values, seed=3)
        finally:
            await writer.chat.aclose()

    with serving(replies) as double:
        chat = Chat("m-1", model="m-1", url=double.url, backoff_s=0.01)
        paid = PaidChat(chat, PRICE, Budget(folder / "ledger.jsonl", Decimal(1)), Component.GENERATOR)
        writer = Writer(paid, **options)
        try:
            return asyncio.run(made()), double.asked
        except DataError as error:
            return error, double.asked


def test_the_prompt_holds_the_schema_for_endpoints_that_ignore_the_response_format(tmp_path: Path) -> None:
    made, (request,) = write(tmp_path, [reply(GOOD)])
    schema = Subjects.model_json_schema()
    assert isinstance(made, Subjects) and as_json(schema) in request["messages"][0]["content"]
    assert request["response_format"]["json_schema"] == {"name": "Subjects", "schema": schema}
    assert (request["max_completion_tokens"], request["temperature"], request["seed"]) == (6_000, 1.0, 3)
    assert set(request) == {"model", "messages", "max_completion_tokens", "response_format", "seed", "temperature"}


def test_a_limit_and_settings_of_its_own_are_sent(tmp_path: Path) -> None:
    settings = {"reasoning_effort": "low", "temperature": 0.6}
    _, (request,) = write(tmp_path, [reply(GOOD)], max_tokens=20_000, settings=settings)
    assert (request["max_completion_tokens"], request["reasoning_effort"]) == (20_000, "low")
    assert request["temperature"] == 0.6 and request["seed"] == 3


@pytest.mark.parametrize("case", CUT)
def test_a_cut_reply_is_asked_for_once_more_and_the_model_is_told_why(tmp_path: Path, case: str) -> None:
    made, (first, again) = write(tmp_path, [CUT[case], reply(GOOD)])
    assert isinstance(made, Subjects)
    told = first["messages"][1]["content"] + "\n\n" + SHORTER.fill(tokens="6000")
    assert [one["content"] for one in again["messages"]] == [first["messages"][0]["content"], told]


@pytest.mark.parametrize("case", CUT)
def test_the_second_cut_ends_it_with_the_setting_that_helps(tmp_path: Path, case: str) -> None:
    error, asked = write(tmp_path, [CUT[case]], max_tokens=500)
    assert isinstance(error, DataError) and len(asked) == 2
    assert str(error) == (
        "Subjects by m-1: its replies were cut off after 500 output tokens, thoughts included — raise the writer's "
        "max_output_tokens, or name a model that thinks less"
    )
    assert "max_output_tokens" in ModelWriting.model_fields


def test_a_cut_after_two_refusals_is_the_last_and_a_whole_object_at_the_limit_is_none(tmp_path: Path) -> None:
    error, asked = write(tmp_path, [reply("{}"), reply("{}"), CUT["half an object"]])
    assert isinstance(error, DataError) and "cut off" in error.what and len(asked) == 3
    made, asked = write(tmp_path, [reply("{}"), CUT["half an object"], reply(GOOD, "length")])
    assert isinstance(made, Subjects) and len(asked) == 3
    assert asked[2]["messages"][3]["content"].startswith(REPAIR.text[:15]) and len(asked[2]["messages"]) == 4


@pytest.mark.parametrize("name", ["tools", "real", "current"])
@pytest.mark.parametrize(("row", "limit"), [("together/llama-3.3-70b", "max_tokens"), ("openai/gpt-5-mini", None)])
def test_the_limit_of_a_writer_is_named_as_its_provider_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, row: str, limit: str | None
) -> None:
    monkeypatch.setenv(URL, "http://127.0.0.1:9/v1")
    changed = {"catalogue": f"data/catalogue/{name}.yaml", "price_date": "2026-11-28"}
    world = load_params(ROOT / "params.yaml").world.model_copy(update=changed)
    chat = writing_chat(world, ROOT, "m", row, Budget(tmp_path / "ledger.jsonl", None))
    assert chat.limit.parameter == (limit or "max_completion_tokens")


KEYS = ["messages", "model", "tools", "max_tokens", "max_completion_tokens", "n", "stream"]


@pytest.mark.parametrize("key", KEYS)
def test_settings_cannot_change_what_the_cap_and_the_reading_rely_on(key: str) -> None:
    known: dict[str, Any] = {"model": "m-1", "price": "openai/gpt-5-mini", "cap_usd": 1.0}
    assert ModelWriting(**known).model_dump() == known, "the defaults keep the bytes of older records"
    refused = f"must not hold {key}, which each request says by itself"
    with pytest.raises(ValidationError, match=refused):
        ModelWriting(**known, settings={key: 1})
    with pytest.raises(ValidationError, match=refused):
        JudgeSettings(model="m-1", price="openai/gpt-5-mini", settings={key: None})
    for field in ("settings", "orchestrator_settings"):
        with pytest.raises(ValidationError, match=refused):
            expert(**{field: {"temperature": 1, key: None}})
