"""inspect_evals in its own environment: its verdicts on fixed answers are ours, and it drives our gateway."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from orchestra.config.schema import load_params
from orchestra.errors import ConfigError
from orchestra.evaluation.benchmarks.base import BENCHMARKS
from orchestra.evaluation.benchmarks.hle.harness import PYTHON, harnessed
from orchestra.evaluation.benchmarks.models import ModelSettings
from orchestra.evaluation.benchmarks.run import Evaluation
from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from orchestra.tools.experts.judging import URL
from tests.support.benchmarks import ROOT, evaluation, pairs, player, published
from tests.support.endpoint import answer, serving
from tests.support.real_gateway import listening
from tests.support.serving_world import backend
from tests.unit.serving.test_own_tools import both

needed = pytest.mark.skipif(
    not (ROOT / PYTHON).is_file(), reason="no environment of inspect: make setup-inspect makes .venv-inspect"
)


def here(folder: Path) -> Path:
    """A workspace with that environment."""
    (folder / ".venv-inspect").symlink_to(ROOT / ".venv-inspect")
    return folder


@needed
def test_on_fixed_answers_inspect_decides_as_our_runner_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pairs("hle")
    with serving(player("hle")) as double:
        monkeypatch.setenv(URL, double.url)
        made = evaluation("hle", published("hle", tmp_path), here(tmp_path), double.url)
        official = harnessed(made)
        made.attempt(made.shards)
    ours = made.attempts()
    assert [one.solved for one in official.attempts] == [row["official"] for row in rows]
    assert [one.solved for one in official.attempts] == [one.solved for one in ours]
    assert [one.item for one in official.attempts] == [one.item for one in ours]
    for one, other in zip(official.attempts, ours, strict=True):
        assert (one.judged is None) == (other.judged is None) and one.cost_usd == other.cost_usd
        if one.judged is not None and other.judged is not None:
            assert one.judged.prompt == other.judged.prompt and one.judged.cost_usd == other.judged.cost_usd
            assert one.judged.confidence == other.judged.confidence
    found = BENCHMARKS["hle"].figures(ours, 100)
    assert official.figures["hle/original_accuracy"] == found["accuracy_authors"]
    assert official.figures["hle/unscored"] == sum(one.solved is None for one in ours) == 4
    assert official.figures["hle/cerr"] == pytest.approx(found["calibration_error"], abs=1e-9)
    assert "inspect_evals 0.26.0" in official.scorer
    # The judge is the protocol's: 100 questions by each side, and a judge's call for each.
    asked = [request["model"] for request in double.asked]
    assert asked.count("o3-mini-2025-01-31") == 200 and len(asked) == 400


@needed
def test_our_gateway_is_an_openai_model_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"extracted_final_answer": "x", "reasoning": "", "correct": "no", "confidence": 40, "strict": True}

    def judge(request: dict[str, Any]) -> Any:
        return (200, answer(json.dumps(said)), 0)

    gateway = Gateway(tmp_path, backend=backend(tmp_path, both))
    file = published("hle", tmp_path, pairs("hle")[:3])
    with serving(judge) as double, listening(create_app(gateway, load=False)) as port:
        monkeypatch.setenv(URL, double.url)
        model = ModelSettings(ROOT, load_params(ROOT / "params.yaml"), f"http://127.0.0.1:{port}/v1")
        made = Evaluation(here(tmp_path), model.params, "hle", model, (file,), limit=2)
        official = harnessed(made)
    assert [one.solved for one in official.attempts] == [False, False] and len(double.asked) == 2
    for one in official.attempts:
        assert one.failure == "" and one.answer and one.cost_usd > 0 and one.judged is not None
        assert one.judged.confidence == 40 and one.answer in one.judged.prompt
    assert official.figures["hle/original_accuracy"] == 0 and not math.isnan(official.figures["hle/cerr"])


@pytest.mark.parametrize("more, what", [({"trials": 2}, "one trial"), ({"cap_usd": 1}, "no cap can hold")])
def test_what_it_cannot_do_is_refused(tmp_path: Path, more: dict[str, Any], what: str) -> None:
    made = evaluation("hle", published("hle", tmp_path), tmp_path, **more)
    with pytest.raises(ConfigError, match=what):
        harnessed(made)


def test_other_benchmarks_keep_our_runner_and_a_missing_environment_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hle only"):
        harnessed(evaluation("frames", published("frames", tmp_path), tmp_path))
    with pytest.raises(ConfigError, match="the environment of inspect is missing"):
        harnessed(evaluation("hle", published("hle", tmp_path), tmp_path))
