"""Recorded calls: found by request and entry, in their order, with their failures, and without a secret."""

import asyncio
import json
import random
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import JsonValue

from orchestra.errors import CallError, ConfigError, DataError, ToolError
from orchestra.tools.base import Tool, ToolContext, ToolResult
from orchestra.tools.catalogue.entry import Entry
from orchestra.tools.chat.client import Chat
from orchestra.tools.chat.reply import ChatReply
from orchestra.tools.failures import CircuitError, DeadlineError, EndpointError, Failure, ReplyError, Unusable
from orchestra.tools.replay.cassette import SETTING, Cassette, Mode, Recorded, secrets_of
from orchestra.tools.replay.tool import TapedTool
from orchestra.types import Charge, Component, Price, Usage
from tests.support.endpoint import answer, ended, serving
from tests.support.worlds import catalogue

KEY = "sk-live-0123456789"
BODY = {"messages": [{"role": "user", "content": "who?"}]}


def chat(file: Path, url: str = "http://127.0.0.1:9/v1", mode: Mode = "auto", entry: str = "", key: str = "") -> Chat:
    return Chat(
        "one", model="m-1", url=url, key=key, attempts=1, backoff_s=0.01, cassette=Cassette(file, mode), entry=entry
    )


def ask(asked: Chat, text: str = "who?") -> ChatReply:
    async def once() -> ChatReply:
        try:
            return await asked.ask({"messages": [{"role": "user", "content": text}]})
        finally:
            await asked.aclose()

    return asyncio.run(once())


def test_the_catalogue_entry_is_part_of_the_key_but_not_what_it_never_sees(tmp_path: Path) -> None:
    entry = catalogue().entry("gpt-5")
    same = entry.model_copy(update={"description": "other words", "price": "openai/gpt-5-mini", "latency_s": 1.0})
    assert entry.model_copy(update={"orchestrator_settings": {"seed": 1}}).fingerprint == entry.fingerprint
    other = entry.model_copy(update={"role": "math"})
    assert entry.fingerprint == same.fingerprint != other.fingerprint
    with serving([(200, answer("Tesk"), 0)]) as double:
        ask(chat(tmp_path / "tape", double.url, entry=entry.fingerprint))
    assert ask(chat(tmp_path / "tape", mode="replay", entry=same.fingerprint)).text == "Tesk"
    for unknown in (other.fingerprint, ""):
        with pytest.raises(ConfigError, match="no recorded reply to request"):
            ask(chat(tmp_path / "tape", mode="replay", entry=unknown))


def test_failures_replay_as_they_were_and_auto_asks_again(tmp_path: Path) -> None:
    file = tmp_path / "tape"
    with serving([(503, {}, 0), (200, answer(None), 0), (200, answer("Tesk"), 0)]) as double:
        for text in ("down?", "empty?"):
            with pytest.raises(EndpointError):
                ask(chat(file, double.url), text)
        with pytest.raises(EndpointError, match="HTTP 503 after 1 attempt"):
            ask(chat(file, mode="replay"), "down?")
        with pytest.raises(ReplyError, match="an empty answer") as error:
            ask(chat(file, mode="replay"), "empty?")
        assert error.value.unusable is Unusable.EMPTY and error.value.lost[0] == Usage(
            input_tokens=100, cached_input_tokens=40, output_tokens=7
        )
        assert ask(chat(file, double.url), "down?").text == "Tesk" and len(double.asked) == 3
    assert ask(chat(file, mode="replay"), "down?").text == "Tesk", "the later line of a number takes its place"


@pytest.mark.parametrize("own_counts", [True, False])
def test_auto_replays_thoughts_that_did_not_end_where_they_are_the_result(tmp_path: Path, own_counts: bool) -> None:
    def asked(mode: Mode = "auto") -> str:
        tape = Cassette(tmp_path / "tape", mode)
        try:
            return ask(Chat("one", model="m-1", url=double.url, cassette=tape, own_counts=own_counts)).text
        except ReplyError as error:
            return str(error.unusable)

    with serving([(200, ended("length"), 0), (200, answer("Tesk"), 0)]) as double:
        assert [asked(), asked("replay")] == ["truncated"] * 2
        assert [asked(), asked("replay")] == (["truncated"] * 2 if own_counts else ["Tesk"] * 2)
        assert len(double.asked) == (1 if own_counts else 2)


