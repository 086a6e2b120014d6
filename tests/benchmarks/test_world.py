"""The world's reckoning: several turns beat every router that asks once, and reward moves even chances."""

import random
from statistics import mean

import pytest

from benchmarks import choices, reckoning
from benchmarks.reckoning import Asked, played, questions, routers
from orchestra.config.schema import Grpo, load_params
from orchestra.evaluation.outcomes import Outcome, Unit, utility
from orchestra.synthesis.preferences.sentences import weighed
from tests.support.worlds import ROOT


@pytest.fixture(scope="module")
def rows() -> list[Asked]:
    return questions(load_params(ROOT / "params.yaml"), ROOT, 800, 21)


def worth(outcomes: list[Outcome], kind: str, unit: Unit) -> float:
    return mean(utility(one, weighed(kind, "", (), ()), unit) for one in outcomes)


def test_several_turns_beat_every_router_that_asks_once(rows: list[Asked]) -> None:
    strongest = played(reckoning.always_strongest, rows)
    unit = Unit(cost_usd=mean(o.cost_usd for o in strongest), latency_s=mean(o.latency_s for o in strongest))
    once = [found for knows in (False, True) for found in routers(rows, unit, knows_hard=knows).items()]
    best = {
        kind: max(
            worth(played(strategy, rows), kind, unit)
            for name, strategy in reckoning.STRATEGIES.items()
            if name != "oracle"
        )
        for kind in reckoning.KINDS
    }
    for kind in ("neutral", "cheap", "accurate"):
        assert best[kind] > max(worth(found, kind, unit) for _, found in once) + 0.01
    right = {name: mean(bool(o.solved) for o in played(s, rows)) for name, s in reckoning.STRATEGIES.items()}
    assert right["three cheap, strongest if all differ"] > right["always strongest"] + 0.06
    assert right["ask on after unsure"] > right["cheapest suited"] + 0.05
    assert right["search, then two cheap and strongest"] > right["two cheap, strongest if they differ"] + 0.01


def test_agreement_is_evidence_and_no_proof(rows: list[Asked]) -> None:
    agreed = []
    for row in rows:
        one = Asked(row.example, row.catalogue, row.replies, row.record)
        for spec in one.experts[:2]:
            one.ask(spec)
        agreed += [one.answer() == row.example.verifier.answer] if one.agreed() else []
    assert 0.85 < mean(agreed) < 0.97


def test_even_chances_are_flat_and_reward_moves_them(rows: list[Asked]) -> None:
    params = load_params(ROOT / "params.yaml")
    settings = Grpo.model_validate(params.grpo.model_dump() | choices.SETTINGS["absolute scale, no std"])
    table = choices.trained(rows, settings, 40, 0.03, 0)
    rng = random.Random(0)
    spent = {}
    for kind in ("neutral", "cheap"):
        for name, one, draws in (("even", choices.Table(), rng), ("trained", table, None)):
            made = [choices.play(row, choices.wished(row.example, kind, rng), one, draws)[0] for row in rows]
            spent[name, kind] = mean(float(episode.cost_usd) for episode in made)
    assert 0.8 < spent["even", "cheap"] / spent["even", "neutral"] < 1.25
    assert spent["trained", "cheap"] / spent["trained", "neutral"] < 0.9
