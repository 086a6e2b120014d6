"""A prompted model orchestrates: its calls run, its tokens are paid for, and a dead endpoint scores nothing."""

import asyncio
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.accounting.budget import Budget
from orchestra.accounting.ledger import cost_of
from orchestra.config.schema import Rollout
from orchestra.errors import BudgetError, ConfigError
from orchestra.rewards.group import group_rewards
from orchestra.rollout.charges import paid_turns
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.policies.base import UNFINISHED, Conversation
from orchestra.rollout.policies.chat import ChatPolicy, chat_policy, sent_names
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.chat.client import Chat
from orchestra.tools.rate_limits import ProviderLimits, RateLimiter
from orchestra.tools.replay.cassette import Cassette, Mode
from orchestra.tools.toolkit import Toolkit
from orchestra.tools.worst_case import OVERHEAD_TOKENS
from orchestra.types import Component, Episode, Price, StopReason, Usage, User
from tests.support.endpoint import Double, Script, answer, ended, serving, taking_no
from tests.support.experts import expert, real
from tests.support.scripts import RIGHT, play, says
from tests.support.scripts import call as call_turn
from tests.support.worlds import NEUTRAL, ROOT, catalogue, codec, example, toolkit

PRICE = Price(input_per_million=Decimal(1), cached_input_per_million=Decimal("0.1"), output_per_million=Decimal(10))
LIMITS = Rollout(max_turns=4, max_turn_tokens=200, max_tokens=4000)


def calling(name: str, arguments: str) -> dict[str, Any]:
    call = {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}
    return answer(None, tool_calls=[call])


def attempt(
    folder: Path,
    server: Double,
    budget: Budget | None = None,
    cassette: Cassette | None = None,
    attempts: int = 1,
    **changes: Any,
) -> Episode:
    chat = Chat(
        "chat:m", model="m", url=server.url, attempts=attempts, backoff_s=0.01, cassette=cassette, own_counts=True
    )
    policy = ChatPolicy("chat:m", chat, codec().turn, {"reasoning_effort": "low"})
    asked = example().model_copy(update=changes)
    (found,) = rollout([asked], policy, codec(), toolkit(folder), RolloutOptions(LIMITS, PRICE, budget=budget))
    return found


@pytest.fixture
def script() -> Iterator[Script]:
    yield [(200, calling("calculator", '{"expression": "37*24"}'), 0), (200, answer("888"), 0)]


def test_its_call_runs_and_its_answer_is_judged(tmp_path: Path, script: Script) -> None:
    with serving(script) as server:
        episode = attempt(tmp_path, server, preference=NEUTRAL.model_copy(update={"words": "I like it cheap."}))
    assert episode.solved and episode.answer == "888" and episode.tool_counts == {"calculator": 1}
    first, second = server.asked
    assert first["messages"][0]["content"].endswith("I like it cheap.") and first["reasoning_effort"] == "low"
    assert first["max_completion_tokens"] == 200 and first["temperature"] == 0
    tool = first["tools"][0]["function"]
    assert tool["name"] == "calculator" and "about $0.0000 and 0 s a call" in tool["description"]
    call, seen = second["messages"][2:]
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"expression": "37*24"}
    assert seen == {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "888"}


def test_openai_s_reasoning_models_are_asked_with_the_only_temperature_that_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def openai(request: dict[str, Any]) -> Any:
        refusal = {
            "error": {"message": "'temperature' does not support 0 with this model. Only the default (1) value."}
        }
        return (200, answer("888"), 0) if request.get("temperature", 1) == 1 else (400, refusal, 0)

    listed = Catalogue.load(ROOT / "data/catalogue/real.yaml", ROOT / "data/catalogue/prices.yaml", "2026-08-06")
    names = [name for name, entry in listed.entries.items() if (entry.endpoint_model or "").startswith("gpt-5")]
    kit = Toolkit(listed, {}, tmp_path)
    with serving(openai) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
        policies = [chat_policy(f"chat:{name}", kit, codec().turn, {"temperature": 0.7}) for name in names]
        found = [rollout([example()], one, codec(), kit, RolloutOptions(LIMITS, PRICE))[0] for one in policies]
    assert len(found) == 6 and all(episode.solved for episode in found)


