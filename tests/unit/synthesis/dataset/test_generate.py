"""What synthesis makes: right by replay, apart by entity, the same for a seed, varied and short."""

import asyncio
import shutil
from collections import Counter
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.config.schema import Params
from orchestra.domains.engine import load_domain
from orchestra.errors import DataError
from orchestra.synthesis.dataset.generate import MAX_UNANSWERABLE, Generated, card, counts_of, generate
from orchestra.synthesis.domain_tasks.drafts import domain_drafts
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example, ToolKind
from orchestra.validation.replay import answerable, replay
from tests.support.worlds import ROOT, synthesized

MIX = {
    Category.ARITHMETIC: 0.15,
    Category.FACT: 0.15,
    Category.TWO_HOP: 0.15,
    Category.TOPIC: 0.53,
    Category.LOOKUP: 0.01,
    Category.CHANGE: 0.01,
}


def params(**changes: Any) -> Params:
    return synthesized(**{"mix": MIX, "train_examples": 400, "heldout_examples": 100, **changes})


@lru_cache
def made(seed: int = 7) -> tuple[Generated, Toolkit]:
    chosen = params(seed=seed)
    kit = Toolkit.from_params(chosen, ROOT)
    found = generate(chosen, kit)
    return found, found.known_to(kit)


def everything() -> list[Example]:
    return made()[0].examples["train"] + made()[0].examples["heldout"]


def test_two_domains_and_two_price_lists_share_a_set() -> None:
    """As `--set world.domains=[mock,weather]` makes it, with two days in synthesize.price_dates."""
    days = [date(2025, 11, 15), date(2026, 5, 1)]
    mix = {Category.LOOKUP: 0.5, Category.CHANGE: 0.5}
    few = params(mix=mix, train_examples=16, heldout_examples=8, price_dates=days, price_spread=1.0)
    few = few.model_copy(update={"world": few.world.model_copy(update={"domains": ["mock", "weather"]})})
    both = Toolkit.from_params(few, ROOT)
    found = generate(few, both)
    both = found.known_to(both)
    for examples in found.examples.values():
        assert {example.domain for example in examples} == {"mock", "weather"}
        assert {example.price_date for example in examples} == set(days)
    told = [Example.model_validate_json(example.model_dump_json()) for example in found.examples["train"]]
    assert told == found.examples["train"] and "price_date" not in everything()[0].model_dump()
    for example in found.examples["train"]:
        listed = both.catalogue.on(example.price_date or days[0]).prices
        assert all(spec.price == listed[spec.tool] for spec in example.toolbox if spec.kind is ToolKind.EXPERT)
    with asyncio.Runner() as runner:
        for example in found.examples["heldout"]:
            assert runner.run(replay(example, both)) is None


def test_every_category_is_there_in_its_share() -> None:
    counts = Counter(example.category for example in made()[0].examples["train"])
    assert counts == counts_of(MIX, 400) and sum(counts.values()) == 400


def test_the_known_solution_of_every_example_solves_it() -> None:
    kit = made()[1]
    with asyncio.Runner() as runner:
        for example in everything():
            if example.category is not Category.TOPIC:
                assert example.verifier.golden_calls
                assert runner.run(replay(example, kit)) is None, example


def test_a_solution_that_is_wrong_is_refused_with_the_reason() -> None:
    kit = made()[1]
    example = next(e for e in everything() if e.category is Category.FACT)

    def broken(**changes: Any) -> str | None:
        verifier = example.verifier.model_copy(update=changes)
        return asyncio.run(replay(example.model_copy(update={"verifier": verifier}), kit))

    assert broken(answer="Nobody") == "the answer is not in the last observation"
    call = example.verifier.golden_calls[0]
    assert "malformed" in str(broken(golden_calls=(call.model_copy(update={"name": "find"}),)))


def test_nothing_held_out_is_in_training() -> None:
    train, heldout = made()[0].examples["train"], made()[0].examples["heldout"]
    assert not {e for x in train for e in x.entities} & {e for x in heldout for e in x.entities}
    assert not {x.instruction for x in train} & {x.instruction for x in heldout}
    words = [{x.preference.words for x in split if x.preference.kind != "neutral"} for split in (train, heldout)]
    assert not words[0] & words[1]
    assert all(example.entities for example in everything())
    assert len({example.id for example in everything()}) == 500


def test_the_same_seed_makes_the_same_and_another_makes_others() -> None:
    chosen = params()
    again = generate(chosen, Toolkit.from_params(chosen, ROOT))
    assert again.examples == made()[0].examples and again.answers == made()[0].answers
    assert [e.instruction for e in made(8)[0].examples["train"]] != [e.instruction for e in again.examples["train"]]


def test_toolboxes_hold_what_is_needed_and_vary() -> None:
    kit = made()[1]
    for example in everything():
        names = [spec.name for spec in example.toolbox]
        experts = [spec.tool for spec in example.toolbox if spec.kind is ToolKind.EXPERT]
        assert len(set(names)) == len(names)
        assert {call.name for call in example.verifier.golden_calls} <= set(names)
        assert set(example.preference.tools) <= set(names)
        assert 3 <= len(experts) <= 5
        if example.topic is not None:
            assert any(
                kit.catalogue.strength(name) >= 0.55 or kit.catalogue.skill(name, example.topic) >= 0.6
                for name in experts
            )
    assert len({tuple(sorted(spec.name for spec in example.toolbox)) for example in everything()}) > 200


def test_prices_are_spread_log_uniformly_around_the_book() -> None:
    kit, spread = made()[1], params().synthesize.price_spread
    base = kit.catalogue.spec("gpt-5").call_usd
    factors = [float(s.call_usd / base) for e in everything() for s in e.toolbox if s.tool == "gpt-5"]
    assert min(factors) >= 0.99 / spread and max(factors) <= 1.01 * spread
    assert 0.4 < sum(factor < 1 for factor in factors) / len(factors) < 0.6


