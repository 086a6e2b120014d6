"""Shares of calls to the strongest expert, its family and the policy's own, on calls counted by hand."""

from pathlib import Path

import pytest

from orchestra.evaluation.analyses.bias import ALL, BiasAnalysis, Chooser, ExpertShares, family, metrics, plot, shares
from orchestra.evaluation.analyses.bias import table as cells
from orchestra.types import Episode, Example
from tests.support.worlds import NEUTRAL, catalogue, episode, example

EXPERTS = ("gpt-5", "gpt-5-mini", "qwen3-32b")
CHEAP = NEUTRAL.model_copy(update={"kind": "cheap", "words": "save money."})


def asked(number: int, **calls: int) -> tuple[Example, Episode]:
    """An example that offers three experts, and an episode with those calls (dashes as underscores)."""
    toolbox = [catalogue().spec(name) for name in ("calculator", *EXPERTS)]
    preference = CHEAP if number % 2 else NEUTRAL
    made = episode(calls={name.replace("_", "-"): count for name, count in calls.items()})
    name = f"e{number}"
    return example(name, toolbox=toolbox, preference=preference), made.model_copy(update={"example_id": name})


def measured(*attempts: tuple[Example, Episode], own: str | None = "qwen") -> list[ExpertShares]:
    examples = {one.id: one for one, _ in attempts}
    return shares(Chooser("grpo", own), [made for _, made in attempts], examples, catalogue(), 50, 0)


@pytest.mark.parametrize(
    ("model", "wanted"),
    [("openai/gpt-5-mini", "gpt"), ("together/qwen2.5-coder-32b", "qwen"), ("Qwen/Qwen3-8B", "qwen"), ("7b", "7b")],
)
def test_the_family_is_in_the_models_name(model: str, wanted: str) -> None:
    assert family(model) == wanted


def test_shares_are_of_calls_to_experts_and_split_by_preference() -> None:
    found = measured(
        asked(0, gpt_5=2, calculator=5), asked(1, gpt_5_mini=1, qwen3_32b=1), asked(2), asked(3, unknown=1)
    )
    by_kind = {one.preference: one for one in found}
    assert [one.preference for one in found] == [ALL, "cheap", "neutral"]
    everything = by_kind[ALL]
    assert everything.calls == 4, "the calculator and a name that nobody offers are no experts"
    assert (everything.strongest.value, everything.family.value, everything.own.value) == (0.5, 0.75, 0.25)
    assert (by_kind["neutral"].strongest.value, by_kind["cheap"].strongest.value) == (1.0, 0.0)
    assert everything.strongest.low is not None and everything.strongest.low < 0.5


def test_a_rule_has_no_family_and_no_call_no_share() -> None:
    (everything, *_) = measured(asked(0, gpt_5=1), own=None)
    assert everything.own.value is None and everything.strongest.value == 1.0
    (nothing, *_) = measured(asked(0, calculator=3))
    assert (nothing.calls, nothing.strongest.value) == (0, None)


def test_the_table_the_plot_and_the_metrics_tell_the_same(tmp_path: Path) -> None:
    rows = tuple(measured(asked(0, gpt_5=3, qwen3_32b=1)))
    analysis = BiasAnalysis(simulated=True, examples=1, shares=rows)
    assert cells(analysis)[1][:3] == ("trained orchestrator", "all", "4")
    assert cells(analysis)[1][3].startswith("75.0 %") and len(cells(analysis)) == 3
    assert metrics(analysis) == {"grpo.strongest": 0.75, "grpo.family": 0.75, "grpo.own": 0.25}
    plot(analysis, tmp_path / "bias.png")
    assert (tmp_path / "bias.png").read_bytes().startswith(b"\x89PNG")