def test_a_model_that_takes_no_temperature_is_sent_none_and_its_refusal_names_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(taking_no("temperature")) as server:
        entries = {"silent": expert(settings={"temperature": None}), "loud": expert()}
        kit = real(monkeypatch, toolkit(tmp_path), server, **entries)
        for name in entries:
            policy = chat_policy(f"chat:{name}", kit, codec().turn, {"temperature": 0.7})
            assert play(kit, policy, example(), LIMITS).counted == (name == "silent")
        assert play(kit, says(call_turn("silent"), RIGHT), example(toolbox=[kit.catalogue.spec("silent")])).counted
    assert ["temperature" in one for one in server.asked] == [False, True, False]
    (told,) = caplog.messages
    assert told.startswith("RequestError: chat:loud: HTTP 400: ") and told.endswith(": {temperature: null}")


def openai_since_5_4(request: dict[str, Any]) -> Any:
    """Function tools go with no reasoning, which is on by default; parallel_tool_calls goes with tools only."""
    model, effort, tools = request["model"], request.get("reasoning_effort"), "tools" in request
    refusal = ""
    if tools and effort != "none":
        refusal = (
            f"Function tools with reasoning_effort are not supported for {model} in /v1/chat/completions. "
            "To use function tools, use /v1/responses or set reasoning_effort to 'none'."
        )
    elif "parallel_tool_calls" in request and not tools:
        refusal = "'parallel_tool_calls' is only allowed when 'tools' are specified."
    return (400, {"error": {"message": refusal}}, 0) if refusal else (200, answer("Answer: 888"), 0)


def test_an_entry_has_settings_of_its_own_as_an_orchestrator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The expert goes on thinking, and is called without tools."""
    as_expert: dict[str, Any] = {"temperature": None, "reasoning_effort": "high"}
    apart = expert(settings=as_expert, orchestrator_settings={"reasoning_effort": "none", "parallel_tool_calls": False})
    with serving(openai_since_5_4) as server:
        kit = real(monkeypatch, toolkit(tmp_path), server, apart=apart, alike=expert(settings=as_expert))
        for name in ("apart", "alike"):
            policy = chat_policy(f"chat:{name}", kit, codec().turn)
            for box in (example().toolbox, ()):
                played = play(kit, policy, example().model_copy(update={"toolbox": box}), LIMITS)
                assert played.counted == (name == "apart" or not box)
        assert play(kit, says(call_turn("apart"), RIGHT), example(toolbox=[kit.catalogue.spec("apart")])).counted
    sent = [(one.get("reasoning_effort"), one.get("parallel_tool_calls")) for one in server.asked]
    assert sent == [("none", False), ("none", None), ("high", None), ("high", None), ("high", None)]
    assert not any("temperature" in one for one in server.asked)
    (told,) = caplog.messages
    assert told.endswith(" — say orchestrator_settings: {reasoning_effort: none} in its entry")


def test_its_limit_is_named_as_its_provider_names_it_and_a_longer_reply_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    long = answer("888") | {"usage": {"prompt_tokens": 9, "completion_tokens": 201}}
    with serving([(200, long, 0)]) as server:
        limits = ProviderLimits(limit_parameter="max_tokens")
        kit = real(monkeypatch, toolkit(tmp_path), server, limits, ours=expert())
        assert play(kit, chat_policy("chat:ours", kit, codec().turn), example(), LIMITS).solved
    assert server.asked[0]["max_tokens"] == 200 and "max_completion_tokens" not in server.asked[0]
    assert sum("chat:ours: a reply has 201 tokens, and its limit was 200" in one for one in caplog.messages) == 1


TAKEN = re.compile("[a-zA-Z0-9_-]{1,64}")
"""A function's name, as Anthropic and most endpoints of chat completions take it."""
NAMES = st.lists(st.text("aB1._-", min_size=1, max_size=64), unique=True, max_size=8)


@given(NAMES)
def test_every_tool_has_a_name_that_providers_take_and_no_two_share_one(names: list[str]) -> None:
    spec = example().toolbox[0]
    sent = sent_names([spec.model_copy(update={"name": name}) for name in names])
    assert sorted(sent) == sorted(names) and len(set(sent.values())) == len(names)
    assert all(TAKEN.fullmatch(name) for name in sent.values())
    assert all(sent[name] == name for name in names if TAKEN.fullmatch(name))


