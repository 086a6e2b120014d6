"""inspect_evals in its own environment: its verdicts on fixed answers are ours, and it drives our gateway."""

import json
import math
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from orchestra.config.schema import load_params
from orchestra.errors import ConfigError, ServiceError
from orchestra.evaluation.benchmarks.base import BENCHMARKS
from orchestra.evaluation.benchmarks.hle.harness import PYTHON, Harnessed, _answered, harnessed
from orchestra.evaluation.benchmarks.hle.inspect_worker import RETRIES
from orchestra.evaluation.benchmarks.models import ModelSettings
from orchestra.evaluation.benchmarks.report import results
from orchestra.evaluation.benchmarks.run import Evaluation
from orchestra.rollout.parse import format_answer
from orchestra.rollout.policies.base import Conversation
from orchestra.serving.app import create_app
from orchestra.serving.gateway import Gateway
from orchestra.tools.experts.judging import URL
from tests.support.benchmarks import MODEL, ROOT, evaluation, pairs, player, published
from tests.support.endpoint import completion, serving
from tests.support.real_gateway import listening
from tests.support.scripts import call
from tests.support.serving_world import backend, workspace
from tests.support.worlds import codec

JUDGE = "o3-mini-2025-01-31"
DOMAINS = load_params(ROOT / "params.yaml").world.domains
ENVIRONMENT = (ROOT / PYTHON).is_file()
WITHOUT = "no environment of inspect: make setup-inspect makes .venv-inspect"


def slow(test: Any) -> Any:
    """Needs that environment, whose imports take half a minute on a busy machine."""
    marks = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.skipif(not ENVIRONMENT, reason=WITHOUT)]
    for mark in marks:
        test = mark(test)
    return test


def here(folder: Path) -> Path:
    """A workspace with that environment."""
    (folder / ".venv-inspect").symlink_to(ROOT / ".venv-inspect")
    return folder


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Harnessed, Evaluation, list[str]]:
    """What inspect and our runner made of 100 fixed answers, and which models were asked."""
    folder = tmp_path_factory.mktemp("both")
    with pytest.MonkeyPatch.context() as patch, serving(player("hle")) as double:
        patch.setenv(URL, double.url)
        made = evaluation("hle", published("hle", folder), here(folder), double.url)
        official = harnessed(made)
        made.attempt(made.shards)
    return official, made, [request["model"] for request in double.asked]


@slow
def test_on_fixed_answers_inspect_decides_as_our_runner_does(both: tuple[Harnessed, Evaluation, list[str]]) -> None:
    official, made, asked = both
    ours, theirs = made.attempts(), {one.item: one for one in official.attempts}
    assert len(theirs) == len(official.attempts) == len(ours) == 100
    assert {row["id"]: row["official"] for row in pairs("hle")} == {item: one.solved for item, one in theirs.items()}
    for other in ours:
        one = theirs[other.item]
        assert one.solved == other.solved and one.cost_usd == other.cost_usd
        assert (one.judged is None) == (other.judged is None)
        if one.judged is not None and other.judged is not None:
            assert one.judged.confidence == other.judged.confidence and one.judged.cost_usd == other.judged.cost_usd
    found = BENCHMARKS["hle"].figures(ours, 100)
    assert official.figures["hle/original_accuracy"] == found["accuracy_authors"]
    assert official.figures["hle/unscored"] == sum(one.solved is None for one in ours) == 4
    assert official.figures["hle/cerr"] == pytest.approx(found["calibration_error"], abs=1e-9)
    assert "inspect_evals 0.26.0" in official.scorer
    # The judge is the protocol's: 100 questions by each side, and a judge's call for each.
    assert asked.count(JUDGE) == 200 and len(asked) == 400


@slow
def test_the_judge_is_told_the_same_by_both(both: tuple[Harnessed, Evaluation, list[str]]) -> None:
    official, made, _ = both
    told = {one.item: one.judged.prompt for one in official.attempts if one.judged is not None}
    assert told == {one.item: one.judged.prompt for one in made.attempts() if one.judged is not None}


@slow
def test_a_dead_endpoint_ends_in_one_line_after_a_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five tries more, 3 to 48 s apart with up to 3 s at random: some 110 s, and the library's own start."""
    tries: list[float] = []

    def gone(request: dict[str, Any]) -> Any:
        tries.append(time.monotonic())
        return (503, {"error": {"message": "gone", "type": "server_error", "param": None, "code": None}}, 0)

    with serving(gone) as double:
        monkeypatch.setenv(URL, double.url)
        file = published("hle", tmp_path, pairs("hle")[:2])
        with pytest.raises(ServiceError, match="none of 2 questions came through") as told:
            harnessed(evaluation("hle", file, here(tmp_path), double.url))
    assert told.value.where == double.url and "judge" in str(told.value.fix)
    # Two questions, each asked once and RETRIES times more; the judge was never reached.
    assert len(tries) == 2 * (1 + RETRIES) and {request["model"] for request in double.asked} == {MODEL}
    assert max(tries) - min(tries) < 180