@pytest.mark.parametrize(
    "error",
    [
        ToolError("a", where="b", fix="c"),
        CallError("bad arguments"),
        EndpointError("HTTP 401", where="x"),
        DeadlineError("late", where="x"),
        CircuitError("open", wait_s=3.5, where="x"),
        ReplyError("cut", unusable=Unusable.TRUNCATED, where="x"),
    ],
)
def test_every_failure_comes_back_as_itself(error: ToolError | CallError) -> None:
    if isinstance(error, EndpointError):
        error.seconds, error.lost = 1.5, (None, Usage(output_tokens=3))
    kept = Failure.model_validate_json(Failure.of(error).model_dump_json())
    again = kept.error()
    assert type(again) is type(error) and str(again) == str(error) and Failure.of(again) == kept


def test_no_secret_is_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key in request, reply and error, the value of any variable that is named as a secret, and no address."""
    other = 'pass"word\\2é'
    monkeypatch.setenv("SEARCH_API_TOKEN", other)
    file = tmp_path / "tape"
    said = f"{KEY} and {other} and {KEY[:7]}"
    with serving([(200, answer(said), 0), (401, {"error": f"bad key {KEY}"}, 0)]) as double:
        assert ask(chat(file, double.url, key=KEY), f"is it {KEY} or {other}?").text == said
        with pytest.raises(EndpointError) as error:
            ask(chat(file, double.url, key=KEY), "again?")
        assert KEY not in str(error.value) and double.keys == [f"Bearer {KEY}"] * 2
    text = file.read_text(encoding="utf-8")
    for form in (KEY, other, json.dumps(other)[1:-1], str(double.server_port), "Bearer", "127.0.0.1"):
        assert form not in text
    assert text.count("[secret]") == 5
    assert ask(chat(file, mode="replay"), f"is it {KEY} or {other}?").text == f"[secret] and [secret] and {KEY[:7]}"


def test_a_line_cut_by_a_kill_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "tape"
    with serving([(200, answer("one"), 0), (200, answer("two"), 0)]) as double:
        ask(chat(file, double.url), "a?")
        whole = file.read_bytes()
        file.write_bytes(whole + whole[:50])
        assert ask(chat(file, double.url), "b?").text == "two"
    assert [ask(chat(file, mode="replay"), text).text for text in ("a?", "b?")] == ["one", "two"]


def recorded(number: int) -> Recorded:
    return Recorded(key=f"{number:064x}", scope=f"s{number}", number=0, request={"n": number}, reply={"text": "é"})


def spoiled(rng: random.Random, line: bytes) -> bytes:
    """A whole line with a byte changed, cut short, or with bytes that are no text in it; none of them a line's end."""
    at = rng.randrange(len(line) - 1)
    junk = bytes(rng.choice([*range(10), *range(11, 256)]) for _ in range(rng.randint(1, 9)))
    return rng.choice([line[:at] + junk + line[at + 1 : -1], line[:at], line[:at] + b"\xff\xfe" + line[at:-1]]) + b"\n"


@pytest.mark.parametrize("seed", range(300))
def test_the_line_about_a_damaged_cassette_says_what_helps(seed: int, tmp_path: Path) -> None:
    """It is there, so recording it is no advice; without its damaged lines the others replay."""
    rng, file, mode = random.Random(seed), tmp_path / "tape", ("auto", "replay")[seed % 2]
    lines = [recorded(number).model_dump_json().encode() + b"\n" for number in range(6)]
    struck = rng.sample(range(6), rng.randint(1, 2))
    damaged = [spoiled(rng, line) if number in struck else line for number, line in enumerate(lines)]
    file.write_bytes(b"".join(damaged))
    try:
        Cassette(file, mode)  # type: ignore[arg-type]  # One of two.
    except DataError as error:
        assert file.name in error.where and "record it first" not in str(error)
        assert "bring the file back" in error.fix and "delete its damaged lines" in error.fix
    else:
        assert all(json.loads(line) for line in file.read_bytes().splitlines())
    file.write_bytes(b"".join(line for number, line in enumerate(damaged) if number not in struck))
    cassette = Cassette(file, "replay")
    for number in range(6):
        found = cassette._recorded.get((f"s{number}", f"{number:064x}"), {}).get(0)
        assert (found is None) == (number in struck)


@pytest.mark.parametrize("mode", ["replay", "auto", "record"])
def test_only_a_replay_needs_the_file(mode: Mode, tmp_path: Path) -> None:
    if mode != "replay":
        assert Cassette(tmp_path / "tape", mode).asked == 0
        return
    with pytest.raises(DataError, match="tape: no such file — record it first: mode auto"):
        Cassette(tmp_path / "tape", mode)


