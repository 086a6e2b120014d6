"""Real experts against a local endpoint that misbehaves in every way an endpoint can."""

import asyncio
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import at_price, total
from orchestra.errors import ConfigError, ToolError
from orchestra.files.jsonl import read_jsonl
from orchestra.tools.base import ToolContext, ToolResult, unanswered
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.catalogue.entry import Entry
from orchestra.tools.chat.reply import ChatReply
from orchestra.tools.experts.endpoint import CUT, Endpoint, program, query
from orchestra.tools.failures import CircuitError, EndpointError, ReplyError, RequestError, Unusable
from orchestra.tools.rate_limits import ProviderLimits, RateLimiter
from orchestra.tools.replay.cassette import Cassette, Mode
from orchestra.tools.session import ToolOutcome, ToolSession
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Charge, Component, Price, ToolCall, ToolKind, Usage
from tests.support.endpoint import Double, Script, answer, ended, serving, taking_no
from tests.support.experts import KEY, expert, real
from tests.support.scripts import RIGHT, play, says
from tests.support.scripts import call as call_turn
from tests.support.worlds import ROOT, catalogue, example, toolkit

PRICE = Price(input_per_million=Decimal(2), cached_input_per_million=Decimal(1), output_per_million=Decimal(10))


@contextmanager
def endpoint(
    monkeypatch: pytest.MonkeyPatch, script: Script, deadline_s: float = 5
) -> Iterator[tuple[Double, Endpoint]]:
    with serving(script) as double:
        monkeypatch.setenv("TEST_EXPERT_URL", double.url + "/")
        monkeypatch.setenv("TEST_EXPERT_KEY", "k-1")
        yield double, Endpoint("real", entry(deadline_s), backoff_s=0.01)


def entry(deadline_s: float = 5) -> Entry:
    return Entry(
        kind=ToolKind.EXPERT,
        role="generalist",
        component=Component.EXPERT,
        description="a real one",
        parameters={"type": "object"},
        price="p/m",
        latency_s=1,
        implementation="openai",
        base_url_env="TEST_EXPERT_URL",
        api_key_env="TEST_EXPERT_KEY",
        endpoint_model="model-1",
        max_output_tokens=500,
        deadline_s=deadline_s,
        source="test",
    )


def ask(expert: Endpoint, arguments: dict[str, Any] | None = None, notes: tuple[str, ...] = ()) -> ToolResult:
    async def once() -> ToolResult:
        try:
            return await expert.call(arguments or {}, ToolContext("who leads Borvane?", PRICE, 1, notes=notes))
        finally:
            await expert.aclose()

    return asyncio.run(once())


def test_an_answer_is_read_charged_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(monkeypatch, [(200, answer("  Kelmar \n"), 0)]) as (double, expert):
        result = ask(expert, notes=("a note",))
        assert result.text == "Kelmar" and not result.simulated
        assert result.usage == Usage(input_tokens=100, cached_input_tokens=40, output_tokens=7)
        assert result.cost_usd == Decimal("0.00023") and result.latency_s > 0
        assert double.asked[0]["model"] == "model-1" and double.keys == ["Bearer k-1"]
        told, asked = double.asked[0]["messages"]
        assert (told["role"], asked["content"]) == ("system", "who leads Borvane?\na note")
        assert 'end with the line "Answer: "' in told["content"]
        ask(expert, {"question": "and who else?"})
        assert double.asked[1]["messages"][-1]["content"] == "and who else?"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    with endpoint(monkeypatch, [(status, {}, 0), (200, b"<html>", 0), (200, answer(), 0)]) as (double, expert):
        assert ask(expert).text == "Kelmar" and len(double.asked) == 3


@pytest.mark.parametrize(
    ("script", "said", "times"),
    [
        ([(503, {}, 0.0)], "HTTP 503 after 3 attempts", 3),
        ([(401, {"error": "bad key"}, 0.0)], "HTTP 401", 1),
        ([(200, answer(None), 0.0)], "empty answer", 1),
        ([(200, answer(" \n"), 0.0)], "empty answer", 1),
        ([(200, {"choices": []}, 0.0)], "another shape", 1),
        ([(200, [1], 0.0)], "another shape", 1),
        ([(200, {"choices": [{"message": None}]}, 0.0)], "another shape", 1),
        ([(200, {**answer(), "usage": {"prompt_tokens": -4}}, 0.0)], "another shape", 1),
    ],
)
def test_a_failure_is_the_tool_s_and_never_an_answer(
    monkeypatch: pytest.MonkeyPatch, script: list[tuple[int, Any, float]], said: str, times: int
) -> None:
    with endpoint(monkeypatch, script) as (double, expert):
        with pytest.raises(ToolError, match=said):
            ask(expert)
        assert len(double.asked) == times


