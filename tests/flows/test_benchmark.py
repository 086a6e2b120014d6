"""The benchmark flow: two workers of a task runner make what one process makes."""

import shutil
from pathlib import Path

import pytest

from flows import benchmark as flow
from flows.synthesize import task_runner
from orchestra.evaluation.benchmarks.report import ATTEMPTS, results
from orchestra.tools.experts.judging import URL
from orchestra.tools.replay.cassette import SETTING
from tasks.experiments import benchmark
from tests.support.benchmarks import MODEL, pairs, player, published
from tests.support.endpoint import serving
from tests.support.worlds import ROOT


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_two_workers_replay_what_one_process_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = published("hle", tmp_path, pairs("hle")[:40])
    for name in ("alone", "shared"):
        shutil.copytree(ROOT / "data/catalogue", tmp_path / name / "data/catalogue")
        shutil.copy(ROOT / "params.yaml", tmp_path / name)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with serving(player("hle")) as double:
        monkeypatch.setenv(URL, double.url)
        monkeypatch.setenv(SETTING, f"record:{tmp_path / 'tape.jsonl'}")
        monkeypatch.chdir(tmp_path / "alone")
        model = f"{MODEL}@{double.url}"
        told = ["--benchmark", "hle", "--model", model, "--price", "openai/gpt-5-mini", "--data", str(file)]
        benchmark.main(told)
        asked = len(double.asked)
        monkeypatch.setenv(SETTING, f"replay:{tmp_path / 'tape.jsonl'}")
        monkeypatch.chdir(tmp_path / "shared")
        wanted = {"benchmark": "hle", "model": model, "price": "openai/gpt-5-mini", "data": [str(file)]}
        shared = flow.benchmark.with_options(task_runner=task_runner("processes:2"))
        state = shared(wanted=wanted | {"cap_usd": "5"}, return_state=True)
    (alone,) = results(tmp_path / "alone")
    assert alone.scored + alone.failures == 40 and alone.scored > 30
    assert state.is_completed() and len(double.asked) == asked
    assert state.message == f"hle: {alone.scored} verdicts, {alone.failures} failures"
    made = [
        tmp_path / name / "reports/benchmarks/hle" / f"{MODEL}-openai-gpt-5-mini-40-questions" / ATTEMPTS
        for name in ("alone", "shared")
    ]
    assert made[0].read_bytes() == made[1].read_bytes()
