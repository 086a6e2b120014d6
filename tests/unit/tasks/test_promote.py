"""Evaluate and promote over a real MLflow registry: random tiny models, the rules, and everything that can go wrong."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from monitoring.drift import sample
from orchestra.accounting.forecast import Forecast
from orchestra.accounting.ledger import total
from orchestra.config.retraining import BudgetLimits
from orchestra.errors import BudgetError, ConfigError, DataError, ServiceError
from orchestra.evaluation import run as running
from orchestra.evaluation.outcomes import Outcome, Unit, unit
from orchestra.evaluation.report import read_comparison
from orchestra.files.checkpoint import hash_dir
from orchestra.files.jsonl import read_jsonl, write_jsonl
from orchestra.promotion.evidence import results, utilities, worth
from orchestra.promotion.lineage import tree
from orchestra.system.code_hash import CODE
from orchestra.types import Category, Charge, Episode, add_up
from tasks import evaluate, promote
from tasks.experiments.forecast import Forecaster
from tasks.explain import explained
from tasks.platform.evidence import EVIDENCE, KEPT, fetched_reference, reference
from tasks.platform.lineage import of_version
from tasks.platform.pages import ARTIFACT, PAGES, renew_benchmarks
from tasks.platform.registry import CANDIDATE, CHAMPION, PREVIOUS, STORE, Registry
from tasks.platform.stage import Stage
from tasks.platform.tracking import connect, experiment
from tasks.rollback import rollback, switch
from tests.support.promotions import CALLS, RULES, aliases, evaluated, hold_out, params, train
from tests.support.worlds import ROOT, example


@pytest.fixture(scope="module")
def champions(template: Path, still_code: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same after two promotions."""
    root = tmp_path_factory.mktemp("champions") / "w"
    shutil.copytree(template, root)
    with pytest.MonkeyPatch.context() as patch:
        # MLflow exports the last database it was pointed at, and that one would win.
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        promote.promote(Stage.open("promote", root, params()))
        train(root, "grpo", 2)
        assert promote.promote(evaluated(root)).promoted
    return root