def test_half_a_surrogate_pair_is_replaced_and_a_whole_one_is_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    """json.dumps writes both as escapes, as endpoints do; only the whole pair is text."""
    with endpoint(monkeypatch, [(200, answer("Kel\ud83dmar \U0001f600 \udc00"), 0)]) as (_, expert):
        result = ask(expert)
        assert result.text == "Kel\ufffdmar \U0001f600 \ufffd"
        assert ToolResult.model_validate_json(result.model_dump_json()) == result


def test_tokens_that_are_not_told_are_charged_at_their_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(monkeypatch, [(200, {**answer(), "usage": None}, 0)]) as (double, expert):
        result = ask(expert)
        assert result.usage.output_tokens == 500 and result.usage.input_tokens > 200
        assert double.asked[0]["max_completion_tokens"] == 500


@pytest.mark.parametrize("other", ["max_completion_tokens", "max_tokens"])
def test_the_limit_is_named_as_its_provider_names_it_and_an_endpoint_that_ignores_it_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    (name,) = {"max_completion_tokens", "max_tokens"} - {other}
    script: Script = [(200, one | {"usage": {"prompt_tokens": 9, "completion_tokens": 501}}, 0) for one in LONGER]
    with endpoint(monkeypatch, script) as (double, _):
        for _ in range(2):
            limits = ProviderLimits.model_validate({"limit_parameter": name})
            asked = Endpoint("real", entry(), provider=RateLimiter(limits))
            ask(asked)
            ask(asked)
        assert all(one[name] == 500 and other not in one for one in double.asked) and len(double.asked) == 4
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "real: a reply has 501 tokens, and its limit was 500, so caps of dollars may be crossed — "
        f"say limit_parameter: {other} for its provider in the catalogue's providers"
    ] * 2


@pytest.mark.parametrize(
    ("parameter", "told", "fix"),
    [
        ("temperature", "`{}` is deprecated for this model.", "leave it out by settings: {temperature: null}"),
        (
            "max_completion_tokens",
            "Unsupported parameter: '{}'",
            "say limit_parameter: max_tokens for its provider in the catalogue's providers",
        ),
        ("max_completion_tokens", "{}=500 cannot be greater than max_model_len=400", ""),
        ("messages", "{} must not be empty", ""),
    ],
)
def test_a_refused_parameter_is_told_with_the_setting_that_changes_it(
    monkeypatch: pytest.MonkeyPatch, parameter: str, told: str, fix: str
) -> None:
    with endpoint(monkeypatch, taking_no(parameter, told)):
        asked = Endpoint("real", entry().model_copy(update={"settings": {"temperature": 0.5, "top_p": None}}))
        with pytest.raises(RequestError) as error:
            ask(asked)
    assert error.value.fix == fix and str(error.value).endswith(f" — {fix}" if fix else "}")


def test_the_deadline_ends_a_slow_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        endpoint(monkeypatch, [(200, answer(), 1.0)], deadline_s=0.15) as (_, expert),
        pytest.raises(ToolError, match=r"no answer within 0\.15 s|ReadTimeout"),
    ):
        ask(expert)


def test_nobody_listening_and_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_EXPERT_KEY", "k")
    monkeypatch.delenv("TEST_EXPERT_URL", raising=False)
    with pytest.raises(ConfigError, match="TEST_EXPERT_URL is not set"):
        Endpoint("real", entry())
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        port = closed.server_port
    monkeypatch.setenv("TEST_EXPERT_URL", f"http://127.0.0.1:{port}")
    with pytest.raises(ToolError, match="after 2 attempts"):
        ask(Endpoint("real", entry(), attempts=2, backoff_s=0.01))


