"""`orchestra analyse` on a real evaluation of small random models."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestra.errors import ConfigError, DataError
from orchestra.evaluation import run as running
from tasks.experiments import analyse
from tasks.platform.tracking import connect, experiment
from tests.support.promotions import RULES, params


@pytest.fixture
def here(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (root / "params.yaml").write_text(yaml.safe_dump(params().model_dump(mode="json", by_alias=True)), encoding="utf-8")
    monkeypatch.chdir(root)
    return root


def told(root: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / analyse.REPORTS / f"{name}.json").read_text())
    return found


def test_the_bias_of_every_policy_of_the_last_evaluation(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    analyse.main(["bias"])
    rows = {row["policy"]: row for row in told(here, "bias")["shares"] if row["preference"] == "all"}
    assert list(rows) == ["grpo", "sft", *RULES]
    assert "always strongest" in capsys.readouterr().out
    client = connect(here)
    (run,) = client.search_runs([experiment(client, here, analyse.EXPERIMENT)])
    assert {one.path for one in client.list_artifacts(run.info.run_id)} == {"bias.json", "bias.png", "bias.txt"}
    (here / "data/validated/heldout.jsonl").write_text(
        (here / "data/validated/heldout.jsonl").read_text().replace('"e1"', '"new"')
    )
    with pytest.raises(DataError, match="no held-out example any more"):
        analyse.main(["bias"])


def test_the_frontier_goes_on_after_a_kill_and_is_the_same(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["frontier", "--turns", "1", "--examples", "2"]
    evaluate, calls = running.evaluate, 0

    def killed(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return evaluate(*arguments, **named)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(running, "evaluate", killed)
        analyse.main(asked)
    (first,) = (here / "work/analyse").rglob("turn-limit-*.jsonl")
    before = first.read_bytes()
    analyse.main(asked)
    assert first.read_bytes() == before, "what was attempted is taken over"
    points = told(here, "frontier")["points"]
    assert [(one["setting"]["name"], one["examples"]) for one in points] == [
        ("1 turn", 2),
        ("2 turns", 2),
        ("neutral", 2),
    ]
    with pytest.raises(ConfigError, match="no policy named nobody"):
        analyse.main(["frontier", "--policy", "nobody"])
