"""Web search against a local double: the published shapes, and everything that can go wrong."""

import asyncio
import gzip
import json
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import JsonValue

from orchestra.errors import ConfigError, ToolError
from orchestra.tools.base import ToolContext, ToolResult
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.catalogue.entry import WebProvider
from orchestra.tools.http_body import MAX_BYTES, PACKED, TOO_DEEP, TOO_LONG
from orchestra.tools.rate_limits import ProviderLimits, RateLimiter
from orchestra.tools.search.corpus import NOTHING
from orchestra.tools.search.format import SHOWN, Hit, shown
from orchestra.tools.search.web import PROVIDERS, Request, SearchRefused, Tavily, WebSearch
from orchestra.tools.toolkit import Toolkit
from orchestra.tools.worst_case import worst_usd
from orchestra.types import Component, Price
from tests.support.endpoint import running
from tests.support.worlds import ROOT, catalogue

RECORDED = json.loads((Path(__file__).parent / "data/tavily.json").read_text(encoding="utf-8"))
"""Replies as Tavily's API reference shows them, by status; `ok` is a success."""
CONTEXT = ToolContext("", Price(per_call=Decimal("0.01")), 1.0)
KEY = "tvly-secret"


class Double(ThreadingHTTPServer):
    """Plays (status, reply, seconds, headers) in turn, the last for ever, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self, *script: tuple[int, Any, float, dict[str, str]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.asked = script, list[tuple[str, str, str | None, Any]]()
        self.lock, self.at_once, self.most_at_once = threading.Lock(), 0, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Double)
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        server.asked.append((self.command, self.path, self.headers["authorization"], json.loads(body or b"null")))
        status, reply, seconds, headers = server.script[min(len(server.asked), len(server.script)) - 1]
        with server.lock:
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        threading.Event().wait(seconds)
        with server.lock:
            server.at_once -= 1
        data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        try:
            self.send_response(status)
            for name, value in {"content-length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


def plays(status: int, reply: Any, seconds: float = 0, **headers: str) -> tuple[int, Any, float, dict[str, str]]:
    return status, reply, seconds, {name.replace("_", "-"): value for name, value in headers.items()}


def serving(*script: tuple[int, Any, float, dict[str, str]]) -> AbstractContextManager[Double]:
    return running(Double(*script))


def ask(tool: WebSearch, query: str = "who is Kelmar?") -> ToolResult:
    async def run() -> ToolResult:
        try:
            return await tool.call({"query": query}, CONTEXT)
        finally:
            await tool.aclose()

    return asyncio.run(run())


def tavily(double: Double, **changes: Any) -> WebSearch:
    return WebSearch("web", Tavily(), key=KEY, url=double.url, backoff_s=0.01, **changes)


def test_the_published_request_and_reply() -> None:
    with serving(plays(200, RECORDED["ok"], 0.05)) as double:
        result = ask(tavily(double, count=2, options={"topic": "news"}))
    body = {"query": "who is Kelmar?", "max_results": 2, "search_depth": "basic", "topic": "news"}
    assert double.asked == [("POST", "/search", f"Bearer {KEY}", body)]
    first = RECORDED["ok"]["results"][0]
    assert result.text.startswith(f"[1] {first['title']} <{first['url']}>\n{first['content']}\n\n[2] ")
    assert result.cost_usd == Decimal("0.01") and 0.05 <= result.latency_s < 5


def test_an_answer_comes_first_where_it_was_asked_for() -> None:
    with serving(plays(200, {**RECORDED["ok"], "answer": "A ruler."})) as double:
        assert ask(tavily(double, options={"include_answer": True})).text.startswith("[1] answer\nA ruler.\n\n[2] ")
    assert double.asked[0][3]["include_answer"] is True


def test_no_page_is_said() -> None:
    with serving(plays(200, {**RECORDED["ok"], "results": []})) as double:
        assert ask(tavily(double)).text == NOTHING


@pytest.mark.parametrize("status", [400, 401, 432, 433])
def test_what_cannot_pass_is_refused_at_once(status: int) -> None:
    with serving(plays(status, RECORDED[str(status)])) as double, pytest.raises(SearchRefused) as caught:
        ask(tavily(double))
    said = RECORDED[str(status)]["detail"]["error"]
    assert f"web: HTTP {status}: {said}" in str(caught.value) and len(double.asked) == 1 and not caught.value.retryable


def test_a_key_that_a_reply_repeats_is_not_passed_on() -> None:
    with serving(plays(401, {"detail": {"error": f"bad key {KEY}"}})) as double, pytest.raises(SearchRefused) as caught:
        ask(tavily(double))
    assert KEY not in str(caught.value) and "bad key [secret]" in str(caught.value)


def test_what_may_pass_is_tried_again() -> None:
    script = [plays(429, RECORDED["429"], retry_after="0"), plays(500, b"<html>"), plays(200, RECORDED["ok"])]
    with serving(*script) as double:
        assert ask(tavily(double)).text.startswith("[1] ")
    assert len(double.asked) == 3


@pytest.mark.parametrize(
    ("played", "said", "times"),
    [
        (plays(429, RECORDED["429"]), "HTTP 429: .* after 3 attempts", 3),
        (plays(500, b"<html>down</html>"), "HTTP 500: <html>down</html> after 3 attempts", 3),
        (plays(200, b"<html>"), "another shape", 1),
        (plays(200, {"results": [{"title": "x"}]}), r"another shape \(KeyError: 'url'\)", 1),
        (plays(200, ["x"]), "another shape", 1),
        (plays(200, {"results": [{"title": "x", "url": 5, "content": "y"}]}), "another shape", 1),
        (plays(200, b"[" * 90_000), r"another shape \(RecursionError", 1),
        (plays(200, {"results": [{"title": "x", "url": "y", "content": "z" * MAX_BYTES}]}), TOO_LONG, 1),
        (plays(500, b"x" * (MAX_BYTES + 1)), TOO_LONG, 1),
        (plays(200, b"[" * 200_000), TOO_DEEP, 1),
        (plays(200, gzip.compress(json.dumps(RECORDED["ok"]).encode()), content_encoding="gzip"), PACKED, 1),
    ],
)
def test_failures_are_typed_and_bounded(played: Any, said: str, times: int) -> None:
    with serving(played) as double, pytest.raises(ToolError, match=said) as caught:
        ask(tavily(double))
    assert len(double.asked) == times and caught.value.retryable and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("played", "deadline_s", "said"),
    [
        (plays(200, RECORDED["ok"], 60), 0.5, "no answer within 0.5 s"),
        (plays(429, RECORDED["429"], retry_after="60"), 59, r"HTTP 429: .* it asks to wait 60 s, after 1 attempt"),
    ],
)
def test_the_deadline_holds_over_hangs_and_long_waits(played: Any, deadline_s: float, said: str) -> None:
    with serving(played) as double, pytest.raises(ToolError, match=f"web: {said}"):
        ask(tavily(double, deadline_s=deadline_s))
    assert len(double.asked) <= 1


@pytest.mark.parametrize(
    ("played", "settings", "billed"),
    [
        (plays(200, RECORDED["ok"], 60), {"deadline_s": 0.5}, 1),
        (plays(200, b"<html>"), {}, 1),
        (plays(500, b"down"), {}, 0),
        (plays(401, RECORDED["401"]), {}, 0),
    ],
)
def test_what_may_be_billed_is_charged_though_it_failed(played: Any, settings: Any, billed: int) -> None:
    with serving(played) as double, pytest.raises(ToolError) as caught:
        ask(tavily(double, **settings))
    assert [charge.cost_usd for charge in caught.value.charges] == [CONTEXT.price.per_call] * billed


def test_the_worst_of_a_web_search_is_every_attempt() -> None:
    entry = catalogue().entry("search").model_copy(update={"implementation": "web_search"})
    spec = catalogue().spec("search")
    assert worst_usd(spec, entry, attempts=4) == 4 * spec.price.per_call > 0


def test_where_nothing_listens_is_said() -> None:
    with serving(plays(200, {})) as double:
        pass
    with pytest.raises(ToolError, match=r"web: ConnectError: .* after 3 attempts"):
        ask(tavily(double))


class Other:
    """Another provider is one class."""

    url = "http://127.0.0.1:9"

    def request(self, url: str, key: str, query: str, count: int, options: Mapping[str, JsonValue]) -> Request:
        return Request("GET", f"{url}/find", {"authorization": key}, params={"q": query, "n": str(count)})

    def hits(self, reply: Any) -> list[Hit]:
        return [Hit(text=line) for line in reply["lines"]]

    def complaint(self, reply: Any) -> str:
        return str(reply["why"])


def test_another_provider_is_one_class() -> None:
    script = [plays(503, {"why": "tired"}), plays(200, {"lines": ["a \ud800", "b"]})]
    with serving(*script) as double:
        found = ask(WebSearch("other", Other(), key="k", url=double.url, backoff_s=0.01), "x y")
    assert found.text == "[1] a \ufffd\n\n[2] b" and double.asked[0] == ("GET", "/find?q=x+y&n=5", "k", None)


def test_long_texts_are_cut() -> None:
    assert len(shown([Hit(title="t", text="x" * 5000)])) < SHOWN + 20


def entries(folder: Path, **changes: Any) -> Catalogue:
    """The shipped catalogue with the documented entry of a web search in it."""
    block = (
        (ROOT / "docs/reference/tools/search.md")
        .read_text(encoding="utf-8")
        .split("<!-- web_search -->\n```yaml\n")[1]
        .split("```")[0]
    )
    raw = yaml.safe_load((ROOT / "data/catalogue/tools.yaml").read_text(encoding="utf-8"))
    (entry,) = yaml.safe_load(block).values()
    raw["tools"]["web"] = {**entry, **changes}
    (folder / "tools.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    return Catalogue.load(folder / "tools.yaml", ROOT / "data/catalogue/prices.yaml", "2025-11-15")


def test_the_documented_entry_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Toolkit(entries(tmp_path, base_url_env="WEB_URL"), {}, tmp_path)
    assert kit.catalogue.spec("web").call_usd == Decimal("0.01")
    monkeypatch.delenv("TAVILY_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="TAVILY_API_KEY is not set"):
        kit.tool("web")
    monkeypatch.setenv("TAVILY_API_KEY", KEY)
    with serving(plays(200, RECORDED["ok"])) as double:
        monkeypatch.setenv("WEB_URL", double.url)
        tool = kit.tool("web")
        assert tool.component is Component.SEARCH and isinstance(tool, WebSearch)
        assert ask(tool).text.startswith("[1] ")
    assert double.asked[0][2] == f"Bearer {KEY}"


def test_the_provider_s_limits_hold_for_all_searches_and_each_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paced = []

    async def pace(self: RateLimiter) -> None:
        paced.append(self.limits)

    monkeypatch.setattr(RateLimiter, "pace", pace)
    monkeypatch.setattr("orchestra.tools.chat.retries.MAX_BACKOFF_S", 0.01)
    monkeypatch.setenv("TAVILY_API_KEY", KEY)
    limits = ProviderLimits(concurrency=2, attempts=2)
    world = replace(entries(tmp_path, base_url_env="WEB_URL"), providers={"tavily": limits})
    kits = [Toolkit(world, {}, tmp_path) for _ in range(2)]

    async def whole() -> list[ToolResult | BaseException]:
        tools = [kit.tool("web") for kit in kits]
        asked = [tool.call({"query": "who?"}, CONTEXT) for tool in tools for _ in range(4)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        for kit in kits:
            await kit.aclose()
        return found

    with serving(plays(429, RECORDED["429"], 0.02)) as double:
        monkeypatch.setenv("WEB_URL", double.url)
        failed = asyncio.run(whole())
    assert double.most_at_once <= 2 and len(double.asked) == 16 and paced == [limits] * 16
    assert all("after 2 attempts — ask less at once: the catalogue's providers" in str(one) for one in failed)


@pytest.mark.parametrize("changes", [{"provider": None}, {"api_key_env": None}])
def test_an_entry_without_provider_or_key_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"tools\.web: web_search needs .* — name the provider \(tavily\)"):
        entries(tmp_path, **changes)


def test_an_unknown_provider_is_refused_with_the_names_of_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tools\.web\.provider: Input should be 'tavily' \(got 'altavista'\)"):
        entries(tmp_path, provider="altavista")


def test_every_named_provider_has_its_class() -> None:
    assert set(PROVIDERS) == set(get_args(WebProvider))


def test_without_an_address_the_provider_s_own_is_asked() -> None:
    assert replace(Tavily().request(Tavily.url, "k", "q", 1, {}), body=None).url == "https://api.tavily.com/search"