def test_tools_with_dots_are_offered_called_and_recorded_by_every_provider(tmp_path: Path) -> None:
    """The endpoint refuses the whole request for one name; calls, charges and episodes keep our names."""
    asked = iter(["llama-3_3-70b", "llama-3_3-70b_2", "functions.search", "llama-3.3-70b"])

    def strict(request: dict[str, Any]) -> Any:
        named = [tool["function"]["name"] for tool in request["tools"]]
        named += [call["function"]["name"] for m in request["messages"] for call in m.get("tool_calls", ())]
        if bad := [name for name in named if not TAKEN.fullmatch(name)]:
            return 400, {"error": {"message": f"Invalid tool name: {bad}"}}, 0
        wanted = next(asked, None)
        return 200, answer("888") if wanted is None else calling(wanted, '{"question": "x"}'), 0

    plain = catalogue().spec("llama-3.3-70b")
    names = ("llama-3_3-70b", "llama-3.3-70b")
    box = [plain.model_copy(update={"name": name}) for name in names]
    with serving(strict) as server:
        limits = LIMITS.model_copy(update={"max_turns": 8})
        chat = Chat("chat:m", model="m", url=server.url, attempts=1)
        policy, kit = ChatPolicy("chat:m", chat, codec().turn), toolkit(tmp_path)
        episode = play(kit, policy, example(toolbox=box), limits)
    assert episode.solved and episode.tool_counts == {"llama-3_3-70b": 1, "llama-3.3-70b": 2}
    told = [tool["function"] for tool in server.asked[0]["tools"]]
    assert [one["name"] for one in told] == ["llama-3_3-70b", "llama-3_3-70b_2"]
    assert told[1]["description"].startswith("llama-3.3-70b: ") and not told[0]["description"].startswith("llama")
    echoed = [m["tool_calls"][0]["function"]["name"] for m in server.asked[-1]["messages"] if "tool_calls" in m]
    assert echoed == ["llama-3_3-70b", "llama-3_3-70b_2", "functions_search", "llama-3_3-70b_2"]


def test_an_expert_that_is_no_endpoint_is_named_as_it_was_asked_for(tmp_path: Path) -> None:
    """An evaluation, a measurement and a stage ask for it, each by a setting of its own."""
    with pytest.raises(ConfigError, match=r"^chat:gpt-5: gpt-5 is no model behind an endpoint — name an entry with"):
        chat_policy("chat:gpt-5", toolkit(tmp_path), codec().turn)


def test_its_tokens_cost_what_the_endpoint_counts(tmp_path: Path, script: Script) -> None:
    with serving(script) as server:
        episode = attempt(tmp_path, server)
    written = [charge for charge in episode.charges if charge.component is Component.POLICY]
    assert [charge.usage.input_tokens for charge in written] == [100, 100]
    # 60 fresh and 40 cached tokens read, 7 written.
    assert {charge.cost_usd for charge in written} == {Decimal("0.000134")}


def test_a_lost_reply_and_one_without_tokens_are_booked_at_their_worst(tmp_path: Path) -> None:
    """A reply that is lost may be billed: every byte sent as a token, and all that may be written."""
    budget = Budget(tmp_path / "ledger.jsonl", None)
    with serving([(0, None, 0), (200, answer("888") | {"usage": None}, 0)]) as server:
        episode = attempt(tmp_path, server, budget, attempts=2)
        sent = len(json.dumps(server.asked[0])) - len('"model": "m", ')
    (written,) = episode.charges
    assert written.usage == Usage(input_tokens=2 * (sent + OVERHEAD_TOKENS), output_tokens=400)
    assert budget.spent_usd == written.cost_usd == cost_of(PRICE, written.usage)
    with serving([(0, None, 0)]) as server:
        episode = attempt(tmp_path, server, budget, attempts=2)
    assert episode.stop is StopReason.TOOL_FAILURE and budget.spent_usd == 2 * written.cost_usd


def test_turns_that_are_given_up_are_booked_at_their_worst_once_they_were_sent(tmp_path: Path) -> None:
    """What waited for the provider's limits costs nothing."""
    budget = Budget(tmp_path / "ledger.jsonl", Decimal(1))

    async def give_up(policy: ChatPolicy, double: Double) -> None:
        asked = [Conversation(example(), [5] * 30) for _ in range(3)]
        turns = [asyncio.ensure_future(paid_turns(policy, [one], [400], PRICE, budget)) for one in asked]
        while not double.asked:
            await asyncio.sleep(0.02)
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)
        assert all(turn.cancelled() for turn in turns)

    with serving([(200, answer("888"), 5.0)]) as server:
        one_at_once = RateLimiter(ProviderLimits(concurrency=1))
        chat = Chat("chat:m", model="m", url=server.url, provider=one_at_once, own_counts=True)
        asyncio.run(give_up(ChatPolicy("chat:m", chat, codec().turn), server))
        sent = len(json.dumps(server.asked[0])) - len('"model": "m", ')
        assert len(server.asked) == 1
    (worst,) = budget.by_component().values()
    assert worst.calls == 1
    usage = Usage(input_tokens=sent + OVERHEAD_TOKENS, output_tokens=400)
    assert budget.spent_usd == cost_of(PRICE, usage) > 0


