"""Variants change one thing and nothing else; probes tell policies that read from policies that do not."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestra.config.schema import Rollout
from orchestra.errors import DataError
from orchestra.evaluation.baselines.base import BASELINES
from orchestra.evaluation.baselines.knowledge import Knowledge
from orchestra.evaluation.claims.claims import SeedResult
from orchestra.evaluation.claims.measures import price_fall, trial_ratio, uses
from orchestra.evaluation.claims.seeds import Measure, over_seeds
from orchestra.evaluation.probes.base import Setting, variants
from orchestra.evaluation.probes.run import read_wording, run_probes
from orchestra.evaluation.probes.shipped import preference_changes, price_changes, unseen_changes
from orchestra.evaluation.probes.trials import ProbeResults
from orchestra.evaluation.probes.wording import QUESTION
from orchestra.evaluation.run import Contender
from orchestra.rollout.policies.base import Conversation, ScriptedPolicy
from orchestra.rollout.policies.scripted import ChooseExpert, follow
from orchestra.synthesis.assembly.rename import GENERALIST, SPECIALIST, describe, invented_name
from orchestra.synthesis.preferences.sentences import NEUTRAL, WORDS, sayable
from orchestra.types import SPLITS, Category, Example, Price, ToolKind, ToolSpec
from tests.support.worlds import ROOT, catalogue, codec, example, toolkit

LIMITS = Rollout(max_turns=5, max_turn_tokens=64, max_tokens=4000)
SPREAD = 3.0
EXPERTS = catalogue().names(ToolKind.EXPERT)


def topic(number: int) -> Example:
    """A music question with gpt-5, gpt-5-mini, opus and an expert that does not know music."""
    offered = ["gpt-5", "gpt-5-mini", "claude-opus-4.1", "qwen2.5-math-7b", "calculator"]
    random.Random(number).shuffle(offered)
    toolbox = [catalogue().spec(tool) for tool in offered]
    made = example(f"e{number}", instruction="who wrote Opal?", answer="Tesk", toolbox=toolbox, category=Category.TOPIC)
    return made.model_copy(update={"topic": "music"})


ITEMS = [topic(number) for number in range(12)]


def setting(rng: random.Random | None = None) -> Setting:
    return Setting(catalogue(), SPREAD, rng or random.Random(0))


def test_a_price_variant_changes_one_price_of_a_suited_expert() -> None:
    made = list(price_changes(ITEMS[0], setting()))
    assert [(v.tool, v.name) for v in made] == [
        (spec.tool, name) for spec in ITEMS[0].experts if spec.tool != "qwen2.5-math-7b" for name in ("low", "high")
    ]
    for variant in made:
        assert variant.example.preference == NEUTRAL and variant.example.id == "e0"
        for before, after in zip(ITEMS[0].toolbox, variant.example.toolbox, strict=True):
            if before.tool != variant.tool:
                assert after == before
            else:
                factor = SPREAD if variant.name == "high" else 1 / SPREAD
                assert float(after.call_usd) == pytest.approx(
                    float(catalogue().spec(before.tool).call_usd) * factor, rel=0.02
                )
                assert after == before.model_copy(update={"price": after.price, "call_usd": after.call_usd})


def test_an_expert_without_a_suited_rival_is_not_priced() -> None:
    toolbox = tuple(spec for spec in ITEMS[0].toolbox if spec.tool in ("gpt-5", "qwen2.5-math-7b"))
    assert list(price_changes(ITEMS[0].model_copy(update={"toolbox": toolbox}), setting())) == []


def test_preference_variants_differ_in_the_wish_alone() -> None:
    made = list(preference_changes(ITEMS[0], setting()))
    assert len(made) == 9 and len({variant.tool for variant in made}) == 1
    assert made[0].name == "neutral" and made[0].example.preference == NEUTRAL
    chosen = made[0].tool
    for variant in made[1:]:
        kind, split = variant.name.split("/")
        wish = variant.example.preference
        assert wish.kind == kind and wish.words in [
            words.format(x=chosen) for words in sayable(kind, "train" if split == "train" else "heldout")
        ]
        assert variant.example.model_copy(update={"id": "e0", "preference": ITEMS[0].preference}) == ITEMS[0]
    by_name = {variant.name: variant.example.preference.tools for variant in made}
    assert set(by_name["prefer/train"]) == {chosen}
    assert chosen not in by_name["avoid/heldout"] and len(by_name["avoid/heldout"]) == 3


def test_unseen_experts_share_no_name_or_description_with_training() -> None:
    wordings = {template for split in SPECIALIST.values() for template in split}
    assert len(wordings) == sum(map(len, SPECIALIST.values()))
    general = [words for grade in GENERALIST.values() for split in SPLITS for words in grade[split]]
    assert len(set(general)) == len(general)
    rng = random.Random(1)
    trained = {invented_name(rng) for _ in range(20_000)} | set(EXPERTS)
    said = {describe(catalogue(), tool, rng) for tool in EXPERTS for _ in range(300)}
    said |= {catalogue().entry(tool).description for tool in EXPERTS}
    for item in ITEMS:
        known, unseen = unseen_changes(item, setting(rng))
        assert known.example.model_copy(update={"id": item.id}) == item
        for before, after in zip(item.toolbox, unseen.example.toolbox, strict=True):
            if before.kind is not ToolKind.EXPERT:
                assert after == before
                continue
            assert after.tool == before.tool and after.latency_s == before.latency_s
            assert after.name not in trained and after.description not in said
            assert (
                1 / (2 * SPREAD) * 0.98 <= after.call_usd / catalogue().spec(after.tool).call_usd <= 2 * SPREAD * 1.02
            )


def test_variants_are_repeatable_and_have_names_of_their_own() -> None:
    made = variants(ITEMS, catalogue(), spread=SPREAD, seed=5)
    assert made == variants(ITEMS, catalogue(), spread=SPREAD, seed=5)
    assert made != variants(ITEMS, catalogue(), spread=SPREAD, seed=6)
    assert len({variant.example.id for variant in made}) == len(made) == 12 * (6 + 9 + 2)


def probe(choose: ChooseExpert, folder: Path) -> ProbeResults:
    def build() -> ScriptedPolicy:
        return ScriptedPolicy("ours", lambda conversation: follow(conversation, choose), codec().turn)

    contender = Contender("ours", build, codec(), Price())
    return run_probes(
        contender, ITEMS, toolkit(folder), LIMITS, price_spread=SPREAD, seed=0, count=12, file=folder / "probes.jsonl"
    )


def value(found: ProbeResults, measure: Callable[[SeedResult], Measure]) -> float | None:
    seed = SeedResult(seed=0, minutes=1, dollars=0, outcomes={}, probes=found)
    return over_seeds([measure(seed)], 20, 0)[0].value


def test_a_policy_that_reads_neither_prices_nor_wishes_shows_it(tmp_path: Path) -> None:
    found = probe(BASELINES["always_strongest"].rule(Knowledge(catalogue())), tmp_path)
    assert value(found, price_fall) == pytest.approx(0)
    for variant in ("prefer/train", "prefer/heldout", "avoid/train", "avoid/heldout"):
        assert value(found, trial_ratio("preference", "neutral", variant, uses)) == pytest.approx(1)
    for variant in ("cheap/train", "fast/heldout"):
        assert value(
            found, trial_ratio("preference", "neutral", variant, lambda t: t.outcome.cost_usd)
        ) == pytest.approx(1)
    assert value(found, trial_ratio("unseen", "strongest", "unseen", lambda t: t.outcome.cost_usd)) == pytest.approx(1)


def test_a_policy_that_reads_both_shows_it_and_renamed_experts_say_the_same(tmp_path: Path) -> None:
    def choose(conversation: Conversation, left: list[ToolSpec]) -> ToolSpec | None:
        wish = conversation.example.preference
        if conversation.turns:
            return None
        general = [spec for spec in left if spec.tool != "qwen2.5-math-7b"]
        if wish.kind in ("prefer", "avoid"):
            return max(left, key=lambda spec: wish.tools.get(spec.name, 0.0))
        if wish.kind == "fast":
            return min(left, key=lambda spec: spec.latency_s)
        if wish.kind == "cheap":
            return min(left, key=lambda spec: spec.call_usd)
        return min(general, key=lambda spec: abs(float(spec.call_usd) - 0.03))

    found = probe(choose, tmp_path)
    fall = value(found, price_fall)
    assert fall is not None and fall > 0
    for split in SPLITS:
        assert (value(found, trial_ratio("preference", "neutral", f"prefer/{split}", uses)) or 0) >= 1.5
        assert value(found, trial_ratio("preference", "neutral", f"avoid/{split}", uses)) == 0
        assert (
            value(found, trial_ratio("preference", "neutral", f"cheap/{split}", lambda t: t.outcome.cost_usd)) or 1
        ) < 0.8
        assert (
            value(found, trial_ratio("preference", "neutral", f"fast/{split}", lambda t: t.outcome.latency_s)) or 1
        ) < 0.8
    replies = {tool: toolkit(tmp_path).expert(tool).reply("who wrote Opal?") == "Tesk" for tool in EXPERTS}
    unseen = found.of("unseen", "unseen")
    assert len(unseen) == 12
    for trial in unseen:
        (asked,) = trial.outcome.calls
        assert trial.outcome.solved == replies[asked]


def test_a_killed_probe_continues_and_no_topic_example_is_an_error(tmp_path: Path) -> None:
    choose = BASELINES["always_cheapest"].rule(Knowledge(catalogue()))
    whole = probe(choose, tmp_path)
    file = tmp_path / "probes.jsonl"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    assert probe(choose, tmp_path) == whole and file.read_bytes() == content
    with pytest.raises(DataError, match="no topic example"):
        run_probes(
            Contender("x", lambda: ScriptedPolicy("x", lambda c: "", codec().turn), codec(), Price()),
            [example()], toolkit(tmp_path), LIMITS, price_spread=SPREAD, seed=0, count=3, file=file,
        )  # fmt: skip


def test_sentences_in_ordinary_english_are_told_to_the_policy_once_a_kind() -> None:
    wording = read_wording(ROOT / "tests/data/wording")
    assert len(wording.pop(QUESTION)) == 80
    assert set(wording) == {"cheap", "fast", "accurate", "prefer", "avoid"} and sum(map(len, wording.values())) == 300
    made = [
        one for one in variants(ITEMS, catalogue(), spread=SPREAD, seed=5, wording=wording) if one.probe == "wording"
    ]
    assert [one.name for one in made[:6]] == ["neutral", *wording]
    for one in made:
        told = one.example.preference
        assert told.kind == one.name and "{x}" not in told.words
        assert all("{x}" not in sentence or told.kind in ("prefer", "avoid") for sentence in wording.get(told.kind, []))
    assert not any(one.probe == "wording" for one in variants(ITEMS, catalogue(), spread=SPREAD, seed=5))


def test_no_sample_of_ordinary_english_is_a_sentence_of_training() -> None:
    samples = {words for sentences in read_wording(ROOT / "tests/data/wording").values() for words in sentences}
    fixed = {sentence for splits in WORDS.values() for sentences in splits.values() for sentence in sentences}
    assert len(samples & fixed) <= 3, samples & fixed