def test_the_setting_names_mode_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    assert Cassette.from_environment() is None
    monkeypatch.setenv(SETTING, f"record:{tmp_path}/a:b.jsonl")
    made = Cassette.from_environment()
    assert made is not None and (made.mode, made.path.name) == ("record", "a:b.jsonl")
    for wrong in ("replay", "play:x", ":x", "auto:"):
        monkeypatch.setenv(SETTING, wrong)
        with pytest.raises(ConfigError, match=r"is not a cassette setting .* record, replay, auto"):
            Cassette.from_environment()


@pytest.mark.parametrize("mode", ["record", "auto"])
def test_a_run_that_asks_nothing_can_be_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    """As the default profile, whose experts are simulated."""
    file = tmp_path / "work/run.jsonl"
    for again in (mode, "replay", mode):
        monkeypatch.setenv(SETTING, f"{again}:{file}")
        made = Cassette.from_environment()
        assert made is not None and made.mode == again and file.read_bytes() == b""


class Web:
    """What a web search is to a cassette: another answer each time, a price a call, a failure, a refusal."""

    component = Component.SEARCH

    def __init__(self) -> None:
        self.calls = 0

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        self.calls += 1
        if arguments["query"] == "down":
            raise ToolError("HTTP 500", where="web")
        if arguments["query"] == "":
            raise CallError("an empty query")
        return ToolResult(text=f"page {self.calls}", cost_usd=context.price.per_call, latency_s=0.25 * self.calls)


def test_a_taped_tool_is_as_ready_as_what_it_tapes(tmp_path: Path) -> None:
    def made() -> Tool:
        raise ConfigError("KEY is not set", where="web")

    entry, tape = catalogue().entry("search"), tmp_path / "tape"
    with pytest.raises(ConfigError, match="KEY is not set"):
        asyncio.run(TapedTool(made, entry, Cassette(tape, "auto")).ready())
    tape.touch()
    assert asyncio.run(TapedTool(made, entry, Cassette(tape, "replay")).ready()) == "replayed"
    assert asyncio.run(TapedTool(Web, entry, Cassette(tape, "auto")).ready()) == ""


def test_any_tool_is_replayed_with_its_cost_its_seconds_and_its_failures(tmp_path: Path) -> None:
    web, entry = Web(), catalogue().entry("search")
    price = Price(per_call=Decimal("0.01"))

    def run(mode: Mode, make: Tool | None, entry: Entry = entry, price: Price = price) -> list[ToolResult | str]:
        def made() -> Tool:
            assert make is not None
            return make

        tool = TapedTool(made, entry, Cassette(tmp_path / "tape", mode))
        found: list[ToolResult | str] = []
        for query in ("who?", "down", "", "who?"):
            try:
                found.append(asyncio.run(tool.call({"query": query}, ToolContext("", price, 1.0))))
            except (ToolError, CallError) as error:
                found.append(f"{type(error).__name__}: {error}")
        return found

    first = run("record", web)
    assert first[1:3] == ["ToolError: web: HTTP 500", "CallError: an empty query"] and web.calls == 4
    assert run("replay", None) == first
    with pytest.raises(ConfigError, match="no recorded reply"):
        run("replay", None, price=Price(per_call=Decimal("0.02")))


def test_a_failure_replays_with_what_it_cost(tmp_path: Path) -> None:
    class Late:
        component = Component.MCP

        async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
            failure = ToolError("no answer within 2 s", where="mcp")
            failure.charges = (Charge(component=Component.MCP, name="find", cost_usd=Decimal("0.01"), latency_s=2.0),)
            raise failure

    def charges(mode: Mode) -> tuple[Charge, ...]:
        tool = TapedTool(Late, catalogue().entry("search"), Cassette(tmp_path / "tape", mode))
        with pytest.raises(ToolError, match="no answer within 2 s") as failed:
            asyncio.run(tool.call({"query": "who?"}, ToolContext("", Price(), 1.0)))
        return failed.value.charges

    assert charges("record") == charges("replay") != ()


@pytest.mark.parametrize(
    "name", ["HUB_PAT", "ERRORS_DSN", "BASIC_AUTH", "DB_PASSWD", "AWS_SECRET_ACCESS_KEY", "GH_TOKEN"]
)
def test_a_variable_is_secret_by_its_name(name: str) -> None:
    assert secrets_of({name: "something-long", "GIT_AUTHOR_NAME": "Ann", "PATH": "/usr/bin"}) == ["something-long"]


def test_a_variable_is_secret_where_its_value_holds_a_password() -> None:
    found = secrets_of({"SEARCH_URL": "https://" + "ann:very-secret@host/v1", "PLAIN_URL": "https://host/v1"})
    assert set(found) == {"ann:very-secret", "very-secret"}