def call(kit: Toolkit, name: str, arguments: dict[str, Any] | None = None) -> ToolOutcome:
    """One call in an episode whose toolbox offers every expert; raises what the call raises."""

    async def once() -> ToolOutcome:
        box = [kit.catalogue.spec(tool, price_factor=2) for tool in ("real", "python", "search")]
        session = ToolSession(kit, example(instruction="who leads Borvane?", toolbox=box))
        try:
            return await session.call(ToolCall(name=name, arguments=arguments or {}))
        finally:
            session.close()
            await kit.aclose()

    return asyncio.run(once())


def test_a_code_writer_s_program_is_run_and_both_are_charged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = "Here it is:\n```python\nprint(37 * 24)\n```\nIt prints the answer."
    with serving([(200, answer(said), 0)]) as double:
        kit = real(monkeypatch, toolkit(tmp_path), double, real=expert(role="code writer", hands_to="python"))
        outcome = call(kit, "real")
        assert outcome.text == "888" and "python block" in double.asked[0]["messages"][0]["content"]
        (ran,) = outcome.besides
        assert (ran.component, ran.name) == (Component.SANDBOX, "python") and ran.cost_usd > Decimal("0.00002")
        assert outcome.charge.component is Component.EXPERT and outcome.charge.usage.output_tokens == 7


def test_a_query_writer_s_query_is_searched_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving([(200, answer('"Norvik founded"'), 0)]) as double:
        kit = real(monkeypatch, toolkit(tmp_path), double, real=expert(role="query writer", hands_to="search"))
        outcome = call(kit, "real", {"question": "when was Norvik founded?"})
        assert outcome.text == "Norvik was founded in 1911."
        assert [(c.component, c.cost_usd) for c in outcome.besides] == [(Component.SEARCH, Decimal("0.004"))]


def test_what_an_expert_writes_is_found_in_its_reply() -> None:
    assert program(ChatReply(text="```\na\n```\nor\n```py\nprint(1)\n```")) == "print(1)"
    assert program(ChatReply(text="It is 5.")) is None
    for cut in (
        ChatReply(text="```python\nprint(", cut=True),
        ChatReply(text="```python\nprint("),
        ChatReply(text="so", cut=True),
    ):
        with pytest.raises(ReplyError) as error:
            program(cut)
        assert error.value.unusable is Unusable.TRUNCATED
    assert [query(text) for text in ("Query: `a b`", "Sure:\n**a b**", "x" * 300)] == ["a b", "a b", "x" * 200]


def test_a_cut_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = answer("Kelm")
    cut["choices"][0]["finish_reason"] = "length"
    with endpoint(monkeypatch, [(200, cut, 0)]) as (_, asked):
        assert ask(asked).text == f"Kelm {CUT}"


LONGER = (ended("length"), answer())
UNENDED, UNWILLING = "[no answer: its thoughts did not end]", "[no answer: it refused]"
CUT_OFF = "[no answer: its program is cut off]"


@pytest.mark.parametrize(
    ("reply", "role", "said"),
    [
        (ended("length"), "generalist", UNENDED),
        (ended("stop", "<think>so then"), "code writer", UNENDED),
        (ended("content_filter", "The first step"), "generalist", UNWILLING),
        (answer(None, refusal="I cannot help"), "generalist", UNWILLING),
        (ended("length", "```python\nprint("), "code writer", CUT_OFF),
    ],
)
def test_an_expert_that_gives_no_answer_is_observed_paid_and_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reply: dict[str, Any], role: str, said: str
) -> None:
    """It is the expert's own doing: the episode goes on, no other is asked in its place, and it counts as wrong."""
    hands_to = "python" if role == "code writer" else None
    with serving([(503, {}, 0), (200, reply, 0)]) as double:
        entries = {"real": expert(role=role, hands_to=hands_to, fallback="spare"), "spare": expert()}
        modes: tuple[Mode, ...] = ("record", "auto", "replay")
        for mode in modes:
            budget, tape = Budget(tmp_path / f"{mode}.jsonl", None), Cassette(tmp_path / "tape.jsonl", mode)
            kit = real(monkeypatch, toolkit(tmp_path), double, None, tape, budget, **entries)
            box = [kit.catalogue.spec(name) for name in ("real", "python")]
            episode = play(kit, says(call_turn("real"), RIGHT), example(toolbox=box))
            (paid,) = [charge for charge in episode.charges if charge.name == "real"]
            assert (episode.solved, episode.turns[0].observation) == (True, said) and unanswered(said)
            assert paid.usage.output_tokens == 7 and paid.cost_usd > 0 and paid.latency_s > 0
            booked = total(charge for charge in read_jsonl(budget.path, Charge) if charge.name == "real")
            assert (booked > 0) == (mode == "record")
    assert len(double.asked) == 2


