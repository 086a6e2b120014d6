"""A person approves or refuses over a real MLflow registry: who, when, until when, and what it moves."""

import re
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestra.errors import ConfigError, DataError
from orchestra.promotion.approval import Answer
from tasks import approval
from tasks.platform.pages import ARTIFACT, PAGE, PAGES
from tasks.platform.registry import CANDIDATE, CHAMPION, PREVIOUS, STORE, ModelVersion, Registry
from tasks.platform.stage import Stage
from tasks.platform.tracking import connect, experiment
from tasks.promote import Promotion, promote
from tasks.rollback import rollback, take_over
from tests.support.promotions import aliases, evaluated, hold_out, params, train

YES, NO = Answer(approve=True, by="Ada", reason="read it"), Answer(approve=False, by="Bob", reason="too slow")
ASKING = params(approval="required", approval_hours=5)


def stage(root: Path) -> Stage:
    return Stage.open("promote", root, ASKING)


def asked(root: Path, run_id: str | None = None, flow_run: str = "") -> Promotion:
    return promote(stage(root), run_id, flow_run)


def tags(root: Path, number: int) -> dict[str, str]:
    return dict(connect(root).get_model_version("orchestrator", str(number)).tags)


def version_of(root: Path, number: int) -> ModelVersion:
    found = Registry(root, "orchestrator").version(number)
    assert found is not None
    return found


