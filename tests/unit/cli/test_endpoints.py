"""What doctor asks the endpoints of real experts: one list of models for each address and key, and no key is shown."""

import json
import re
from collections.abc import Callable
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestra.cli.common import CheckResult
from orchestra.cli.endpoints import check_endpoints
from orchestra.cli.readiness import examine_profile
from orchestra.config.schema import load_params
from orchestra.tools.catalogue.catalogue import read_catalogue
from orchestra.tools.catalogue.entry import Entry
from tests.support.endpoint import running
from tests.support.worlds import ROOT

REAL = read_catalogue(ROOT / "data/catalogue/real.yaml").tools
TODAY = date(2026, 11, 28)
KEY = "sk-0123456789"
FILE = "data/catalogue/real.yaml"
MODELS = [{"id": "gpt-5", "object": "model"}, {"id": "gpt-5-mini-2025-08-07"}]
LIST = {"object": "list", "data": MODELS}


class Lists(ThreadingHTTPServer):
    """Answers every GET alike; keeps the paths and the keys."""

    def __init__(self, status: int, said: Any) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.said, self.asked = status, said, list[tuple[str, str | None]]()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Lists)
        self.server.asked.append((self.path, self.headers.get("authorization")))
        body = self.server.said if isinstance(self.server.said, bytes) else json.dumps(self.server.said).encode()
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


