"""The arms side by side: which are trained, and what their table says."""

from pathlib import Path

import pytest

from orchestra.config.overrides import effective
from orchestra.config.schema import load_params
from orchestra.evaluation.claims.arms import ABLATIONS, ARMS, OURS, markdown, side_by_side, trained_arms
from orchestra.evaluation.claims.claims import SeedResult, show
from orchestra.evaluation.outcomes import Outcome
from orchestra.evaluation.probes.trials import ProbeResults
from orchestra.rewards.properties import check_weights
from orchestra.synthesis.preferences.sentences import WORDS, stated
from tests.support.worlds import NEUTRAL, ROOT, example

EXAMPLES = {name: example(name) for name in ("e0", "e1", "e2", "e3")}


def result(solved: list[bool | None], usd: float, seconds: float) -> SeedResult:
    def outcomes(solved: list[bool | None], usd: float, seconds: float) -> tuple[Outcome, ...]:
        return tuple(
            Outcome(example_id=f"e{n}", solved=one, cost_usd=usd, latency_s=seconds, calls={"gpt-5": 1})
            for n, one in enumerate(solved)
        )

    found = {"grpo": outcomes(solved, usd, seconds), "always_strongest": outcomes([True] * 4, 0.04, 40)}
    return SeedResult(seed=0, minutes=1, dollars=1, outcomes=found, probes=ProbeResults(trials=()))


def test_every_arm_is_a_valid_change_of_the_parameters(tmp_path: Path) -> None:
    from orchestra.config.overrides import apply

    for arm in (*ARMS, *ABLATIONS):
        file = tmp_path / "params.yaml"
        file.write_bytes((ROOT / "params.yaml").read_bytes())
        apply(file, [f"{key}={value}" for key, value in (arm.overrides or {}).items()])
        assert (load_params(file).grpo != load_params(ROOT / "params.yaml").grpo) is bool(
            arm.overrides
        ) or arm in ABLATIONS


PROFILES = ["params.yaml", *(str(file.relative_to(ROOT)) for file in ROOT.glob("models/recipes/*/params.yaml"))]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_reward_of_every_arm_is_accepted_with_every_profile(profile: str) -> None:
    params = load_params(ROOT / profile)
    for arm in trained_arms(params, True):
        changed = effective(ROOT / profile, [f"{key}={value}" for key, value in (arm.overrides or {}).items()])
        check_weights([stated(kind, "", ["a", "b", "c"], "a") for kind in ("neutral", *WORDS)], changed.grpo.resolved())


def test_without_branches_their_arms_are_ours() -> None:
    params = load_params(ROOT / "params.yaml")
    assert params.grpo.branch is not None
    branched = {"first choices alone", "sampled, not branched"}
    for branch, gone in ((None, branched), (params.grpo.branch.model_copy(update={"later": 0.0}), {min(branched)})):
        other = params.model_copy(update={"grpo": params.grpo.model_copy(update={"branch": branch})})
        assert {arm.name for arm in trained_arms(params, True) if arm not in trained_arms(other, True)} == gone


def test_ours_comes_last_and_what_is_configured_is_no_ablation() -> None:
    params = load_params(ROOT / "params.yaml")
    assert [arm.name for arm in trained_arms(params, False)] == ["outcome alone", "published Eq. 1-3", "grpo"]
    arms = trained_arms(params, True)
    assert arms[-1] == OURS and len(arms) == 3 + len(ABLATIONS)
    dropping = params.model_copy(update={"grpo": params.grpo.model_copy(update={"malformed": "drop"})})
    assert [arm.name for arm in arms if arm not in trained_arms(dropping, True)] == ["malformed left out"]


def test_the_table_leaves_out_what_failed_and_shows_a_dash_for_what_is_unknown() -> None:
    columns = {"base": [result([True, True, None, False], 0.01, 20)], "grpo": [result([True] * 4, 0.02, 4)]}
    rows = {row.name: row for row in side_by_side(columns, EXAMPLES, bootstrap=50, seed=0)}
    assert rows["accuracy"].cells["base"].value == pytest.approx(2 / 3)
    worth = NEUTRAL.outcome * 2 / 3 - NEUTRAL.compute * 0.01 / 0.04 - NEUTRAL.latency * 20 / 40
    assert rows["utility"].cells["base"].value == pytest.approx(worth)
    assert rows["unseen experts: accuracy kept"].cells["grpo"].value is None
    lines = markdown(list(rows.values()), show).splitlines()
    assert lines[0] == "| | base | **ours** |"
    assert "| cents an example | 1.00 [1.00, 1.00] | 2.00 [2.00, 2.00] |" in lines
    assert "| unseen experts: accuracy kept | — | — |" in lines
