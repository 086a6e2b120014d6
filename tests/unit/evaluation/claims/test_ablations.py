"""The ablations: which have to be trained, and what their table says."""

import yaml

from orchestra.evaluation.claims.ablations import ABLATIONS, configured_name, markdown, row, split
from orchestra.evaluation.outcomes import Outcome
from tests.support.worlds import NEUTRAL, ROOT, example

EXAMPLES = {name: example(name) for name in ("e0", "e1", "e2", "e3")}


def outcomes(solved: list[bool | None], cost_usd: float, latency_s: float) -> list[Outcome]:
    return [
        Outcome(example_id=f"e{n}", solved=one, cost_usd=cost_usd, latency_s=latency_s, calls={})
        for n, one in enumerate(solved)
    ]


def test_every_one_names_a_parameter_and_one_side_of_each_is_configured() -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    same, other = split(params)
    assert len(same) + len(other) == len(ABLATIONS)
    assert sorted(key for one in same for key in one.overrides) == ["grpo.malformed", "grpo.normalise", "grpo.reward"]
    for one in same:
        assert one.name in configured_name(same)


def test_another_configuration_leaves_others_to_train() -> None:
    params = {"grpo": {"reward": "outcome", "malformed": "drop", "normalise": "sum_then_normalise"}}
    same, other = split(params)
    assert [one.name for one in same] == [
        "reward: outcome only",
        "malformed episodes: left out",
        "sum, then normalise",
    ]
    assert {value for one in other for value in one.overrides.values()} == {
        "efficiency",
        "full",
        "zero",
        "normalise_then_sum",
    }


def test_a_row_leaves_out_what_failed_and_counts_utility_in_the_strongests_dollars() -> None:
    strongest = outcomes([True, True, False, False], 0.04, 40.0)
    found = row("x", 3, outcomes([True, True, None, False], 0.01, 20.0), strongest, EXAMPLES, 50)
    assert found.accuracy.value is not None and abs(found.accuracy.value - 2 / 3) < 1e-9
    assert found.cost_usd.value == 0.01 and found.latency_s.value == 20.0 and found.seed == 3
    expected = NEUTRAL.outcome * 2 / 3 - NEUTRAL.compute * 0.01 / 0.04 - NEUTRAL.latency * 20 / 40
    assert found.utility.value is not None and abs(found.utility.value - expected) < 1e-9
    assert found.accuracy.low is not None and found.accuracy.low <= found.accuracy.value <= (found.accuracy.high or 0)


def test_the_table_shows_intervals_and_a_dash_for_what_is_unknown() -> None:
    strongest = outcomes([True] * 4, 0.04, 40.0)
    known = row("known", 0, outcomes([True] * 4, 0.0123, 4.0), strongest, EXAMPLES, 50)
    unknown = row("unknown", 0, outcomes([None] * 4, 0.01, 1.0), strongest, EXAMPLES, 50)
    lines = markdown([known, unknown]).splitlines()
    assert lines[2].startswith("| known | 0 | 100.0 % (100.0 to 100.0) | 1.230 (1.230 to 1.230) | 4.0 (4.0 to 4.0) | ")
    assert lines[3] == "| unknown | 0 | — | — | — | — |"
