"""The catalogue: the shipped file, its calibration, and every way it can be wrong."""

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestra.accounting.ledger import cost_of
from orchestra.errors import ConfigError
from orchestra.tools.catalogue.catalogue import Catalogue, read_catalogue, scaled
from orchestra.tools.rate_limits import limiter_of
from orchestra.types import Price, ToolKind
from tests.support.worlds import ROOT, catalogue

TOOLS, PRICES = ROOT / "data/catalogue/tools.yaml", ROOT / "data/catalogue/prices.yaml"


def test_shipped_experts_have_the_published_accuracy_and_cost() -> None:
    shipped = catalogue()
    published = {"gpt-5": 0.663, "claude-opus-4.1": 0.582, "qwen3-235b": 0.343, "llama-3.3-70b": 0.324}
    cents = {"gpt-5": 6.2, "claude-opus-4.1": 27.4, "qwen3-235b": 2.6, "llama-3.3-70b": 0.5, "nemotron-49b": 0.4}
    for name, accuracy in {**published, "nemotron-49b": 0.256}.items():
        assert shipped.strength(name) == pytest.approx(accuracy, abs=0.001)
    for name, value in cents.items():
        assert float(shipped.spec(name).call_usd) * 100 == pytest.approx(value, rel=0.01)


def test_providers_that_may_ignore_the_newer_name_of_the_limit_are_sent_the_older() -> None:
    """Together's schema knows max_tokens alone, DeepInfra documents it alone; OpenAI's reasoning models refuse it."""
    for name in ("tools", "real", "current"):
        providers = read_catalogue(ROOT / f"data/catalogue/{name}.yaml").providers
        rows = ("together/any", "deepinfra/any", "fireworks/any", "openai/gpt-5", "anthropic/any", "nobody/known")
        named = [limiter_of(row, providers).limits.limit_parameter for row in rows]
        assert named == [*["max_tokens"] * 3, *["max_completion_tokens"] * 3], name


def test_what_a_catalogue_says_of_a_provider_holds_over_what_the_extended_one_says(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_bytes(TOOLS.read_bytes())
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: tools.yaml\nproviders: {together: {concurrency: 2}, openai: {attempts: 1}}", "utf-8")
    providers = read_catalogue(mine).providers
    assert (providers["together"].limit_parameter, providers["together"].concurrency) == ("max_tokens", 2)
    assert (providers["openai"].attempts, providers["fireworks"].limit_parameter) == (1, "max_tokens")
    mine.write_text("extends: tools.yaml\nproviders: {together: 3}", encoding="utf-8")
    with pytest.raises(ConfigError, match="providers is no mapping of mappings"):
        read_catalogue(mine)


def test_another_day_has_other_prices_and_the_same_tools() -> None:
    shipped, later = catalogue(), catalogue().on(date(2026, 5, 1))
    assert later.entries is shipped.entries and later.policy_price == shipped.policy_price
    assert later.spec("gpt-5").call_usd < shipped.spec("gpt-5").call_usd
    assert later.spec("llama-3.3-70b").call_usd > shipped.spec("llama-3.3-70b").call_usd
    assert shipped.on(date(2025, 11, 15)).prices == shipped.prices
    with pytest.raises(ConfigError, match="no price for"):
        shipped.on(date(2024, 1, 1))


def test_the_strongest_is_mostly_the_best_alone_and_small_ones_come_close_at_a_tenth_of_its_price() -> None:
    shipped = catalogue()
    strongest, experts = shipped.spec("gpt-5"), shipped.names(ToolKind.EXPERT)
    best = [max(experts, key=lambda name: shipped.skill(name, topic)) for topic in shipped.topics]
    assert best.count("gpt-5") >= len(best) - 1
    for topic in shipped.topics:
        close = [name for name in experts if shipped.skill(name, topic) > shipped.skill("gpt-5", topic) - 0.18]
        cheap = [name for name in close if shipped.spec(name).call_usd <= strongest.call_usd / 9]
        assert len(cheap) >= 2


def test_every_expert_says_where_its_figures_come_from_and_is_marked_simulated() -> None:
    for name in catalogue().names(ToolKind.EXPERT):
        entry = catalogue().entry(name)
        assert entry.implementation == "simulated"
        assert "paper" in entry.source or "assumed" in entry.source


def test_spec_of_a_price_factor_scales_price_and_expected_cost_alike() -> None:
    plain, dear = catalogue().spec("gpt-5"), catalogue().spec("gpt-5", price_factor=2.0)
    assert dear.price.output_per_million == 2 * plain.price.output_per_million
    assert dear.call_usd == cost_of(dear.price, catalogue().entry("gpt-5").usage, seconds=dear.latency_s)
    assert plain.call_usd == Decimal("0.062")


@given(
    st.floats(min_value=0.01, max_value=100),
    st.decimals(min_value=0, max_value=1000, places=4),
    st.none() | st.decimals(min_value=0, max_value=100, places=4),
)
def test_scaled_prices_stay_within_half_a_percent(factor: float, value: Decimal, cached: Decimal | None) -> None:
    price = scaled(Price(input_per_million=value, cached_input_per_million=cached), factor)
    assert float(price.input_per_million) == pytest.approx(float(value) * factor, rel=0.006)
    assert (price.cached_input_per_million is None) == (cached is None)


def edited(folder: Path, **changes: Any) -> Path:
    """The shipped catalogue with entries of `tools` replaced or, for None, a field removed."""
    raw = yaml.safe_load(TOOLS.read_text(encoding="utf-8"))
    for name, fields in changes.items():
        raw["tools"][name.replace("_", "-")].update(fields)
    path = folder / "tools.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpt_5": {"price": "openai/gpt-9"}}, "no price for openai/gpt-9"),
        ({"gpt_5": {"latency_s": -1}}, "tools.gpt-5.latency_s"),
        ({"gpt_5": {"colour": "red"}}, "tools.gpt-5.colour"),
        ({"gpt_5": {"simulated": {"skills": {"math": 0.5}, "unsure": 0.5}}}, "no skill for code"),
        ({"gpt_5": {"implementation": "openai"}}, "needs base_url_env"),
        ({"search": {"kind": "domain"}}, "tools.search: an entry of kind domain is never offered"),
    ],
)
def test_a_wrong_entry_is_one_line_that_names_it(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        Catalogue.load(edited(tmp_path, **changes), PRICES, "2025-11-15")
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["web search", "révérse", "x" * 65, ""])
def test_a_name_that_no_prompt_can_show_is_refused_before_a_tool_is_offered(tmp_path: Path, name: str) -> None:
    raw = yaml.safe_load(TOOLS.read_text(encoding="utf-8"))
    raw["tools"][name] = raw["tools"]["search"]
    (tmp_path / "tools.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"is no name of a tool — use at most 64 letters"):
        Catalogue.load(tmp_path / "tools.yaml", PRICES, "2025-11-15")


def test_before_the_first_price_there_is_none() -> None:
    with pytest.raises(ConfigError, match=r"no price for openai/gpt-5 on 2025-01-02 \(the first is from 2025-08-07\)"):
        Catalogue.load(TOOLS, PRICES, "2025-01-02")


def test_a_date_that_is_none_and_a_tool_that_is_none() -> None:
    with pytest.raises(ConfigError, match="is not a date"):
        Catalogue.load(TOOLS, PRICES, "yesterday")
    with pytest.raises(ConfigError, match="no tool named gpt-9"):
        catalogue().spec("gpt-9")