Ask = Callable[..., tuple[list[CheckResult], list[tuple[str, str | None]]]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """What is found at OPENAI_BASE_URL, and the requests there."""

    def found(
        status: int, said: Any, key: str | None = KEY, tools: dict[str, Entry] | None = None
    ) -> tuple[list[CheckResult], list[tuple[str, str | None]]]:
        with running(Lists(status, said)) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1/")
            monkeypatch.delenv("OPENAI_API_KEY", raising=False)
            if key is not None:
                monkeypatch.setenv("OPENAI_API_KEY", key)
            results = list(check_endpoints(experts() if tools is None else tools, FILE, TODAY))
        assert all(KEY not in one.found + one.fix for one in results)
        return results, server.asked

    return found


def experts(**update: Any) -> dict[str, Entry]:
    names = ("gpt-5", "gpt-5-search", "gpt-5-mini")
    return {name: REAL[name].model_copy(update={"retires": None, **update}) for name in names}


def test_one_request_with_the_key_says_that_all_is_there(ask: Ask) -> None:
    results, asked = ask(200, LIST)
    assert asked == [("/v1/models", f"Bearer {KEY}")]
    assert results == [CheckResult("ok", "endpoint", "OPENAI_BASE_URL answers (HTTP 200)")]


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_named_by_its_variable(ask: Ask, status: int) -> None:
    results, _ = ask(status, {"error": f"Incorrect API key provided: {KEY}"})
    told = f"OPENAI_BASE_URL refuses its key (HTTP {status})"
    assert results == [CheckResult("warning", "endpoint", told, "check $OPENAI_API_KEY")]


def test_without_a_key_nothing_is_said_of_it_unless_the_catalogue_names_none(ask: Ask) -> None:
    results, asked = ask(401, {}, key=None)
    assert [one.level for one in results] == ["ok"] and asked == [("/v1/models", None)]
    results, _ = ask(401, {}, tools=experts(api_key_env=None))
    told = "OPENAI_BASE_URL wants a key (HTTP 401)"
    assert results == [CheckResult("warning", "endpoint", told, "name the variable of its key: api_key_env")]


def test_a_key_that_no_request_can_carry_is_no_silent_endpoint(ask: Ask) -> None:
    for key in ("clé", "two\nlines"):
        results, asked = ask(200, LIST, key=key)
        assert [one.fix for one in results] == ["check $OPENAI_API_KEY"] and not asked


def test_an_address_without_a_list_is_a_wrong_one(ask: Ask) -> None:
    results, _ = ask(404, {})
    assert [(one.level, one.found) for one in results] == [
        ("warning", "OPENAI_BASE_URL has no list of models (HTTP 404)")
    ]
    assert "/v1" in results[0].fix


def test_a_model_that_the_list_lacks_is_a_warning(ask: Ask) -> None:
    for said in ({"data": MODELS[:1]}, MODELS[:1], {"data": [*MODELS[:1], {"id": "gpt-5-mini-2507"}]}):
        (result,), _ = ask(200, said)
        assert (result.level, result.found) == ("warning", "OPENAI_BASE_URL does not list gpt-5-mini")
        assert FILE in result.fix


@pytest.mark.parametrize(
    "said",
    [
        {"data": []}, {"data": [{"id": "gpt-5"}], "has_more": True},
        {"data": [{"id": "gpt-5"}], "next_page_token": "x"},
        {"data": [{"name": "gpt-5"}]}, {"models": []}, [1], "gpt-5", b"<html>", b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_whole_list_proves_nothing(ask: Ask, said: Any) -> None:
    results, _ = ask(200, said)
    assert [one.level for one in results] == ["ok"]


def test_each_key_of_an_address_is_asked_once(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", "sk-other")
    tools = experts() | {"second": REAL["gpt-5"].model_copy(update={"api_key_env": "OTHER_KEY"})}
    results, asked = ask(200, LIST, tools=tools)
    assert [key for _, key in asked] == [f"Bearer {KEY}", "Bearer sk-other"] and len(results) == 2


def test_a_list_that_dates_the_end_of_a_model_is_read(ask: Ask) -> None:
    def dated(day: Any) -> dict[str, Any]:
        return {"data": [{"id": "gpt-5", "shutdown_date": day}, {"id": "gpt-5-mini", "shutdown_date": None}]}

    (result,), _ = ask(200, dated("2026-12-11"))
    assert (result.level, result.found) == ("warning", "OPENAI_BASE_URL lists the end of gpt-5 on 2026-12-11")
    for day in ("2027-12-11", "soon", 7):
        assert [one.level for one in ask(200, dated(day))[0]] == ["ok"]
    known = experts(retires=date(2026, 12, 11))
    assert [one.level for one in ask(200, dated("2026-12-11"), tools=known)[0]] == ["ok"], "doctor says it already"


def test_an_own_vllm_server_is_asked_for_its_models_and_a_search_is_not(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = REAL["qwen2.5-math-7b"].model_copy(update={"base_url_env": "OPENAI_BASE_URL"})
    served = {"object": "list", "data": [{"id": own.endpoint_model, "root": "/models/x", "max_model_len": 4096}]}
    assert [one.level for one in ask(200, served, tools={"own": own})[0]] == ["ok"]
    (result,), _ = ask(200, {"data": [{"id": "default"}]}, tools={"own": own})
    assert result.found == f"OPENAI_BASE_URL does not list {own.endpoint_model}"
    search = REAL["web_search"].model_copy(update={"base_url_env": "OPENAI_BASE_URL"})
    results, asked = ask(404, {}, tools={"web_search": search})
    assert [one.level for one in results] == ["ok"] and asked == [("/v1/models", None)]


@pytest.mark.parametrize("host", ["api.anthropic.com", "anthropic.com:443"])
def test_anthropic_is_asked_as_its_own_api_wants_it(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """A key as Bearer is refused there; a list has 20 models a page where the request does not say more."""
    models = [{"id": f"claude-{number}", "type": "model"} for number in range(30)] + [{"id": "claude-opus-4-1"}]

    def get(url: str, headers: dict[str, str], timeout: float) -> httpx.Response:
        assert url.partition("?")[0] == f"https://{host}/v1/models"
        if headers != {"x-api-key": KEY, "anthropic-version": "2023-06-01"}:
            return httpx.Response(401, json={"error": {"message": "Invalid bearer token"}})
        most = int(httpx.URL(url).params.get("limit", 20))
        return httpx.Response(200, json={"data": models[:most], "has_more": most < len(models)})

    monkeypatch.setattr(httpx, "get", get)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"https://{host}/v1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    there, gone = (
        REAL["claude-opus-4.1"].model_copy(update={"endpoint_model": f"claude-opus-{v}"}) for v in ("4-1", "9")
    )
    (result,) = check_endpoints({"one": there}, FILE, TODAY)
    assert (result.level, result.found) == ("ok", "ANTHROPIC_BASE_URL answers (HTTP 200)")
    (result,) = check_endpoints({"one": gone}, FILE, TODAY)
    assert result.found == "ANTHROPIC_BASE_URL does not list claude-opus-9"
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-old")
    (result,) = check_endpoints({"one": there}, FILE, TODAY)
    assert result.fix == "check $ANTHROPIC_API_KEY"


def test_no_other_host_is_sent_a_key_as_anthropic_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[str, dict[str, str]]]()

    def get(url: str, headers: dict[str, str], timeout: float) -> httpx.Response:
        asked.append((url, headers))
        return httpx.Response(200, json=LIST)

    monkeypatch.setattr(httpx, "get", get)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for host in ("anthropic.com.example", "notanthropic.com"):
        monkeypatch.setenv("OPENAI_BASE_URL", f"https://{host}/v1")
        list(check_endpoints(experts(), FILE, TODAY))
        assert asked.pop() == (f"https://{host}/v1/models", {"Authorization": f"Bearer {KEY}"})


def retiring(folder: Path, day: date) -> Path:
    """A workspace whose gpt-5 retires on that day."""
    (folder / "data/catalogue").mkdir(parents=True)
    for file in (ROOT / "data/catalogue").iterdir():
        text = file.read_text(encoding="utf-8")
        if file.name == "real.yaml":
            text = re.sub(r"^    retires: .*\n", "", text, flags=re.MULTILINE)
            text = text.replace("  gpt-5:\n", f"  gpt-5:\n    retires: {day}\n")
        (folder / "data/catalogue" / file.name).write_text(text, encoding="utf-8")
    return folder


def test_doctor_names_the_models_that_retire_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = load_params(ROOT / "params.yaml")
    world = params.world.model_copy(update={"catalogue": FILE, "price_date": "2026-08-06"})
    for entry in REAL.values():
        if entry.base_url_env:
            monkeypatch.delenv(entry.base_url_env, raising=False)
    tomorrow = date.fromordinal(date.today().toordinal() + 1)
    root = retiring(tmp_path, tomorrow)
    found = {one.what: one for one in examine_profile(root, params.model_copy(update={"world": world}))}
    assert found["models"].level == "warning" and found["models"].found == f"gpt-5 retires on {tomorrow}"
    assert "retires" not in found["prices"].found