def test_most_topic_questions_can_be_answered_and_some_cannot() -> None:
    generated, kit = made()
    topics = [e for e in generated.examples["train"] if e.category is Category.TOPIC]
    lost = sum(not answerable(example, kit) for example in topics)
    assert lost == generated.unanswerable["train"]
    assert 0 < lost <= MAX_UNANSWERABLE * len(topics)


def test_knowing_the_experts_pays() -> None:
    """An oracle beats always-strongest clearly at a fraction of the cost, and always-cheapest is poor."""
    kit = made()[1]
    right: Counter[str] = Counter()
    dollars = dict.fromkeys(("oracle", "strongest", "cheapest"), 0.0)
    topics = [example for example in everything() if example.category is Category.TOPIC]
    for example in topics:
        experts = [spec for spec in example.toolbox if spec.kind is ToolKind.EXPERT]
        knows = [s for s in experts if kit.expert(s.tool).reply(example.instruction) == example.verifier.answer]
        cheapest = min(experts, key=lambda spec: spec.call_usd)
        chosen = {
            "oracle": min(knows, key=lambda spec: spec.call_usd) if knows else cheapest,
            "strongest": max(experts, key=lambda spec: kit.catalogue.strength(spec.tool)),
            "cheapest": cheapest,
        }
        for name, spec in chosen.items():
            right[name] += spec in knows
            dollars[name] += float(spec.call_usd)
    assert right["oracle"] > 0.85 * len(topics) > 0.75 * len(topics) > right["strongest"] > 1.5 * right["cheapest"]
    assert dollars["oracle"] < 0.4 * dollars["strongest"]


def test_instructions_are_short_and_varied() -> None:
    texts = [example.instruction for example in everything() if example.category is not Category.LOOKUP]
    assert max(len(text) for text in texts) < 200
    # Names apart, many different wordings.
    assert len({" ".join(w for w in text.split() if w.islower()) for text in texts}) > 150


def test_the_card_counts_what_was_made() -> None:
    summary = card(made()[0], params())
    assert summary["simulated"] is True and summary["counts"] == {"train": 400, "heldout": 100}
    assert sum(summary["categories"]["train"].values()) == 400
    assert {"cheap", "fast", "accurate", "prefer", "avoid", "neutral"} == set(summary["preferences"]["train"])
    assert summary["licences"] == {"train": {"Apache-2.0": 400}, "heldout": {"Apache-2.0": 100}}
    assert summary["sources"]["train"] == {"synthetic": 400} and summary["cost_usd"] == "0"
    assert sum(summary["examples_by_domain"]["train"].values()) == 400


def test_too_few_domain_tasks_is_one_line_that_says_so() -> None:
    chosen = params(mix={Category.LOOKUP: 1.0}, train_examples=5000, heldout_examples=1)
    with pytest.raises(DataError, match=r"domain mock: only \d+ different train tasks of the category lookup — name"):
        generate(chosen, Toolkit.from_params(chosen, ROOT))
    without = chosen.model_copy(update={"world": chosen.world.model_copy(update={"domains": []})})
    with pytest.raises(DataError, match="need a domain"):
        generate(without, Toolkit.from_params(without, ROOT))


def test_other_domains_fill_in_for_a_small_one_and_the_card_says_so() -> None:
    few = params(mix={Category.LOOKUP: 1.0}, train_examples=60, heldout_examples=4, evolved_share=0.0)
    both = few.model_copy(update={"world": few.world.model_copy(update={"domains": ["ecommerce", "mock"]})})
    found = generate(both, Toolkit.from_params(both, ROOT))
    summary = card(found, both)
    mock = summary["used_up"]["train lookup"]["mock"]
    assert summary["examples_by_domain"]["train"] == {"ecommerce": 60 - mock, "mock": mock} and 0 < mock < 30
    assert list(summary["used_up"]) == ["train lookup"], "the held-out examples are few enough"
    asked = [example.asked for example in found.examples["train"]]
    assert len(set(asked)) == len(asked)


def test_a_domain_that_is_wrong_is_no_small_one(tmp_path: Path) -> None:
    leaky = Path(shutil.copytree(ROOT / "data/domains/ecommerce", tmp_path / "ecommerce"))
    file = leaky / "intents.yaml"
    file.write_text(file.read_text().replace("product, coupon]", "product]"))
    domains = [load_domain(leaky), load_domain(ROOT / "data/domains/mock")]
    with pytest.raises(DataError, match="would be in training and held out"):
        list(domain_drafts(domains, 7, "train", Category.LOOKUP, 5))


@given(st.lists(st.integers(0, 20), min_size=len(Category), max_size=len(Category)).filter(any), st.integers(1, 5000))
def test_counts_add_up_and_stay_within_one_of_their_share(parts: list[int], count: int) -> None:
    mix = {category: part / sum(parts) for category, part in zip(Category, parts, strict=True)}
    counts = counts_of(mix, count)
    assert sum(counts.values()) == count
    assert all(abs(counts[category] - share * count) <= 1 for category, share in mix.items())


def test_unused_world_files_are_not_needed(tmp_path: Path) -> None:
    """Generation fills the toolkit itself: nothing of an earlier run is read."""
    chosen = params(mix={Category.ARITHMETIC: 1.0}, train_examples=5, heldout_examples=2)
    generated = generate(chosen, Toolkit.from_params(chosen, ROOT, tmp_path))
    assert len(generated.examples["train"]) == 5 and not generated.documents