def test_lost_replies_do_not_cross_a_cap(tmp_path: Path) -> None:
    budget = Budget(tmp_path / "ledger.jsonl", Decimal("0.03"))
    with serving([(0, None, 0)]) as server, pytest.raises(BudgetError, match=r"of 0\.03 USD are spent"):
        for _ in range(20):
            attempt(tmp_path, server, budget, attempts=2)
    assert Decimal("0.01") < budget.spent_usd <= Decimal("0.03")


def test_lost_replies_do_not_cross_an_episodes_cap(tmp_path: Path) -> None:
    with serving([(0, None, 0)]) as server:
        failed = attempt(tmp_path, server, attempts=2)
        assert failed.stop is StopReason.TOOL_FAILURE
        poor = attempt(tmp_path, server, attempts=2, budget_usd=failed.cost_usd * Decimal("0.9"))
        assert poor.stop is StopReason.BUDGET and poor.cost_usd == 0 and len(server.asked) == 2


@pytest.mark.parametrize("second", [(200, answer("888"), 0), (400, {}, 0)])
def test_what_is_replayed_is_not_booked_again(tmp_path: Path, second: Any) -> None:
    budget, tape = Budget(tmp_path / "ledger.jsonl", None), tmp_path / "tape.jsonl"
    first = (200, calling("calculator", '{"expression": "37*24"}'), 0)
    with serving([first, second]) as server:
        recorded = attempt(tmp_path, server, budget, Cassette(tape))
        spent = budget.spent_usd
        replayed = attempt(tmp_path, server, budget, Cassette(tape, "replay"))
    assert len(server.asked) == 2 and replayed == recorded
    calculator = sum(charge.cost_usd for charge in recorded.charges if charge.component is not Component.POLICY)
    assert budget.spent_usd == spent + calculator > 0


def test_arguments_that_are_no_json_are_told_to_it(tmp_path: Path) -> None:
    with serving([(200, calling("calculator", "{37*24"), 0), (200, answer("888"), 0)]) as server:
        episode = attempt(tmp_path, server)
    assert episode.solved and "not JSON" in str(episode.turns[0].parse_error)
    assert "not JSON" in server.asked[1]["messages"][-1]["content"]


def test_an_endpoint_that_fails_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    with serving([(500, {}, 0)]) as server:
        episode = attempt(tmp_path, server)
    assert episode.stop is StopReason.TOOL_FAILURE and not episode.counted


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_thoughts_that_do_not_end_and_a_refusal_are_wrong_paid_and_not_asked_again(tmp_path: Path, finish: str) -> None:
    """Left out as failures, they would leave the model measured on what it finished."""
    budget, tape = Budget(tmp_path / "ledger.jsonl", None), tmp_path / "tape.jsonl"
    with serving([(200, ended(finish), 0)]) as server:
        episode = attempt(tmp_path, server, budget, Cassette(tape))
        spent = budget.spent_usd
        modes: tuple[Mode, ...] = ("auto", "replay")
        for mode in modes:
            assert attempt(tmp_path, server, budget, Cassette(tape, mode)) == episode
    assert episode.stop is StopReason.TOKEN_LIMIT and episode.counted and not episode.solved
    assert episode.turns[0].parse_error == UNFINISHED["length" if finish == "length" else "refused"][1]
    assert len(server.asked) == 1 and episode.charges[0].usage.output_tokens == 7
    assert budget.spent_usd == spent == episode.cost_usd > 0
    (reward,) = group_rewards([episode], NEUTRAL)
    assert reward.value == 0


def test_an_entry_as_a_policy_is_replayed_where_it_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving([(200, ended("content_filter"), 0), (200, answer("888"), 0)]) as server:
        for _ in range(2):
            kit = real(monkeypatch, toolkit(tmp_path), server, None, Cassette(tmp_path / "tape.jsonl"), ours=expert())
            episode = play(kit, chat_policy("chat:ours", kit, codec().turn), example(), LIMITS)
            assert episode.stop is StopReason.TOKEN_LIMIT and len(server.asked) == 1


def test_it_asks_the_user_and_hears_the_reply(tmp_path: Path) -> None:
    with serving([(200, answer("Which expression?"), 0), (200, answer("888"), 0)]) as server:
        episode = attempt(tmp_path, server, user=User(facts={"expression": "37*24"}))
    assert episode.solved
    assert [m["role"] for m in server.asked[1]["messages"]] == ["system", "user", "assistant", "user"]
    assert "37*24" in server.asked[1]["messages"][-1]["content"]