@pytest.fixture
def promoted(champions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Path(shutil.copytree(champions, tmp_path / "w"))


def versions(root: Path) -> list[Any]:
    return list(connect(root).search_model_versions("name = 'orchestrator'"))


def test_evaluate_writes_one_comparison_of_all_policies(root: Path) -> None:
    comparison = read_comparison(root / "reports/evaluation/comparison.json")
    assert list(comparison.policies) == ["grpo", "sft", *params().evaluate.baselines]
    assert comparison.checkpoints["grpo"] == hash_dir(root / "models/grpo") and comparison.examples == 4
    assert comparison.policies["always_strongest"].accuracy.value == 1.0
    lines = (root / "reports/evaluation/episodes.jsonl").read_text().splitlines()
    assert len([Episode.model_validate_json(line) for line in lines]) == 4 * len(comparison.policies)
    metrics = json.loads((root / "reports/evaluate.json").read_text())
    assert metrics["grpo.examples"] == 4.0 and all(isinstance(value, float) for value in metrics.values())


def recorded(root: Path) -> list[Episode]:
    lines = (root / "reports/evaluation/episodes.jsonl").read_text().splitlines()
    return [Episode.model_validate_json(line) for line in lines]


def test_the_ledger_of_an_evaluation_adds_up_to_its_episodes(root: Path) -> None:
    told = json.loads((root / "reports/evaluation/ledger.json").read_text())
    assert list(told) == ["grpo", "sft", *RULES] and {"policy", "sandbox"} == set(told["random"])
    summed = add_up(Decimal(part["cost_usd"]) for found in told.values() for part in found.values())
    assert summed == add_up(episode.cost_usd for episode in recorded(root)) > 0


def test_a_forecast_from_all_of_an_evaluation_is_what_it_cost(root: Path, tmp_path: Path) -> None:
    shutil.copy(root / "data/validated/heldout.jsonl", root / "data/validated/train.jsonl")
    pieces = Forecaster(Stage.open("forecast", root, params()), 2, tmp_path / "sample").evaluate()
    assert [piece.name for piece in pieces] == ["grpo", "sft", *RULES]
    found = Forecast.of(pieces)
    assert found.usd.low == found.usd.value == found.usd.high
    assert found.usd.value == pytest.approx(float(add_up(episode.cost_usd for episode in recorded(root))))


def test_a_forecast_counts_the_lessons_and_the_safety_set_of_an_evaluation(root: Path, tmp_path: Path) -> None:
    known = [example(f"k{n}", golden_calls=CALLS) for n in range(8)]
    asked = [example(f"a{n}", instruction=f"who was the {n}th?", category=Category.TOPIC) for n in range(24)]
    lines = [one.model_dump_json() for pair in zip(asked[::3], known, strict=True) for one in pair]
    lines += [one.model_dump_json() for n, one in enumerate(asked) if n % 3]
    (root / "data/validated/train.jsonl").write_text("\n".join(lines) + "\n")
    shutil.copytree(ROOT / "data/safety", root / "data/safety")
    shipped = params()
    settings = {"baselines": ["knn_router"], "lessons": 6, "safety": "data/safety/injections.yaml"}
    told = shipped.model_copy(update={"evaluate": shipped.evaluate.model_copy(update=settings)})
    found = Forecaster(Stage.open("forecast", root, told), 2, tmp_path / "sample").evaluate()
    pieces = {piece.name: piece for piece in found}
    assert list(pieces) == ["what routers learn from", "grpo", "safety set", "sft", "knn_router"]
    lessons, cases = pieces["what routers learn from"], pieces["safety set"]
    assert (lessons.unit, lessons.units) == ("batch of 3", 2) and all(usd > 0 for usd in lessons.usd)
    assert (cases.unit, cases.units) == ("batch of 8 cases", 2)


def test_forecasts_share_a_cap_and_keep_their_ledger(root: Path, tmp_path: Path) -> None:
    shutil.copy(root / "data/validated/heldout.jsonl", root / "data/validated/train.jsonl")
    ledger = root / "work/forecast/ledger.jsonl"
    ledger.unlink(missing_ok=True)
    Forecaster(Stage.open("forecast", root, params()), 2, tmp_path / "one").evaluate()
    spent = total(read_jsonl(ledger, Charge))
    assert spent > 0
    capped = params().model_copy(update={"budget": BudgetLimits(run_usd=spent)})
    with pytest.raises(BudgetError, match=f"{spent} of {spent} USD are spent.*raise the cap"):
        Forecaster(Stage.open("forecast", root, capped), 2, tmp_path / "two").evaluate()


@pytest.mark.parametrize("stage", ["grpo", "evaluate"])
def test_a_forecast_before_its_checkpoint_says_which_stage_makes_it(root: Path, tmp_path: Path, stage: str) -> None:
    shutil.copy(root / "data/validated/heldout.jsonl", root / "data/validated/train.jsonl")
    shutil.rmtree(root / "models/sft")
    forecaster = Forecaster(Stage.open("forecast", root, params()), 2, tmp_path / "sample")
    with pytest.raises(
        DataError, match="models/sft: no checkpoint yet — run that stage first: orchestra run --until sft"
    ):
        getattr(forecaster, stage)()


def test_a_cap_ends_an_evaluation_and_what_was_written_stays(root: Path) -> None:
    shutil.rmtree(root / "work", ignore_errors=True)
    usd = add_up(episode.cost_usd for episode in recorded(root))
    capped = params().model_copy(update={"budget": BudgetLimits(run_usd=usd / 2)})
    with pytest.raises(BudgetError, match="USD are spent"):
        evaluate.main(Stage.open("evaluate", root, capped))
    work = next((root / "work/evaluate").iterdir())
    assert total(read_jsonl(work / "ledger.jsonl", Charge)) <= usd / 2
    more = params().model_copy(update={"budget": BudgetLimits(run_usd=usd * 10)})
    evaluate.main(Stage.open("evaluate", root, more))
    assert work.is_dir() and len(recorded(root)) == 4 * (2 + len(RULES))  # The cap is not part of the fingerprint.


def test_a_promotion_keeps_what_drift_compares_for_after_the_next_evaluation(promoted: Path) -> None:
    champion = promote.champion(Stage.open("monitor", promoted, params()))
    assert champion is not None
    usual = [one for one in recorded(promoted) if one.policy == "grpo"]
    train(promoted, "grpo", 3)
    evaluated(promoted)
    found = reference(promoted, champion.checkpoint_hash)
    assert sample(one.episode for one in found) == sample(usual)
    assert [(one.episode.answer, one.episode.solved) for one in found] == [(one.answer, one.solved) for one in usual]
    assert {one.question for one in found} == {"what is 37*24?"}
    assert reference(promoted, hash_dir(promoted / "models/grpo")), "the newest needs no copy of it"
    assert reference(promoted, "f" * 64) == []


def test_another_machine_gets_what_drift_compares_from_mlflow(root: Path) -> None:
    stage = Stage.open("promote", root, params())
    run_id = connect(root).create_run(experiment(connect(root), root)).info.run_id
    promote.promote(stage, run_id)
    registry = Registry(root, "orchestrator")
    version = registry.version(1)
    assert version is not None
    here = reference(root, version.checkpoint_hash)
    shutil.rmtree(root / KEPT)
    shutil.rmtree(root / "reports")
    assert here and reference(root, version.checkpoint_hash) == []
    assert fetched_reference(root, registry.client, version) == here == reference(root, version.checkpoint_hash)
    assert fetched_reference(root, registry.client, version.model_copy(update={"run_id": "", "tags": {}})) == []


def test_the_first_promotion_and_its_repetition(root: Path) -> None:
    stage = Stage.open("promote", root, params())
    run_id = connect(root).create_run(experiment(connect(root), root)).info.run_id
    first = promote.promote(stage, run_id)
    assert (first.name, first.version, first.champion, first.changed) == ("Promoted", 1, 1, True)
    assert aliases(root) == {CANDIDATE: 1, CHAMPION: 1, PREVIOUS: None}
    tags = dict(versions(root)[0].tags)
    assert tags["checkpoint_hash"] == hash_dir(root / "models/grpo") and tags["price_date"] == "2025-11-15"
    assert {"data_hash", "heldout_hash", "git_commit", "metric.accuracy", "evidence", "decision"} <= set(tags)
    run = connect(root).get_run(run_id)
    assert run.data.tags["decision"] == "Promoted" and "✓ accuracy" in run.data.tags["decision.reasons"]
    assert {file.path for file in connect(root).list_artifacts(run_id, "decision")} >= {"decision/decision.html"}
    assert tags["checkpoint_hash"] in first.page.read_text()

    again = promote.promote(stage)
    assert (again.name, again.promoted, again.changed, again.champion) == ("Unchanged", True, False, 1)
    assert aliases(root) == {CANDIDATE: 1, CHAMPION: 1, PREVIOUS: None} and len(versions(root)) == 1


def test_a_run_that_changes_nothing_leaves_the_page_of_the_last_decision(root: Path) -> None:
    promote.promote(Stage.open("promote", root, params()))
    train(root, "grpo", 2)
    refused = promote.promote(evaluated(root, min_accuracy=0.9))
    told = refused.page.read_text()
    assert "Rejected" in told and "the champion (version 1)" in told
    train(root, "grpo", 1)
    stage = evaluated(root)
    assert promote.promote(stage).name == "Unchanged"
    assert refused.page.read_text() == told
    first, second = ((root / PAGES / f"{number}.html").read_text() for number in (1, 2))
    assert "Promoted" in first and second == told
    assert "All 9 checks passed" in str(connect(root).get_model_version("orchestrator", "1").description)


def test_a_champion_that_misses_a_limit_keeps_its_decision_and_only_the_run_tells_of_it(root: Path) -> None:
    client = connect(root)
    promote.promote(Stage.open("promote", root, params()))
    page, described = (root / PAGES / "1.html").read_text(), versions(root)[0].description
    run_id = client.create_run(experiment(client, root)).info.run_id
    refused = promote.promote(Stage.open("promote", root, params(min_accuracy=0.9)), run_id)
    assert (refused.name, refused.champion, refused.decided) == ("Rejected", 1, False)
    (version,) = versions(root)
    assert version.tags["decision"] == "Promoted" and version.description == described
    assert (root / PAGES / "1.html").read_text() == page != refused.page.read_text()
    told = client.get_run(run_id).data.tags
    assert told["decision"] == "Rejected" and told["mlflow.note.content"].startswith("**Rejected**")
    assert Path(client.download_artifacts(run_id, ARTIFACT)).read_text() == refused.page.read_text()
    assert promote.promote(Stage.open("promote", root, params())).name == "Unchanged"
    assert refused.page.read_text() == page and versions(root)[0].tags["decision"] == "Promoted"


def test_a_version_that_is_decided_again_points_at_the_run_of_that_decision(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(root)
    first, second = (client.create_run(experiment(client, root)).info.run_id for _ in range(2))
    promote.promote(Stage.open("promote", root, params(min_accuracy=0.9)), first)
    done = promote.promote(Stage.open("promote", root, params()), second)
    registry = Registry(root, "orchestrator")
    (version,) = registry.versions()
    assert (done.name, version.run_id, version.decided_in) == ("Promoted", first, second)
    assert f"MLflow run {second}" in "\n".join(tree(of_version(version))) and second in done.page.read_text()
    results = (("benchmark", "model"), [("a new benchmark", "version 1")])
    monkeypatch.setattr("tasks.platform.pages.benchmarks", lambda _: results)
    assert renew_benchmarks(registry) == 2
    refused, promoted = (Path(client.download_artifacts(run, ARTIFACT)).read_text() for run in (first, second))
    assert "a new benchmark" in promoted and "a new benchmark" not in refused
    assert ": Rejected</title>" in refused and ": Promoted</title>" in promoted


def test_a_description_names_the_evaluation_that_decided(root: Path) -> None:
    promote.promote(Stage.open("promote", root, params()))
    before = versions(root)[0].tags["heldout_hash"]
    hold_out(root, 3)
    promote.promote(evaluated(root))
    (version,) = versions(root)
    assert version.tags["heldout_hash"] != before, "its figures are of the last evaluation"
    assert f"held-out data `{before[:16]}`, at prices of 2025-11-15" in version.description


def test_a_better_one_replaces_the_champion_which_becomes_previous(promoted: Path) -> None:
    assert aliases(promoted) == {CANDIDATE: 2, CHAMPION: 2, PREVIOUS: 1}
    assert promote.promote(Stage.open("promote", promoted, params())).name == "Unchanged"
    assert aliases(promoted) == {CANDIDATE: 2, CHAMPION: 2, PREVIOUS: 1}


def test_a_refusal_is_named_and_leaves_the_champion(root: Path) -> None:
    promote.promote(Stage.open("promote", root, params()))
    train(root, "grpo", 2)
    refused = promote.promote(evaluated(root, min_accuracy=0.9))
    assert (refused.name, refused.version, refused.champion, refused.changed) == ("Rejected", 2, 1, False)
    assert [check.name for check in refused.failed] == ["accuracy"]
    assert aliases(root) == {CANDIDATE: 2, CHAMPION: 1, PREVIOUS: None}
    assert promote.promote(Stage.open("promote", root, params())).name == "Promoted"
    assert aliases(root)[CHAMPION] == 2 and len(versions(root)) == 2


def test_a_refusal_before_any_champion_serves_nothing(root: Path) -> None:
    refused = promote.promote(Stage.open("promote", root, params(min_accuracy=0.9)))
    assert (refused.promoted, refused.champion) == (False, None) and "nothing" in refused.page.read_text()


def test_the_champion_outlives_its_folder(root: Path) -> None:
    stage = Stage.open("promote", root, params())
    promote.promote(stage)
    digest = hash_dir(root / "models/grpo")
    shutil.rmtree(root / "models/grpo")
    serving = promote.champion(stage)
    assert serving is not None and hash_dir(serving.verified()) == digest == serving.checkpoint_hash
    (serving.folder / "config.json").write_text("{}")
    with pytest.raises(DataError, match="damaged"):
        promote.champion(stage)


def test_a_rolled_back_checkpoint_stays_out_until_a_person_names_it(promoted: Path) -> None:
    root, stage = promoted, Stage.open("promote", promoted, params())
    moved = rollback(stage)
    assert (moved.version, moved.left, moved.changed) == (1, 2, True)
    assert aliases(root) == {CANDIDATE: 2, CHAMPION: 1, PREVIOUS: 2}
    registry = Registry(root, "orchestrator")
    said = registry.description(2)
    assert said.startswith("**Promoted**") and said.endswith("\n\nOut of service: version 1 took its place.")
    refused = promote.promote(stage)
    assert [check.name for check in refused.failed] == ["rolled back"] and aliases(root)[CHAMPION] == 1
    assert refused.failed[0].reason == (
        "a person took this version out of service: `orchestra release --to 2` is the way back"
    )
    back = switch(stage, 2)
    assert (back.version, back.left, back.changed) == (2, 1, True)
    assert "Out of service" not in registry.description(2) + registry.description(1)
    assert aliases(root) == {CANDIDATE: 2, CHAMPION: 2, PREVIOUS: 1}
    assert promote.promote(stage).name == "Unchanged"
    assert rollback(stage).version == 1


def test_a_rollback_repeated_serves_what_the_first_one_named(promoted: Path) -> None:
    stage = Stage.open("promote", promoted, params())
    first, again = rollback(stage), rollback(stage)
    assert (again.version, again.left, again.changed) == (1, 2, False)
    assert first.version == again.version and "orchestra release --to 2" in again.line
    assert aliases(promoted) == {CANDIDATE: 2, CHAMPION: 1, PREVIOUS: 2}
    same = switch(stage, 1)
    assert (same.version, same.changed) == (1, False)


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_a_rollback_killed_anywhere_is_completed_by_the_next(
    promoted: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    stage, done = Stage.open("promote", promoted, params()), 0

    def until_killed(action: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            nonlocal done
            done += 1
            if done == step:
                raise KeyboardInterrupt
            return action(*arguments)

        return counted

    with monkeypatch.context() as patch:
        for name in ("tag", "describe", "untag", "point"):
            patch.setattr(Registry, name, until_killed(getattr(Registry, name)))
        with pytest.raises(KeyboardInterrupt):
            rollback(stage)
    assert aliases(promoted)[CHAMPION] == 2, "the old champion is champion to the last step"
    assert rollback(stage).version == 1
    assert aliases(promoted) == {CANDIDATE: 2, CHAMPION: 1, PREVIOUS: 2}


def test_only_what_the_gate_promoted_can_be_switched_to(promoted: Path) -> None:
    train(promoted, "grpo", 3)
    stage = evaluated(promoted, min_accuracy=0.9)
    assert promote.promote(stage).name == "Rejected"
    with pytest.raises(DataError, match=r"version 3 was never promoted — one of: 1, 2"):
        switch(stage, 3)
    with pytest.raises(DataError, match=r"there is no version 9 — one of: 1, 2"):
        switch(stage, 9)
    assert aliases(promoted) == {CANDIDATE: 3, CHAMPION: 2, PREVIOUS: 1}


def test_nothing_to_roll_back_to(root: Path) -> None:
    stage = Stage.open("promote", root, params())
    with pytest.raises(DataError, match="no previous version"):
        rollback(stage)
    with pytest.raises(DataError, match="nothing was promoted yet"):
        switch(stage, 1)
    promote.promote(stage)
    with pytest.raises(DataError, match="no previous version"):
        rollback(stage)


def test_rollback_to_a_lost_checkpoint_changes_nothing(promoted: Path) -> None:
    root, stage = promoted, Stage.open("promote", promoted, params())
    previous = Registry(root, "orchestrator").at(PREVIOUS)
    assert previous is not None
    shutil.rmtree(previous.folder)
    with pytest.raises(DataError, match="gone"):
        rollback(stage)
    assert aliases(root) == {CANDIDATE: 2, CHAMPION: 2, PREVIOUS: 1}


def test_on_other_data_the_champion_is_measured_again_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    promote.promote(Stage.open("promote", root, params()))
    hold_out(root, 3)
    train(root, "grpo", 2)
    stage = evaluated(root)
    decision = promote.promote(stage)
    assert decision.promoted and "accuracy against the champion (version 1)" in {c.name for c in decision.reasons}
    kept = list((root / KEPT).glob(f"{Registry(root, 'orchestrator').versions()[-1].checkpoint_hash[:16]}-*.json"))
    assert len(kept) == 2, "one for each benchmark version"
    shutil.rmtree(root / "work/promote")
    capsys.readouterr()
    assert promote.promote(Stage.open("promote", root, params(min_accuracy=0.9))).name == "Rejected"
    assert "measuring it again" not in capsys.readouterr().out


def test_at_other_prices_the_champion_is_measured_again_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    promote.promote(Stage.open("promote", root, params()))
    train(root, "grpo", 2)
    shipped = params()
    later = shipped.model_copy(update={"world": shipped.world.model_copy(update={"price_date": "2025-11-16"})})
    evaluate.main(Stage.open("evaluate", root, later))
    capsys.readouterr()
    strict = later.model_copy(update={"promote": later.promote.model_copy(update={"min_accuracy": 0.9})})
    for told, again in ((strict, True), (later, False)):
        decision = promote.promote(Stage.open("promote", root, told))
        assert "accuracy against the champion (version 1)" in {c.name for c in decision.reasons}
        assert ("measured at other prices: measuring it again" in capsys.readouterr().out) == again
    assert decision.promoted
    (folder,) = (root / "work/promote").iterdir()
    assert folder.name.endswith("-2025-11-16"), "episodes of another day are none of this one"


def test_an_outage_while_the_champion_is_measured_is_not_remembered(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote.promote(Stage.open("promote", root, params()))
    hold_out(root, 3)
    train(root, "grpo", 2)
    stage = evaluated(root)
    real = running.evaluate

    def down(*told: Any, file: Path, **more: Any) -> dict[str, list[Episode]]:
        made = real(*told, file=file, **more)
        lost = [one.model_copy(update={"verdict": None}) for one in made[CHAMPION]]
        write_jsonl(file, lost)
        return {CHAMPION: lost}

    with monkeypatch.context() as patch:
        patch.setattr(running, "evaluate", down)
        with pytest.raises(ServiceError, match=r"champion: infrastructure failed in 3 of its 3 episodes — .* again"):
            promote.promote(stage)
    assert promote.promote(stage).promoted


def without_utility(told: dict[str, Any]) -> None:
    told["results"] = {key: one | {"utility": None, "earned": None} for key, one in told["results"].items()}


def in_a_unit_of_its_own(told: dict[str, Any]) -> None:
    """As an earlier version of this program wrote it."""
    for one in told["results"].values():
        del one["earned"]


@pytest.mark.parametrize("lacks", [without_utility, in_a_unit_of_its_own])
def test_a_champion_without_utility_is_measured_again_where_the_gate_goes_by_it(
    root: Path, capsys: pytest.CaptureFixture[str], lacks: Callable[[dict[str, Any]], None]
) -> None:
    promote.promote(Stage.open("promote", root, params()))
    for file in (root / KEPT).glob("*.json"):
        told = json.loads(file.read_text())
        lacks(told)
        file.write_text(json.dumps(told))
    train(root, "grpo", 2)
    stage = evaluated(root, objective="utility")
    for again in (True, False):
        decision = promote.promote(stage)
        (said,) = [c for c in decision.reasons if c.name == "utility against the champion (version 1)"]
        assert said.measured is not None and not said.passed and "must lie above 0" in said.reason
        assert ("was measured without utility: measuring it again" in capsys.readouterr().out) == again
    assert aliases(root)[CHAMPION] == 1


def test_the_champions_utility_is_reckoned_in_the_units_of_the_candidates_day(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    champions = [one for one in recorded(root) if one.policy == "grpo"]
    promote.promote(Stage.open("promote", root, params()))
    train(root, "grpo", 2)
    stage = evaluated(root, objective="utility")

    def slower(strongest: Sequence[Outcome]) -> Unit | None:
        """Always-strongest was three times as slow on the candidate's day."""
        found = unit(strongest)
        return None if found is None else found.model_copy(update={"latency_s": found.latency_s * 3})

    monkeypatch.setattr("orchestra.promotion.evidence.unit", slower)
    decision = promote.promote(stage)
    (said,) = [c for c in decision.reasons if c.name == "utility against the champion (version 1)"]
    every = {one.id: one for one in evaluate.heldout(stage)}
    of = worth(every, [one for one in recorded(root) if one.policy == "always_strongest"])
    ours, theirs = (
        fmean(utilities(results(found, of)).values())
        for found in ([one for one in recorded(root) if one.policy == "grpo"], champions)
    )
    assert said.measured == pytest.approx(ours - theirs) and "measuring it again" not in capsys.readouterr().out


def lose_the_champion(root: Path) -> Stage:
    """Another checkpoint on other held-out data, and the champion's files gone."""
    promote.promote(Stage.open("promote", root, params()))
    shutil.rmtree(root / STORE)
    hold_out(root, 3)
    train(root, "grpo", 2)
    return evaluated(root)


def test_a_lost_champion_on_other_data_is_told_and_refuses(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = lose_the_champion(root)
    refused = promote.promote(stage)
    assert [check.name for check in refused.failed] == ["comparable", "champion"] and aliases(root)[CHAMPION] == 1
    assert "another version of the benchmark" in refused.failed[0].reason
    assert "backup" in refused.failed[1].reason and "delete the alias champion" in refused.failed[1].reason
    assert "WARNING: version 1 is champion, but the kept checkpoint is gone" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"version 1\) cannot serve: the kept checkpoint is gone .*backup"):
        promote.champion(stage)
    connect(root).delete_registered_model_alias("orchestrator", CHAMPION)
    assert promote.promote(stage).changed and aliases(root) == {CANDIDATE: 2, CHAMPION: 2, PREVIOUS: None}


def test_a_lost_champion_is_compared_by_its_record_on_the_same_data(root: Path) -> None:
    promote.promote(Stage.open("promote", root, params()))
    shutil.rmtree(root / STORE)
    train(root, "grpo", 2)
    decision = promote.promote(evaluated(root))
    (said,) = [check for check in decision.reasons if check.name == "champion"]
    assert decision.promoted and said.reason.startswith("WARNING")
    assert aliases(root) == {CANDIDATE: 2, CHAMPION: 2, PREVIOUS: None}, "no way back leads to a lost version"


def test_a_lost_champion_without_a_record_is_not_replaced_by_itself(root: Path) -> None:
    stage = lose_the_champion(root)
    shutil.rmtree(root / KEPT)
    connect(root).set_model_version_tag("orchestrator", "1", EVIDENCE, "{}")
    refused = promote.promote(stage)
    assert [check.name for check in refused.failed] == ["champion"] and aliases(root)[CHAMPION] == 1
    assert "left no record" in refused.failed[0].reason and "backup" in refused.failed[0].reason


def test_another_machine_reads_the_champions_evidence_from_its_run(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = connect(root).create_run(experiment(connect(root), root)).info.run_id
    promote.promote(Stage.open("promote", root, params()), run_id)
    shutil.rmtree(root / KEPT)
    train(root, "grpo", 2)
    assert promote.promote(evaluated(root)).promoted
    assert "measuring it again" not in capsys.readouterr().out


def test_the_first_champion_is_compared_with_the_sft_model(root: Path) -> None:
    strict = params(accuracy_gain=0.0, saving=0.0)
    refused = promote.promote(Stage.open("promote", root, strict))
    assert [check.name for check in refused.failed] == ["better than the SFT model"]
    alone = strict.model_copy(update={"evaluate": strict.evaluate.model_copy(update={"policies": ["grpo"]})})
    evaluate.main(Stage.open("evaluate", root, alone))
    decision = promote.promote(Stage.open("promote", root, alone))
    assert decision.promoted and "floors alone decide" in decision.reasons[-1].reason


def test_the_way_out_of_a_lost_champion_is_the_version_before(promoted: Path) -> None:
    registry = Registry(promoted, "orchestrator")
    best, stage = registry.at(CHAMPION), Stage.open("promote", promoted, params())
    assert best is not None
    shutil.rmtree(best.folder)
    with pytest.raises(DataError, match="orchestra release --to 1"):
        promote.champion(stage)
    assert switch(stage, 1).changed
    found = promote.champion(stage)
    assert found is not None and found.number == 1


def test_what_does_not_belong_together_is_refused_in_one_line(root: Path) -> None:
    stage = Stage.open("promote", root, params())
    hold_out(root, 2)
    with pytest.raises(DataError, match="present held-out data"):
        promote.promote(stage)
    hold_out(root, 6)
    train(root, "grpo", 3)
    with pytest.raises(DataError, match="not of the checkpoint"):
        promote.promote(stage)
    (root / "models/grpo/model.safetensors").write_bytes(b"rot")
    with pytest.raises(DataError, match="does not match the manifest"):
        promote.promote(stage)
    assert versions(root) == []


def test_checkpoints_under_a_rule_are_not_judged_since_they_serve_without_it(root: Path) -> None:
    shipped = params()
    ruled = shipped.model_copy(update={"evaluate": shipped.evaluate.model_copy(update={"by_rule": True})})
    with pytest.raises(ConfigError, match=r"^evaluate\.by_rule: a rule overwrites the choices"):
        promote.promote(Stage.open("promote", root, ruled))
    assert versions(root) == [] and not (root / KEPT).exists()


def test_a_damaged_benchmark_result_is_refused_before_anything_moves(root: Path) -> None:
    file = root / "reports/benchmarks/hle/m/summary.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"benchmark": "hle"')
    with pytest.raises(DataError, match=r"hle/m/summary\.json: not a summary — run the evaluation again"):
        promote.promote(Stage.open("promote", root, params()))
    assert versions(root) == []


def test_a_log_of_the_training_that_was_cut_off_is_refused_before_anything_moves(root: Path) -> None:
    stage, steps = Stage.open("promote", root, params()), root / "reports/grpo_steps.jsonl"
    steps.write_text('{"step": 1, "loss": NaN, "train/reward": 0.5}\n{"step": 2, "tra')
    with pytest.raises(DataError, match=r"grpo_steps\.jsonl:2: .* — run the grpo stage again"):
        promote.promote(stage)
    assert versions(root) == [] and aliases(root)[CANDIDATE] is None
    steps.write_text('{"step": 1, "loss": NaN, "train/reward": 0.5}\n')
    assert promote.promote(stage).promoted


def test_code_that_decides_a_score_is_part_of_the_data_hash(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage.open("promote", root, params())
    before = evaluate.data_hash(stage, evaluate.heldout(stage))
    monkeypatch.setitem(CODE, "score", ("orchestra/rewards",))
    assert evaluate.data_hash(stage, evaluate.heldout(stage)) != before


def test_a_killed_promotion_is_completed_by_the_next(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage.open("promote", root, params())
    promote.promote(stage)
    train(root, "grpo", 2)
    evaluated(root)
    point = Registry.point

    def killed(self: Registry, alias: str, version: Any) -> bool:
        if alias == CHAMPION:
            raise KeyboardInterrupt
        return point(self, alias, version)

    monkeypatch.setattr(Registry, "point", killed)
    with pytest.raises(KeyboardInterrupt):
        promote.promote(stage)
    assert aliases(root) == {CANDIDATE: 2, CHAMPION: 1, PREVIOUS: 1}
    monkeypatch.setattr(Registry, "point", point)
    assert promote.promote(stage).changed
    assert aliases(root) == {CANDIDATE: 2, CHAMPION: 2, PREVIOUS: 1} and len(versions(root)) == 2


def test_a_registry_that_fails_is_one_line(root: Path) -> None:
    registry = Registry(root, "orchestrator")
    with pytest.raises(ServiceError, match="model registry"):
        Registry(root, "a/b:c").add(root / "models/grpo", "h", {}, None)
    assert registry.at(CHAMPION) is None


def test_a_version_without_a_commit_says_why(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    promote.promote(Stage.open("promote", root, params()))
    said = [line for line in capsys.readouterr().out.splitlines() if "names no commit" in line]
    assert said == [
        "promote: version 1 names no commit: git: this folder is not a repository — "
        "git init && git add . && git commit -m start"
    ]
    monkeypatch.setattr(promote, "git_refusal", lambda _root: None)  # As where it was trained before that.
    promote.promote(Stage.open("promote", root, params()))
    assert "promote: version 1 names no commit: no run on record of its training names one" in capsys.readouterr().out


def test_a_lineage_leads_from_a_version_an_alias_a_run_or_an_address_to_the_data(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(ROOT / "params.yaml", root)
    client = connect(root)
    where = experiment(client, root)
    run_id = client.create_run(where, tags={"orchestra.flow_run_id": "flow-1"}).info.run_id
    child = client.create_run(where, tags={"mlflow.parentRunId": run_id}).info.run_id
    promote.promote(Stage.open("promote", root, params()), run_id)
    lines = tree(explained(root, "1"))
    text = "\n".join(lines)
    assert lines[0] == "version 1 Promoted" and f"checkpoint [{hash_dir(root / 'models/grpo')[:16]}]" in text
    assert "training data [t]" in text and "prices of 2025-11-15 [" in text and f"MLflow run {run_id}" in text
    for target in (run_id, child, "flow-1", "champion"):
        assert lines == [line[4:] for line in tree(explained(root, target))[1:]]
    with pytest.raises(DataError, match=r"no version for previous .*name a version"):
        explained(root, "previous")
    with pytest.raises(DataError, match="no run or version nonsense"):
        explained(root, "nonsense")
    with pytest.raises(DataError, match="judged no version"):
        explained(root, client.create_run(where).info.run_id)
    monkeypatch.setenv("ORCHESTRA_API_KEY", "k")
    with pytest.raises(ServiceError, match="no gateway answers"):
        explained(root, "http://127.0.0.1:9")
    with gateway("1") as url:
        assert tree(explained(root, url))[0] == f"endpoint {url}" and tree(explained(root, url))[1].endswith(lines[0])
    with gateway("9") as url, pytest.raises(DataError, match="no version for http"):
        explained(root, url)


@contextmanager
def gateway(version: str) -> Iterator[str]:
    """An address whose model list names that version."""

    class Models(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/v1/models" and self.headers["authorization"] else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"data": [{"version": version}]}).encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Models) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