WITH_ERROR = {"error": "APIConnectionError: Connection error."}
WHERE = {"log_dir": "logs", "url": "http://model", "judge_url": "http://judge"}


def test_what_measured_no_model_is_an_error_and_a_few_failures_are_none() -> None:
    _answered([WITH_ERROR, {"error": None}], {"status": "success"}, WHERE)
    with pytest.raises(ServiceError, match=r"http://model: none of 2 questions came through: APIConnectionError"):
        _answered([WITH_ERROR, WITH_ERROR], {"status": "success"}, WHERE)
    with pytest.raises(ServiceError, match=r"logs: inspect ended with error: 20 samples failed"):
        _answered([WITH_ERROR], {"status": "error", "error": "20 samples failed"}, WHERE)
    with pytest.raises(ServiceError, match=r"inspect ended with cancelled: APIConnectionError"):
        _answered([WITH_ERROR], {"status": "cancelled", "error": None}, WHERE)


def calculates(conversation: Conversation) -> str:
    """Calls a tool of ours, then answers with what it said."""
    text = str(codec().tokenizer.decode(conversation.ids))
    return format_answer("it is 888") if "888" in text else call("calculator", expression="37*24")


@slow
def test_our_gateway_is_an_openai_model_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"extracted_final_answer": "x", "reasoning": "", "correct": "no", "confidence": 40, "strict": True}

    def judge(request: dict[str, Any]) -> Any:
        return (200, completion(request, json.dumps(said)), 0)

    gateway = Gateway(tmp_path, backend=backend(tmp_path, calculates))
    file = published("hle", tmp_path, pairs("hle")[:3])
    with serving(judge) as double, listening(create_app(gateway, load=False)) as port:
        monkeypatch.setenv(URL, double.url)
        model = ModelSettings(ROOT, load_params(ROOT / "params.yaml"), f"http://127.0.0.1:{port}/v1")
        made = Evaluation(here(tmp_path), model.params, "hle", model, (file,), limit=2)
        official = harnessed(made)
    assert [one.solved for one in official.attempts] == [False, False] and len(double.asked) == 2
    for one in official.attempts:
        assert one.failure == "" and one.answer == "it is 888" and one.calls == {"calculator": 1}
        assert one.cost_usd > 0 and one.judged is not None and one.judged.confidence == 40
    assert all("it is 888" in str(request["messages"]) for request in double.asked)
    assert official.figures["hle/original_accuracy"] == 0 and not math.isnan(official.figures["hle/cerr"])


def orchestra(root: Path, *words: str, **more: str) -> str:
    """What the command says, in a workspace of our code."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    env.pop("MLFLOW_TRACKING_URI", None)
    command = [str(ROOT / ".venv/bin/orchestra"), *words]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@slow
def test_the_command_measures_an_endpoint_and_a_checkpoint_that_it_serves(tmp_path: Path) -> None:
    root = workspace(tmp_path / "workspace")
    shutil.copytree(ROOT / "models/base", root / "models/base")
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(ROOT / name, root)
    for name in DOMAINS:
        shutil.copytree(ROOT / "data/domains" / name, root / "data/domains" / name, dirs_exist_ok=True)
    file, rows = published("hle", tmp_path, pairs("hle")[:4]), [row["id"] for row in pairs("hle")[:3]]
    told = ("evaluate", "--benchmark", "hle", "--harness", "inspect", "--data", str(file), "--limit", "3")
    with serving(player("hle")) as double:
        endpoint = ("--model", f"{MODEL}@{double.url}", "--price", "openai/gpt-5-mini")
        said = orchestra(here(root), *told, *endpoint, **{URL: double.url})
        orchestra(root, *told, "--model", "models/base/embedded", **{URL: double.url})
        asked = [request["model"] for request in double.asked]
    assert "3 questions by inspect_evals" in said and asked.count(MODEL) == 3
    by_model = {found.model: found for found in results(root)}
    assert len(by_model) == 2 and all(found.questions == 3 for found in by_model.values())
    assert by_model[MODEL].accuracy == pytest.approx(2 / 3) and by_model[MODEL].figures["inspect_unscored"] == 0
    served = next(found for name, found in by_model.items() if name != MODEL)
    assert served.checkpoint and served.failures == 0 and served.scored == 3
    for folder in (root / "reports/benchmarks/hle").iterdir():
        lines = (folder / "attempts.jsonl").read_text(encoding="utf-8").splitlines()
        assert folder.name.endswith("-inspect") and [json.loads(line)["item"] for line in lines] == rows


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
