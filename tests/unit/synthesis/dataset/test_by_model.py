"""A model writes in the flow: what holds joins the set, a cap ends it, and a cassette makes the same set again."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestra.accounting.ledger import total
from orchestra.config.retraining import BudgetLimits
from orchestra.config.schema import Params, load_params, parse_params
from orchestra.domains.engine import load_domain
from orchestra.errors import BudgetError, ConfigError, ServiceError
from orchestra.files.jsonl import read_jsonl
from orchestra.files.yaml import parse_yaml
from orchestra.synthesis.dataset.by_model import by_rule, wanted, written_first
from orchestra.synthesis.dataset.workers import synthesize
from orchestra.synthesis.domain_tasks.tasks import domain_tasks
from orchestra.types import Category, Charge, Component, Example
from tasks.platform.stage import Stage
from tasks.synthesize import main as stage_main
from tests.support.endpoint import answer, serving, taking_no
from tests.support.worlds import ROOT

VERSION = "data/versions/flow"
MIX = {"arithmetic": 0.5, "lookup": 0.25, "change": 0.25}
REAL = {"catalogue": "data/catalogue/real.yaml", "price_date": "2026-08-06"}
WRITER = {"model": "m-1", "price": "openai/gpt-5-mini", "cap_usd": 1.0}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace whose inputs are the repository's."""
    (tmp_path / "data").mkdir()
    for name in ("data/catalogue", "data/domains", "data/licences.yaml", "data/protected", "models"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def params(generator: str = "both", world: Mapping[str, str] | None = None, **writer: Any) -> Params:
    raw = parse_yaml((ROOT / "params.yaml").read_text(encoding="utf-8"))
    raw["world"] |= {"domains": ["mock"], **(world or {})}
    raw["synthesize"] |= {"train_examples": 24, "heldout_examples": 12, "mix": MIX, "evolved_share": 0.0}
    raw["synthesize"] |= {"generator": generator, "writer": {**WRITER, **writer}}
    return parse_params(raw)


def model(tokens: int = 7) -> Callable[[dict[str, Any]], Any]:
    """Writes tasks that hold, those of training first, each in so many tokens."""

    def tasks() -> Iterator[dict[str, Any]]:
        domain = load_domain(ROOT / "data/domains/mock")
        for split, count in (("train", 8), ("heldout", 4)):
            for task in domain_tasks(domain, 5, count, split):  # type: ignore[arg-type]
                calls = [{"tool": call.name, "arguments": call.arguments} for call in task.golden_calls]
                told = list(task.communicate)
                yield {
                    "instruction": f"Hello, {task.instruction}", "category": task.category, "calls": calls,
                    "communicate": told, "answer": f"It is {' and '.join(told)}.",
                }  # fmt: skip

    left = tasks()

    def reply(request: dict[str, Any]) -> tuple[int, Any, float]:
        body = answer(json.dumps(next(left)))
        body["usage"]["completion_tokens"] = tokens
        return 200, body, 0

    return reply


def say(_: str) -> None:
    """Silent."""


def made_by(root: Path, of: Params) -> dict[str, Counter[str]]:
    synthesize(of, root, root / "out", workers=1, say=say)
    files = {split: root / "out" / f"{split}.jsonl" for split in ("train", "heldout")}
    return {
        split: Counter(one.provenance.generator for one in read_jsonl(file, Example)) for split, file in files.items()
    }


def test_what_the_model_wrote_joins_what_is_made_by_rule(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(model()) as double:
        monkeypatch.setenv("ORCHESTRA_WRITER_URL", double.url)
        after = written_first(params(), root, say)
    assert [one.split for one in after.synthesize.extra] == ["train", "heldout"]
    assert (after.synthesize.train_examples, after.synthesize.heldout_examples) == (18, 9)
    found = made_by(root, after)
    assert found["train"]["model:m-1"] >= 5 and found["heldout"]["model:m-1"] >= 2
    assert found["train"].total() - found["train"]["model:m-1"] == 18
    card = json.loads((root / "out/card.json").read_text())
    assert set(card["extra"]) == {f"{VERSION}/mock-train.jsonl", f"{VERSION}/mock-heldout.jsonl"}


def test_its_limit_and_its_settings_are_sent_and_what_is_too_long_is_told_with_the_fix(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = answer("")
    body["choices"][0]["finish_reason"] = "length"
    said = list[str]()
    with serving(lambda _: (200, body, 0)) as double:
        monkeypatch.setenv("ORCHESTRA_WRITER_URL", double.url)
        written_first(params(max_output_tokens=900, settings={"reasoning_effort": "low"}), root, said.append)
        assert {(one["max_completion_tokens"], one["reasoning_effort"]) for one in double.asked} == {(900, "low")}
    assert "cut off after 900 output tokens" in str(said) and "raise the writer's max_output_tokens" in str(said)


def test_a_parameter_that_its_model_refuses_is_told_with_the_setting_that_leaves_it_out(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(taking_no("seed")) as double:
        monkeypatch.setenv("ORCHESTRA_WRITER_URL", double.url)
        with pytest.raises(ServiceError, match=r"leave it out by synthesize\.writer\.settings: \{seed: null\}"):
            written_first(params(), root, say)


def test_a_replay_writes_the_same_without_an_address(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(model()) as double:
        monkeypatch.setenv("ORCHESTRA_WRITER_URL", double.url)
        written_first(params(), root, say)
    before = (root / VERSION / "mock-train.jsonl").read_bytes()
    monkeypatch.delenv("ORCHESTRA_WRITER_URL")
    spent = total(read_jsonl(root / VERSION / "ledger.jsonl", Charge))
    written_first(params(cassette="replay"), root, say)
    assert (root / VERSION / "mock-train.jsonl").read_bytes() == before
    assert total(read_jsonl(root / VERSION / "ledger.jsonl", Charge)) == spent > 0


def test_a_cap_ends_it_and_a_higher_one_goes_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(model(tokens=2_000)) as double:  # 0.4 cents each
        monkeypatch.setenv("ORCHESTRA_WRITER_URL", double.url)
        with pytest.raises(BudgetError, match="what was written is kept"):
            written_first(params(cap_usd=0.03), root, say)
        asked = len(double.asked)
        assert total(read_jsonl(root / VERSION / "ledger.jsonl", Charge)) <= Decimal("0.03")
        written_first(params(), root, say)
        assert 0 < asked < 12 == len(double.asked)


def test_the_run_s_cap_ends_it_and_the_run_s_ledger_holds_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRA_LEDGER", str(root / "run.jsonl"))
    capped = params().model_copy(update={"budget": BudgetLimits(run_usd=Decimal("0.03"))})
    with serving(model(tokens=2_000)) as double:
        monkeypatch.setenv("ORCHESTRA_WRITER_URL", double.url)
        with pytest.raises(BudgetError, match=r"of 0\.03 USD are spent"):
            stage_main(Stage.open("synthesize", root, capped))
    run, version = (read_jsonl(file, Charge) for file in (root / "run.jsonl", root / VERSION / "ledger.jsonl"))
    assert [one.cost_usd for one in run] == [one.cost_usd for one in version]
    assert Decimal("0.01") < total(run) <= Decimal("0.03") and {one.phase for one in run} == {"synthesize"}


def test_an_expert_that_tries_is_under_the_cap_and_paid_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = params(world=REAL, solver="chat:gpt-5-mini")
    with serving(model()) as writer, serving(lambda _: (200, answer("I do not know"), 0)) as solver:
        for name, value in {"ORCHESTRA_WRITER_URL": writer.url, "OPENAI_BASE_URL": solver.url}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
        written_first(tried, root, say)
        asked, spent = len(solver.asked), read_jsonl(root / VERSION / "ledger.jsonl", Charge)
        assert asked >= 80 and sum(one.component is Component.POLICY for one in spent) == asked
        written_first(tried, root, say)
        assert len(solver.asked) == asked
    assert total(read_jsonl(root / VERSION / "ledger.jsonl", Charge)) == total(spent) > 0


def test_preferences_that_the_cap_ends_are_no_finished_set(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(request: dict[str, Any]) -> tuple[int, Any, float]:
        if request["response_format"]["json_schema"]["name"] in ("Proposed", "Read"):
            return 200, answer("{}") | {"usage": {"prompt_tokens": 9, "completion_tokens": 6_000}}, 0
        return tasks(request)  # type: ignore[no-any-return]

    tasks = model()
    with serving(reply) as double:
        monkeypatch.setenv("ORCHESTRA_WRITER_URL", double.url)
        with pytest.raises(BudgetError, match=r"of 0\.05 USD are spent"):
            written_first(params(cap_usd=0.05, preferences=20, solver="none"), root, say)
    assert not (root / VERSION / "preferences.jsonl").exists()


def test_by_rule_asks_nobody(root: Path) -> None:
    rules = load_params(ROOT / "params.yaml")
    assert written_first(rules, root, say) is rules


@pytest.mark.parametrize(("generator", "theirs"), [("both", 6), ("llm", 12)])
def test_the_shares_add_up(generator: str, theirs: int) -> None:
    config = params(generator).synthesize
    rest = by_rule(config)
    assert wanted(config, "train") == theirs and rest.train_examples == 24 - theirs
    assert sum(rest.mix.values()) == pytest.approx(1)
    assert rest.mix[Category.ARITHMETIC] * rest.train_examples == pytest.approx(12)


def test_a_generator_without_a_model_is_one_line() -> None:
    raw = parse_yaml((ROOT / "params.yaml").read_text(encoding="utf-8"))
    raw["synthesize"]["generator"] = "llm"
    with pytest.raises(ConfigError, match="generator llm needs writer"):
        parse_params(raw)