def test_a_failure_of_the_tool_that_takes_the_work_is_none_of_the_expert_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def cut(arguments: Any, context: Any) -> ToolResult:
        raise ReplyError("thoughts", unusable=Unusable.TRUNCATED)

    with serving([(200, answer("```python\n1\n```"), 0)]) as double:
        kit = real(monkeypatch, toolkit(tmp_path), double, real=expert(role="code writer", hands_to="python"))
        monkeypatch.setattr(kit.tool("python"), "call", cut)
        with pytest.raises(ReplyError, match="thoughts"):
            call(kit, "real")


def test_a_fallback_answers_is_named_and_each_is_charged_at_its_own_price(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first expert's empty reply is billed; the fallback, not in the toolbox, costs its list price."""
    with serving(lambda request: (200, answer(None if request["model"] == "real" else "Kelmar"), 0)) as double:
        spare = expert(price="openai/gpt-5")
        kit = real(monkeypatch, toolkit(tmp_path), double, real=expert(fallback="spare"), spare=spare)
        outcome = call(kit, "real")
        assert outcome.text == "(real failed; spare answers) Kelmar" and not outcome.error
        dear = kit.catalogue.spec("real", price_factor=2).price
        assert outcome.charge.name == "spare" and outcome.charge.cost_usd == Decimal("0.00015")
        lost, waited = outcome.besides
        assert lost.name == waited.name == "real" and waited.cost_usd == 0 == lost.latency_s
        assert lost.cost_usd == (100 * dear.input_per_million + 7 * dear.output_per_million) / 1_000_000
        assert [request["model"] for request in double.asked] == ["real", "spare"]


def test_a_fallback_that_gives_no_answer_is_seen_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = {"real": (500, {}, 0), "spare": (200, ended("length", "<think>hm"), 0)}
    with serving(lambda request: said[request["model"]]) as double:
        both = {"real": expert(fallback="spare"), "spare": expert()}
        kit = real(monkeypatch, toolkit(tmp_path), double, ProviderLimits(attempts=1), **both)
        outcome = call(kit, "real")
    assert outcome.text == "[no answer: its thoughts did not end]" and unanswered(outcome.text)
    assert (outcome.by, outcome.charge.name) == ("spare", "spare")


def test_what_a_failed_call_cost_is_in_its_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving([(0, None, 0)]) as double:
        limits = ProviderLimits(attempts=2, failures=1)
        both = {"real": expert(fallback="spare"), "spare": expert()}
        kit = real(monkeypatch, toolkit(tmp_path), double, limits, **both)
        with pytest.raises(EndpointError, match=r"RemoteProtocolError.* after 2 attempts") as error:
            call(kit, "real")
        charges = error.value.charges
        assert [c.name for c in charges if c.cost_usd] == ["real", "real", "spare", "spare"] and len(double.asked) == 4
        assert all(c.usage.output_tokens == 500 for c in charges if c.cost_usd) and charges[-1].latency_s > 0
        with pytest.raises(CircuitError, match=r"asked again in \d") as open_:
            call(kit, "real")
        assert open_.value.charges == () and 0 < open_.value.wait_s <= 30 and len(double.asked) == 4


@pytest.mark.parametrize(("script", "calls"), [([(0, None, 0)], 3), ([(503, {}, 0)], 0)])
def test_the_seconds_of_a_failed_call_are_no_call_of_their_own(
    monkeypatch: pytest.MonkeyPatch, script: Script, calls: int
) -> None:
    price, other = Price(per_call=Decimal("0.01"), per_second=Decimal(1)), Price(per_call=Decimal(9))
    with endpoint(monkeypatch, script) as (_, expert), pytest.raises(EndpointError) as failed:
        asyncio.run(expert.call({}, ToolContext("?", price, 1)))
    *lost, seconds = failed.value.charges
    assert [charge.cost_usd for charge in lost] == [price.per_call] * calls and seconds.latency_s > 0
    assert seconds.cost_usd == Decimal(str(seconds.latency_s)) and at_price(seconds, other, price) == 0


@pytest.mark.parametrize("barred", [False, True])
def test_a_fallback_is_asked_at_once_and_an_expert_without_one_is_waited_for(
    barred: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first expert is overloaded once. A fallback that may not be asked is none."""
    count = {"real": 0, "spare": 0}

    def reply(request: dict[str, Any]) -> Any:
        count[request["model"]] += 1
        down = request["model"] == "real" and count["real"] == 1
        return (529, {}, 0) if down else (200, answer(request["model"]), 0)

    with serving(reply) as double:
        limits = ProviderLimits(attempts=1, failures=1, open_s=0.1 if barred else 10)
        kit = real(monkeypatch, toolkit(tmp_path), double, limits, real=expert(fallback="spare"), spare=expert())
        spec = kit.catalogue.spec("real")

        async def whole() -> list[str]:
            session = ToolSession(
                kit, example("e", toolbox=[spec]), barred=frozenset({"spare"}) if barred else frozenset()
            )
            said = []
            for _ in range(2):
                try:
                    said.append((await session.call(ToolCall(name="real", arguments={"question": "?"}))).text)
                except EndpointError as error:
                    said.append(type(error).__name__)
            await kit.aclose()
            return said

        by_spare = "(real failed; spare answers) spare"
        assert asyncio.run(whole()) == (["EndpointError", "real"] if barred else [by_spare] * 2)
        assert count == ({"real": 2, "spare": 0} if barred else {"real": 1, "spare": 2})


def test_the_worst_of_both_is_told_when_the_interpreter_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving([(200, answer("```python\n1\n```"), 0)]) as double:
        kit = real(monkeypatch, toolkit(tmp_path), double, real=expert(role="code writer", hands_to="python"))

        async def broken(arguments: Any, context: Any) -> ToolResult:
            raise ToolError("no isolation works here", where="sandbox")

        monkeypatch.setattr(kit.tool("python"), "call", broken)
        with pytest.raises(ToolError, match="no isolation") as error:
            call(kit, "real")
        assert [c.usage.output_tokens for c in error.value.charges] == [7]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"role": "poet"}, "tools.real: no role 'poet' — one of: generalist, math, code writer, query writer"),
        ({"role": "code writer"}, "a code writer needs a tool that takes its code"),
        ({"role": "code writer", "hands_to": "search"}, "such as python"),
        ({"fallback": "search"}, "the fallback search is no expert"),
        ({"fallback": "real"}, "one that failed already"),
    ],
)
def test_what_an_expert_relies_on_is_checked_when_the_catalogue_loads(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    import yaml

    file = yaml.safe_load((ROOT / "data/catalogue/tools.yaml").read_text(encoding="utf-8"))
    file["tools"]["real"] = expert(**changes).model_dump(mode="json", exclude_none=True)
    (tmp_path / "tools.yaml").write_text(yaml.safe_dump(file), encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(said)):
        Catalogue.load(tmp_path / "tools.yaml", ROOT / "data/catalogue/prices.yaml", "2025-11-15")


def test_the_documented_catalogue_loads_and_fits_the_price_book(tmp_path: Path) -> None:
    """What docs/reference/tools/experts.md shows, as it stands, in a file that extends the shipped one."""
    import yaml

    page = (ROOT / "docs/reference/tools/experts.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(providers:.*?)```", page, re.DOTALL)
    shown = yaml.safe_load(text)
    shutil.copy(ROOT / "data/catalogue/tools.yaml", tmp_path)
    (tmp_path / "mine.yaml").write_text(f"extends: tools.yaml\n{text}", encoding="utf-8")
    made = Catalogue.load(tmp_path / "mine.yaml", ROOT / "data/catalogue/prices.yaml", "2025-11-15")
    assert {made.entry(name).role for name in shown["tools"]} == {"generalist", "math", "code writer", "query writer"}
    assert made.providers["openai"].concurrency == 8 and set(shown["tools"]) - set(catalogue().entries)
    assert KEY not in page