def later(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    present = approval.now()
    monkeypatch.setattr(approval, "now", lambda: present + timedelta(hours=hours))


def test_a_version_waits_for_a_person_and_serves_when_approved(root: Path) -> None:
    client = connect(root)
    run_id = client.create_run(experiment(client, root), run_name="silky-seal · version 1 waiting").info.run_id
    waits = asked(root, run_id, "flow-1")
    assert (waits.name, waits.promoted, waits.champion, waits.failed) == ("Waiting", False, None, ())
    assert aliases(root) == {CANDIDATE: 1, CHAMPION: None, PREVIOUS: None}
    assert tags(root, 1)["approval"] == "waiting" == client.get_run(run_id).data.tags["approval"]
    assert asked(root, run_id).approval == waits.approval, "a later run asks nothing new"

    done = approval.answer(stage(root), None, YES)
    assert (done.name, done.changed, done.approval.run) == ("Promoted", True, "flow-1")
    assert aliases(root) == {CANDIDATE: 1, CHAMPION: 1, PREVIOUS: None}
    told, run = tags(root, 1), client.get_run(run_id).data.tags
    assert (told["approval"], told["approval.by"], told["approval.reason"]) == ("approved", "Ada", "read it")
    assert told["approval.at"] < told["approval.expires"] and told["decision"] == run["decision"] == "Promoted"
    assert run["approval.by"] == "Ada" and "Approved by Ada" in run["mlflow.note.content"]
    assert run["mlflow.runName"] == "silky-seal · version 1 promoted"
    first, *checks = run["decision.reasons"].splitlines()
    assert re.fullmatch(r"Promoted\. All \d+ checks passed\. Approved by Ada on .* UTC: read it", first) and checks
    page = (root / PAGE).read_text()
    assert "Approved by Ada" in page and "Waiting" not in page and "version 1 Promoted, by Ada" in page
    assert page == (root / PAGES / "1.html").read_text()
    assert Path(client.download_artifacts(run_id, ARTIFACT, str(root))).read_text() == page
    described = str(client.get_model_version("orchestrator", "1").description)
    assert described.startswith("**Promoted**") and "Approved by Ada" in described

    again = approval.answer(stage(root), 1, YES)
    assert (again.changed, again.approval.by) == (False, "Ada"), "a release that failed is tried again"

    for _ in range(2):
        approval.taken_back(stage(root), done.approval, "1.40 times as long")
        run = client.get_run(run_id).data.tags
        assert run["decision"] == "RolledBack" and run["mlflow.runName"] == "silky-seal · version 1 rolled back"
        assert run["decision.reasons"].startswith(f"RolledBack.{first.removeprefix('Promoted.')}")
        assert run["mlflow.note.content"] == (
            "**Rolled back by its canary**\n\n1.40 times as long\n\nThe gate's decision before that:\n\n" + described
        )
    assert asked(root).name == "Unchanged"
    with pytest.raises(DataError, match=r"already serves — orchestra release --rollback"):
        approval.answer(stage(root), 1, NO)


def test_a_refusal_holds_for_the_same_evidence_until_a_person_says_otherwise(root: Path) -> None:
    promote(Stage.open("promote", root, params()))
    train(root, "grpo", 2)
    evaluated(root)
    assert asked(root).name == "Waiting"
    assert approval.answer(stage(root), 2, NO).name == "Rejected"
    assert aliases(root)[CHAMPION] == 1 and "Refused by Bob" in (root / PAGE).read_text()
    refused = asked(root)
    assert refused.name == "Rejected" and "Refused by Bob" in refused.why and refused.champion == 1
    assert approval.answer(stage(root), 2, YES).changed
    assert aliases(root) == {CANDIDATE: 2, CHAMPION: 2, PREVIOUS: 1}
    rollback(stage(root))
    with pytest.raises(DataError, match=r"orchestra release --to 2"):
        approval.answer(stage(root), 2, YES)


def test_after_the_expiry_an_answer_is_refused_and_the_next_run_asks_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = asked(root).approval
    later(monkeypatch, 5)
    with pytest.raises(DataError, match=r"Nobody answered by .* UTC — orchestra run"):
        approval.answer(stage(root), 1, YES)
    assert tags(root, 1)["approval"] == "expired" and aliases(root)[CHAMPION] is None
    second = asked(root)
    assert second.name == "Waiting" and first is not None and second.approval is not None
    assert second.approval.expires > first.expires and tags(root, 1)["approval"] == "waiting"
    assert approval.answer(stage(root), 1, YES).changed


def test_without_a_number_an_answer_is_for_the_version_that_still_waits(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked(root).name == "Waiting"
    later(monkeypatch, 5)
    train(root, "grpo", 2)
    evaluated(root)
    assert asked(root).version == 2
    assert approval.answer(stage(root), None, YES).approval.version == 2
    later(monkeypatch, 5)
    with pytest.raises(DataError, match=r"version 1: Nobody answered by"):
        approval.answer(stage(root), None, YES)


def test_an_approval_counts_only_in_the_place_of_the_champion_it_was_compared_with(root: Path) -> None:
    assert asked(root).name == "Waiting"
    train(root, "grpo", 2)
    evaluated(root)
    assert asked(root).name == "Waiting"
    with pytest.raises(ConfigError, match=r"several versions wait — name one of: 1, 2"):
        approval.answer(stage(root), None, YES)
    last = (root / PAGE).read_text()
    assert approval.answer(stage(root), 1, YES).changed
    assert (root / PAGE).read_text() == last and "Approved by Ada" in (root / PAGES / "1.html").read_text()
    with pytest.raises(DataError, match="another champion"):
        approval.answer(stage(root), 2, YES)
    assert aliases(root)[CHAMPION] == 1 and asked(root).approval is not None
    assert approval.answer(stage(root), 2, YES).changed and aliases(root)[PREVIOUS] == 1


def test_an_approval_counts_only_for_the_held_out_data_it_was_measured_on(root: Path) -> None:
    assert asked(root).name == "Waiting"
    hold_out(root, 3)
    with pytest.raises(DataError, match=r"other held-out data, .* — orchestra run compares and asks again"):
        approval.answer(stage(root), 1, YES)
    assert aliases(root)[CHAMPION] is None and tags(root, 1)["approval"] == "waiting"
    hold_out(root, 6)
    assert approval.answer(stage(root), 1, YES).changed


def test_what_cannot_be_answered_is_said_and_moves_nothing(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"no version waits .*promote\.approval"):
        approval.answer(stage(root), None, YES)
    assert asked(root).name == "Waiting"
    with pytest.raises(ConfigError, match=r"nobody asked about version 9 — name one of: 1"):
        approval.answer(stage(root), 9, YES)
    shutil.rmtree(root / STORE)
    with pytest.raises(DataError, match="gone"):
        approval.answer(stage(root), 1, YES)
    assert aliases(root)[CHAMPION] is None and tags(root, 1)["approval"] == "waiting"


@pytest.mark.parametrize("first", [None, NO])
def test_a_version_that_the_gate_refuses_later_is_approved_by_nobody(root: Path, first: Answer | None) -> None:
    assert asked(root).name == "Waiting"
    if first is not None:
        approval.answer(stage(root), 1, first)
    strict = Stage.open("promote", root, params(approval="required", approval_hours=5, min_accuracy=0.9))
    assert promote(strict).name == "Rejected" and tags(root, 1)["approval"] == "withdrawn"
    with pytest.raises(DataError, match=r"version 1: Withdrawn on .* UTC: the gate judged .* — orchestra run compares"):
        approval.answer(strict, 1, YES)
    with pytest.raises(ConfigError, match="no version waits"):
        approval.answer(strict, None, YES)
    assert aliases(root)[CHAMPION] is None and tags(root, 1)["decision"] == "Rejected"
    assert asked(root).name == "Waiting", "once it passes again, a person is asked again"
    assert approval.answer(stage(root), None, YES).changed


def test_a_version_that_is_promoted_without_a_person_waits_no_more(root: Path) -> None:
    assert asked(root).name == "Waiting"
    assert promote(Stage.open("promote", root, params())).name == "Promoted"
    assert tags(root, 1)["approval"] == "withdrawn" and not approval.waits(version_of(root, 1))


def test_the_history_of_a_former_champion_is_not_rewritten(root: Path) -> None:
    asked(root)
    approval.answer(stage(root), 1, YES)
    train(root, "grpo", 2)
    evaluated(root)
    asked(root)
    approval.answer(stage(root), 2, YES)
    for said in (NO, YES):
        with pytest.raises(DataError, match=r"the last decision about it is Promoted — orchestra release --to 1"):
            approval.answer(stage(root), 1, said)
    assert (tags(root, 1)["decision"], tags(root, 1)["approval"]) == ("Promoted", "approved")


def test_a_reason_of_several_lines_is_one_line_of_the_decision(root: Path) -> None:
    client = connect(root)
    run_id = client.create_run(experiment(client, root), run_name="x · version 1 waiting").info.run_id
    asked(root, run_id)
    before = client.get_run(run_id).data.tags["decision.reasons"].splitlines()
    approval.answer(stage(root), 1, Answer(approve=False, by="Bob", reason="too slow\n  ✓ accuracy: forged"))
    first, *checks = client.get_run(run_id).data.tags["decision.reasons"].splitlines()
    assert checks == before[1:] and first.endswith("too slow ✓ accuracy: forged")


def test_an_approval_that_was_killed_midway_is_completed_by_the_next_run(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked(root).name == "Waiting"

    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Registry, "point", killed)
        approval.answer(stage(root), 1, YES)
    assert aliases(root)[CHAMPION] is None
    done = asked(root)
    assert (done.name, done.changed) == ("Promoted", True) and aliases(root)[CHAMPION] == 1
    assert "Approved by Ada" in (root / PAGE).read_text()


@pytest.mark.parametrize(
    ("step", "again"), [("renew_verdict", None), ("describe", None), ("tag", None), ("renew_verdict", asked)]
)
def test_an_approval_that_was_killed_after_the_alias_moved_is_told_by_the_same_command_or_the_next_run(
    root: Path, monkeypatch: pytest.MonkeyPatch, step: str, again: Callable[[Path], Promotion] | None
) -> None:
    assert asked(root).name == "Waiting"
    approval.answer(stage(root), None, NO)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        until = getattr(Registry, step, None)

        def killed(*arguments: Any) -> Any:
            if step != "tag" or arguments[2].get("decision") == "Promoted":
                raise KeyboardInterrupt
            return None if until is None else until(*arguments)

        patch.setattr(approval if until is None else Registry, step, killed)
        approval.answer(stage(root), 1, YES)
    assert aliases(root)[CHAMPION] == 1 and tags(root, 1)["decision"] == "Waiting"
    if again is None:
        assert approval.answer(stage(root), None, YES).name == "Promoted"
    else:
        assert again(root).name == "Unchanged"
    page, described = (root / PAGE).read_text(), str(connect(root).get_model_version("orchestrator", "1").description)
    assert tags(root, 1)["decision"] == "Promoted" and described.startswith("**Promoted**")
    for text in (page, described):
        assert "Approved by Ada" in text and "Refused" not in text
    assert page.count("Rejected") == page.count("Waiting") == 0
    with pytest.raises(ConfigError, match="no version waits"):
        approval.answer(stage(root), None, YES)


@pytest.mark.parametrize("step", ["take_over", "_publish"])
def test_a_promotion_that_was_killed_after_the_alias_moved_is_told_with_its_comparison(
    root: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    gate_alone = Stage.open("promote", root, params())
    promote(gate_alone)
    train(root, "grpo", 2)
    evaluated(root)

    def killed(*arguments: Any) -> Any:
        if step == "take_over":
            take_over(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(f"tasks.promote.{step}", killed)
        promote(gate_alone)
    assert aliases(root) == {CANDIDATE: 2, CHAMPION: 2, PREVIOUS: 1}
    done = promote(gate_alone)
    assert (done.name, done.changed) == ("Promoted", True) and tags(root, 2)["decision"] == "Promoted"
    described = str(connect(root).get_model_version("orchestrator", "2").description)
    for text in ((root / PAGES / "2.html").read_text(), (root / PAGE).read_text(), described):
        assert "the champion (version 1)" in text and "champion already" not in text
    assert promote(gate_alone).name == "Unchanged"
