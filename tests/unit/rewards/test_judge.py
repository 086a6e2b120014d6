"""The judge of training: rule first, then the model; recorded, capped, and never a score of 0 when it fails."""

import asyncio
import re
import shutil
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from orchestra.accounting.budget import Budget
from orchestra.config.judge import JudgeSettings
from orchestra.config.schema import World, load_params
from orchestra.errors import BudgetError, ConfigError, JudgeError
from orchestra.files.yaml import parse_yaml
from orchestra.rewards.judge import judge_of
from orchestra.rewards.rubrics import FRAMES
from orchestra.rollout.loop import RolloutOptions, rollout
from orchestra.rollout.policies.base import ScriptedPolicy
from orchestra.rollout.question import question
from orchestra.tools.base import NO_ANSWER
from orchestra.tools.experts.judging import KEY, URL, JudgeEndpoint
from orchestra.tools.experts.metered import PaidChat
from orchestra.tools.rate_limits import ProviderLimits
from orchestra.tools.replay.cassette import Cassette
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Component, Episode, Message, Price, Verifier
from orchestra.validation.rows import answer_problem
from tests.support.endpoint import answer, serving, taking_no
from tests.support.experts import expert
from tests.support.scripts import LIMITS
from tests.support.worlds import PRICE, ROOT, catalogue, codec, example, toolkit

LONG = "the bridge was closed in spring because its western pillar had sunk"
COST = Price(input_per_million=Decimal(2), output_per_million=Decimal(10))
SETTINGS = JudgeSettings(model="judge-2025-01-31", price="openai/o3-mini")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-judge-secret")


def judged(folder: Path, cap: str = "1", tape: Cassette | None = None) -> Toolkit:
    budget = Budget(folder / "ledger.jsonl", Decimal(cap))
    return toolkit(folder, budget=budget, cassette=tape, judge=JudgeEndpoint(SETTINGS, COST))


def attempt(tools: Toolkit, said: str) -> Episode:
    item = example(kind="judge", answer=LONG, instruction="why was the bridge closed?")
    policy = ScriptedPolicy("p", lambda conversation: f"<think>\n\n</think>\n\n{said}", codec().turn)
    return rollout([item], policy, codec(), tools, RolloutOptions(LIMITS, PRICE))[0]


def test_a_rule_decides_before_anything_is_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving([(200, answer("Decision: FALSE"), 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        episode = attempt(judged(tmp_path), LONG.capitalize())
    assert episode.solved and double.asked == []
    assert episode.verdict is not None and episode.verdict.judged is None


def test_no_judge_is_paid_for_an_expert_that_gave_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving([(200, answer("Decision: TRUE"), 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        episode = attempt(judged(tmp_path), f"{NO_ANSWER}it refused]")
    assert episode.counted and not episode.solved and double.asked == []


def test_a_verdict_tells_what_the_ledger_holds_where_the_judge_says_no_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving([(200, b"<html>", 0), (200, {**answer("Decision: TRUE"), "usage": None}, 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        tools = judged(tmp_path)
        episode = attempt(tools, "its western pillar had sunk")
    assert episode.verdict is not None and episode.verdict.judged is not None and tools.budget is not None
    assert episode.verdict.judged.cost_usd == tools.budget.by_component()[Component.JUDGE].cost_usd > 0


def test_an_answer_that_contains_the_reference_is_judged_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving([(200, answer("Decision: TRUE"), 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        episode = attempt(judged(tmp_path), f"As far as I know, {LONG}.")
    assert episode.solved and len(double.asked) == 1


def test_the_verdict_holds_prompt_reply_and_price_and_is_no_cost_of_the_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = judged(tmp_path)
    with serving([(200, answer("Explanation: same\nDecision: TRUE"), 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        episode = attempt(tools, "its western pillar sank")
    assert episode.verdict is not None and episode.verdict.judged is not None and episode.solved
    said = episode.verdict.judged
    assert (said.judge, said.rubric, said.reply) == (SETTINGS.model, "frames", "Explanation: same\nDecision: TRUE")
    assert said.prompt == double.asked[0]["messages"][0]["content"]
    (asked,) = FRAMES.messages("why was the bridge closed?", "its western pillar sank", LONG)
    assert said.prompt == asked.content
    assert said.cost_usd == Decimal("0.00027") and episode.cost_usd < Decimal("0.0001")
    assert tools.budget is not None
    assert tools.budget.by_component()[Component.JUDGE].cost_usd == said.cost_usd


@pytest.mark.parametrize(
    ("model", "refuses"),
    [("openai/o3-mini", True), ("gpt-5-mini", True), ("gpt-5-chat-latest", False), ("qwen3-8b", False)],
)
def test_a_judge_is_asked_without_chance_where_its_model_takes_a_temperature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, refuses: bool
) -> None:
    endpoint = JudgeEndpoint(SETTINGS.model_copy(update={"model": model}), COST)
    tools = toolkit(tmp_path, budget=Budget(tmp_path / "ledger.jsonl", None), judge=endpoint)
    with serving([(200, answer("Decision: TRUE"), 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        attempt(tools, "its western pillar sank")
    assert double.asked[0].get("temperature") == (None if refuses else 0)


@pytest.mark.parametrize(
    ("models", "refuse"),
    [
        ("o1 o3-mini-2025-01-31 openai/o4-mini gpt-5 gpt-5.1 gpt-5.4-mini gpt-6-luna gpt-6.1-sol gpt-7 gpt-10.2", True),
        ("gpt-5-chat-latest gpt-5.1-chat-latest gpt-6.1-chat gpt-10-chat gpt-4o gpt-4.1-2025-04-14", False),
        ("gpt-3.5-turbo gpt-35-turbo openai/gpt-oss-120b olmo-3 claude-opus-5-5", False),
    ],
)
def test_openai_s_reasoning_models_are_known_by_their_names(models: str, refuse: bool) -> None:
    known = [JudgeEndpoint(SETTINGS.model_copy(update={"model": one}), COST).over for one in models.split()]
    assert known == [{"temperature": None} if refuse else {}] * len(known)


@pytest.mark.parametrize(
    ("own", "settings", "sent"),
    [
        ({}, {}, 0),
        ({"temperature": 0.6}, {}, 0),
        ({}, {"temperature": None}, None),
        ({"temperature": None}, {}, None),
        ({"temperature": 1}, {}, None),
        ({"temperature": 1}, {"temperature": 0.5}, 0.5),
    ],
)
def test_a_judge_s_temperature_is_what_its_settings_and_its_row_of_prices_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, Any], settings: dict[str, Any], sent: float | None
) -> None:
    """An entry of the catalogue with temperature 1, or null, says that its model may refuse another."""
    judge = SETTINGS.model_copy(update={"model": "claude-opus-4-8", "settings": settings})
    entries = {"claude": expert(price=judge.price, settings=own)}
    endpoint = JudgeEndpoint.among(judge, COST, {}, entries)
    tools = toolkit(tmp_path, budget=Budget(tmp_path / "ledger.jsonl", None), judge=endpoint)
    with serving([(200, answer("Decision: TRUE"), 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        assert attempt(tools, "its western pillar sank").solved
    assert double.asked[0].get("temperature") == sent and ("temperature" in double.asked[0]) == (sent is not None)


def test_what_a_judge_refuses_is_told_with_the_setting_that_leaves_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(taking_no("temperature")) as double:
        monkeypatch.setenv(URL, double.url)
        judge = judge_of(judged(tmp_path), [example(kind="judge", answer=LONG)])
        assert judge is not None
        with pytest.raises(
            JudgeError, match=r"deprecated .* — leave it out by world.judge.settings: \{temperature: null\}$"
        ):
            asyncio.run(judge("why?", "because", LONG))


def test_settings_that_say_nothing_leave_no_trace_in_what_is_kept_of_a_judge() -> None:
    assert "settings" not in SETTINGS.model_dump_json()


@pytest.mark.parametrize("reply", [(500, "down", 0), (200, answer("I cannot say"), 0)])
def test_a_judge_that_failed_is_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: tuple[int, object, float]
) -> None:
    monkeypatch.setattr("orchestra.tools.chat.client.RETRIED", frozenset[int]())
    with serving([reply]) as double:
        monkeypatch.setenv(URL, double.url)
        episode = attempt(judged(tmp_path), "its western pillar sank")
    assert episode.verdict is None and not episode.counted


def test_the_cap_holds_for_the_judge_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving([(200, answer("Decision: TRUE"), 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        with pytest.raises(BudgetError, match="could cost"):
            attempt(judged(tmp_path, cap="0.001"), "its western pillar sank")
    assert double.asked == []


def test_a_recorded_verdict_is_replayed_without_address_key_or_dollars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tape.jsonl"
    with serving([(200, answer("Decision: TRUE"), 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        first = attempt(judged(tmp_path, tape=Cassette(file)), "its western pillar sank")
    assert "sk-judge-secret" not in file.read_text()
    monkeypatch.delenv(URL)
    monkeypatch.delenv(KEY)
    (tmp_path / "again").mkdir()
    again = judged(tmp_path / "again", cap="0.01", tape=Cassette(file, "replay"))
    assert attempt(again, "its western pillar sank").model_dump_json() == first.model_dump_json()
    assert again.budget is not None and again.budget.by_component()[Component.JUDGE].cost_usd == 0


def test_without_a_judge_such_an_example_is_refused_and_with_one_taken(tmp_path: Path) -> None:
    item = example(kind="judge", answer=LONG)
    assert "only a judge can check" in str(answer_problem(item, toolkit(tmp_path)))
    assert answer_problem(item, judged(tmp_path)) is None


def test_an_example_without_an_answer_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    item = question("why was the bridge closed?", toolkit(tmp_path))
    policy = ScriptedPolicy("p", lambda _: "because", codec().turn)
    with pytest.raises(ConfigError, match="no expected answer for the judge to compare with — give the example"):
        rollout([item], policy, codec(), judged(tmp_path), RolloutOptions(LIMITS, PRICE))
    (episode,) = rollout([item], policy, codec(), judged(tmp_path), RolloutOptions(LIMITS, PRICE, judge=False))
    assert episode.verdict is None


def test_a_judge_and_the_experts_of_its_provider_share_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, settings = ProviderLimits(requests_per_minute=3), SETTINGS.model_copy(update={"price": "paced/o3-mini"})
    budget = Budget(tmp_path / "ledger.jsonl", Decimal(1))
    judge = JudgeEndpoint(settings, COST, {"paced": limits})

    async def asked(kit: Toolkit, chat: PaidChat) -> list[bool]:
        """Which of the requests to the judge were sent at once, after two to the expert."""
        for _ in range(2):
            await kit.resources.provider("paced/gpt-5").pace()
        sent = []
        for _ in range(2):
            try:
                async with asyncio.timeout(0.5):
                    await chat.ask([Message(role="user", content="right?")], max_tokens=9)
                sent.append(True)
            except TimeoutError:
                sent.append(False)
        await chat.aclose()
        return sent

    with serving([(200, answer("Decision: TRUE"), 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        kit = Toolkit(replace(catalogue(), providers={"paced": limits}), {}, tmp_path, budget=budget, judge=judge)
        assert asyncio.run(asked(kit, kit.judge_chat)) == [True, False] and len(double.asked) == 1


def test_the_documented_judge_has_a_price_on_the_documented_day() -> None:
    page = (ROOT / "docs/explanation/verdicts.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^    world:\n(?:      .*\n)+", page, re.MULTILINE)
    shipped = load_params(ROOT / "params.yaml").world.model_dump()
    world = World.model_validate(shipped | parse_yaml(dedent(shown))["world"])
    assert world.judge is not None and JudgeEndpoint.of(world.judge, world, ROOT).price.output_per_million


def test_a_judge_of_params_has_the_limits_of_its_provider_in_the_catalogue(tmp_path: Path) -> None:
    folder = tmp_path / "data/catalogue"
    shutil.copytree(ROOT / "data/catalogue", folder)
    text = (folder / "tools.yaml").read_text(encoding="utf-8")
    text = text.replace("providers:\n", "providers:\n  openai: {requests_per_minute: 7}\n")
    (folder / "tools.yaml").write_text(text, encoding="utf-8")
    world = load_params(ROOT / "params.yaml").world.model_copy(update={"judge": SETTINGS, "domains": []})
    kit, alone = Toolkit.of(world, tmp_path), JudgeEndpoint.of(SETTINGS, world, tmp_path)
    assert kit.judge == alone and alone.providers["openai"].requests_per_minute == 7


@pytest.mark.parametrize("name", ["tools", "real", "current"])
def test_the_limit_of_a_judge_is_named_as_its_provider_names_it_in_every_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    settings = JudgeSettings(model="llama", price="together/llama-3.3-70b-turbo")
    world = load_params(ROOT / "params.yaml").world
    world = world.model_copy(update={"judge": settings, "domains": [], "price_date": "2026-11-28"})
    world = world.model_copy(update={"catalogue": f"data/catalogue/{name}.yaml"})
    with serving([(200, answer("Decision: TRUE"), 0)]) as double:
        monkeypatch.setenv(URL, double.url)
        kit = Toolkit.of(world, ROOT, tmp_path, budget=Budget(tmp_path / "ledger.jsonl", None))
        assert kit.judge == JudgeEndpoint.of(settings, world, ROOT)
        assert attempt(kit, "its western pillar sank").solved
    assert double.asked[0]["max_tokens"] == settings.max_output_tokens
    assert "max_completion_tokens" not in double.asked[0]


def test_where_nothing_is_judged_no_judge_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [example(), example().model_copy(update={"verifier": Verifier(kind="database")})]
    assert judge_of(judged(tmp_path), others) is None is judge_of(toolkit(tmp_path), [example(kind="judge")])
    monkeypatch.setenv(URL, "http://127.0.0.1:1/v1")
    made = judge_of(judged(tmp_path), [*others, example(kind="judge", answer=LONG)])
    assert made is not None and (made.model, made.rubric) == (SETTINGS.model, FRAMES)


def test_a_judge_needs_a_ledger(tmp_path: Path) -> None:
    tools = toolkit(tmp_path, judge=JudgeEndpoint(SETTINGS, COST))
    with pytest.raises(ConfigError, match="nothing books"):
        attempt(tools, "its western pillar sank")
