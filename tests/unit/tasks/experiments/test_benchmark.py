"""`orchestra evaluate` on a version, a checkpoint and a chat endpoint; its results on the page and in MLflow."""

import json
import shutil
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow.tracking._tracking_service import utils

from orchestra.errors import ConfigError, DataError, ServiceError
from orchestra.evaluation.benchmarks.models import KEY
from orchestra.evaluation.benchmarks.report import REPORTS, results
from orchestra.tools.experts.judging import URL
from tasks.experiments import benchmark
from tasks.experiments.wanted import Wanted
from tasks.platform.pages import ARTIFACT, PAGE
from tasks.platform.stage import Stage
from tasks.platform.tracking import connect, experiment
from tasks.promote import promote
from tests.support.benchmarks import MODEL, ROOT, pairs, player, published
from tests.support.endpoint import serving
from tests.support.promotions import params, workspace


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A workspace whose first version was promoted, and the MLflow run that did it."""
    root = tmp_path_factory.mktemp("workspace")
    workspace(root)
    (root / "params.yaml").write_text(yaml.safe_dump(params().model_dump(mode="json", by_alias=True)), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        client = connect(root)
        run_id = str(client.create_run(experiment(client, root)).info.run_id)
        assert promote(Stage.open("promote", root, params()), run_id).version == 1
    assert "None was measured yet" in (root / PAGE).read_text()
    return root, run_id


@pytest.fixture
def root(decided: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copied = Path(shutil.copytree(decided[0], tmp_path / "w"))
    # A process works in one workspace, and MLflow remembers where a run's artifacts are; here it is the copy's.
    monkeypatch.setattr(utils, "_artifact_repos_cache", OrderedDict())
    monkeypatch.chdir(copied)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return copied


def attempts(root: Path, benchmark: str, model: str) -> list[dict[str, Any]]:
    file = root / f"reports/benchmarks/{benchmark}/{model}/attempts.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_version_and_the_folder_of_its_checkpoint_get_the_same_and_stand_on_the_page(
    root: Path, decided: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark.main(["--benchmark", "own", "--model", "1", "--limit", "3"])
    benchmark.main(["--benchmark", "own", "--model", "models/grpo", "--limit", "3"])
    by_number, by_folder = (attempts(root, "own", f"{name}-first-3") for name in ("version-1", "models-grpo"))
    assert len(by_number) == 3 and by_number == by_folder
    first, second = results(root)
    assert first.checkpoint == second.checkpoint and len(first.checkpoint) == 64
    page = (root / PAGE).read_text()
    assert page.count("<td>own (3 x 1; first-3)</td>") == 2 and page.count('<td class="text">version 1</td>') == 2
    assert "None was measured yet" not in page and page.count('id="benchmarks"') == 1
    logged = Path(connect(root).download_artifacts(decided[1], ARTIFACT, str(root))).read_text()
    assert logged == (root / ".state/decisions/1.html").read_text() and "own (3 x 1; first-3)" in logged
    assert "version-1" in capsys.readouterr().out


def test_a_chat_endpoint_is_asked_with_its_key_and_paid_by_its_price(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = published("hle", tmp_path, pairs("hle")[:4])
    with serving(player("hle")) as double:
        monkeypatch.setenv(URL, double.url)
        monkeypatch.setenv(KEY, "sk-tested")
        told = ["--benchmark", "hle", "--data", str(file), "--model", f"{MODEL}@{double.url}"]
        with pytest.raises(ConfigError, match="--price"):
            benchmark.main(told)
        benchmark.main([*told, "--price", "openai/gpt-5-mini"])
        asked = [key for key, request in zip(double.keys, double.asked, strict=True) if request["model"] == MODEL]
    assert asked == ["Bearer sk-tested"] * 4
    (summary,) = results(root)
    assert (summary.model, summary.checkpoint, summary.scored) == (MODEL, "", 4) and summary.cost_usd > 0
    client = connect(root)
    (run,) = client.search_runs([experiment(client, root, benchmark.EXPERIMENT)])
    assert run.data.params["model"] == MODEL and run.data.metrics["scored"] == 4
    page = (root / PAGE).read_text()
    assert f'<td class="text">{MODEL}</td>' in page and f"{100 * (summary.accuracy or 0):.1f} %" in page


def test_mlflow_has_one_run_for_each_result_under_its_own_name(root: Path) -> None:
    def runs() -> dict[str, Any]:
        found = client.search_runs([experiment(client, root, benchmark.EXPERIMENT)])
        assert all(run.info.status == "FINISHED" for run in found)
        return {run.info.run_name: run for run in found} if len({r.info.run_name for r in found}) == len(found) else {}

    client, told = connect(root), ["--benchmark", "own", "--model", "models/grpo"]
    for limit in ("3", "2", "3"):
        benchmark.main([*told, "--limit", limit])
    benchmark.main(told)
    benchmark.main(told)
    found = runs()
    assert set(found) == {"own models-grpo", "own models-grpo-first-2", "own models-grpo-first-3"}
    assert len(results(root)) == 3
    part = found["own models-grpo-first-2"]
    assert part.data.tags["variant"] == "first-2" and part.data.metrics["scored"] == 2
    assert {"accuracy_low", "accuracy_high"} <= part.data.metrics.keys()


def test_a_cap_is_told_where_errors_are_and_not_among_the_results(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = published("hle", tmp_path, pairs("hle")[:2])
    with serving(player("hle")) as double:
        monkeypatch.setenv(URL, double.url)
        told = ["--benchmark", "hle", "--data", str(file), "--model", f"{MODEL}@{double.url}"]
        with pytest.raises(SystemExit) as end:
            benchmark.main([*told, "--price", "openai/gpt-5-mini", "--cap-usd", "0.000001"])
    said = capsys.readouterr()
    assert end.value.code == 2 and "capped" not in said.out
    assert said.err.startswith("error: evaluate: capped: ") and len(said.err.splitlines()) == 1


def test_another_file_takes_the_place_of_no_result_on_the_workspace_s_own(root: Path) -> None:
    own = root / "data/validated/heldout.jsonl"
    lines = own.read_text(encoding="utf-8").splitlines(keepends=True)
    for name, some in (("copy", lines), ("two", lines[:2])):
        (root / f"{name}.jsonl").write_text("".join(some), encoding="utf-8")
    told = ["--benchmark", "own", "--model", "models/grpo"]
    for options in ([], ["--data", "copy.jsonl"], ["--data", "two.jsonl"]):
        benchmark.main([*told, *options])
    found = {one.name: (one.questions, one.whole) for one in results(root)}
    assert found == {"models-grpo": (6, True), "models-grpo-data-two": (2, False)}


def test_a_judge_that_would_agree_with_itself_is_told_before_anything_is_paid(root: Path, tmp_path: Path) -> None:
    file = published("hle", tmp_path, pairs("hle")[:2])
    told = ["--benchmark", "hle", "--data", str(file), "--model", f"{MODEL}@http://127.0.0.1:9/v1"]
    judge = ["--judge", "gpt-4.1-2025-04-14", "--judge-price", "openai/gpt-4.1", "--agreement", "2"]
    with pytest.raises(ConfigError, match=r"--agreement: the second judge is gpt-4\.1-2025-04-14 too"):
        benchmark.main([*told, "--price", "openai/gpt-5-mini", *judge])


def test_a_part_or_another_judge_takes_the_place_of_no_whole_result(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = published("hle", tmp_path, pairs("hle")[:4]), tmp_path / "other"
    other.mkdir()
    with serving(player("hle")) as double:
        monkeypatch.setenv(URL, double.url)
        told = ["--benchmark", "hle", "--data", str(file), "--model", f"{MODEL}@{double.url}"]
        priced = [*told, "--price", "openai/gpt-5-mini"]
        judge = ["--judge", "judge-7b", "--judge-price", "openai/gpt-4.1"]
        for options in ([], ["--limit", "2"], ["--only", "Math"], ["--trials", "2"], judge):
            benchmark.main([*priced, *options])
        benchmark.main([*told, "--price", "openai/gpt-5"])
        benchmark.main([*priced, "--data", str(published("hle", other, pairs("hle")[4:7]))])
    mini = f"{MODEL}-openai-gpt-5-mini-4-questions"
    parts = {f"{mini}-Math": 2, f"{mini}-first-2": 2, f"{mini}-2-trials": 8}
    others = {f"{mini}-judge-judge-7b": 4, f"{MODEL}-openai-gpt-5-4-questions": 4}
    others[f"{MODEL}-openai-gpt-5-mini-7-questions"] = 7
    found = {folder.name: len(attempts(root, "hle", folder.name)) for folder in (root / REPORTS / "hle").iterdir()}
    assert found == {mini: 4, **parts, **others}


def test_a_judge_that_is_gone_is_told_with_the_options_and_the_report_says_who_judged_instead(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, reply, official = published("hle", tmp_path, pairs("hle")[:2]), player("hle"), "o3-mini-2025-01-31"
    gone = {"error": {"message": "The model has been deprecated.", "code": "model_not_found"}}
    with serving(lambda request: (404, gone, 0) if request["model"] == official else reply(request)) as double:
        monkeypatch.setenv(URL, double.url)
        told = ["--benchmark", "hle", "--data", str(file), "--model", f"{MODEL}@{double.url}"]
        told += ["--price", "openai/gpt-5-mini"]
        with pytest.raises(
            ServiceError, match=r"HTTP 404.*nothing was asked of the model.*--judge MODEL --judge-price"
        ):
            benchmark.main(told)
        assert [request["model"] for request in double.asked] == [official]
        benchmark.main([*told, "--judge", "judge-7b", "--judge-price", "openai/gpt-4.1"])
    (summary,) = results(root)
    assert (summary.judge, summary.protocol_judge, summary.whole) == ("judge-7b", official, False)
    other = f"the verdicts are by judge-7b, not by the protocol's judge {official}"
    said = capsys.readouterr().out
    assert f"evaluate: {other}: compare them with no published figure" in said and f"hle {MODEL}: {other}\n" in said
    (kept,) = (root / REPORTS / "hle").glob("*/protocol.yaml")
    protocol = yaml.safe_load(kept.read_text())
    assert protocol["judge"]["model"] == "judge-7b" and protocol["notes"][-1] == f"Another judge: {other}."
    client = connect(root)
    (run,) = client.search_runs([experiment(client, root, benchmark.EXPERIMENT)])
    assert run.data.tags["protocol_judge"] == official
    assert f"judge-7b (not the protocol&#39;s {official})" in (root / PAGE).read_text()


def test_a_judge_that_params_yaml_names_too_has_its_limit_and_its_settings(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    named = {"model": "judge-7b", "price": "openai/o3-mini", "max_output_tokens": 77, "settings": {"top_p": 1}}
    said["world"]["judge"] = named
    (root / "params.yaml").unlink()
    (root / "params.yaml").write_text(yaml.safe_dump(said), encoding="utf-8")
    file = published("hle", tmp_path, pairs("hle")[:2])
    with serving(player("hle")) as double:
        monkeypatch.setenv(URL, double.url)
        told = ["--benchmark", "hle", "--data", str(file), "--model", f"{MODEL}@{double.url}"]
        told += ["--price", "openai/gpt-5-mini", "--judge-price", "openai/gpt-4.1"]
        for judge in ("judge-7b", "judge-8b"):
            benchmark.main([*told, "--judge", judge])
        sent = {(one["model"], one["max_completion_tokens"], one.get("top_p")) for one in double.asked}
    limits = {(model, top_p): most for model, most, top_p in sent if model != MODEL}
    assert limits == {("judge-7b", 1): 77, ("judge-8b", None): 4096}
    protocols = [yaml.safe_load(one.read_text()) for one in (root / REPORTS / "hle").glob("*/protocol.yaml")]
    assert {(one["judge"]["price"], one["judge"]["rubric"]) for one in protocols} == {("openai/gpt-4.1", "hle")}


def test_attempts_without_a_verdict_are_said_and_where_all_are_so_it_is_an_error(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, reply, down = published("hle", tmp_path, pairs("hle")[:3]), player("hle"), ["(h000)", "(h001)", "(h002)"]

    def refusing(request: dict[str, Any]) -> Any:
        refused = any(name in str(request["messages"]) for name in down)
        return (400, {"error": {"message": "too long"}}, 0) if refused else reply(request)

    with serving(refusing) as double:
        monkeypatch.setenv(URL, double.url)
        told = ["--benchmark", "hle", "--data", str(file), "--model", f"{MODEL}@{double.url}"]
        told += ["--price", "openai/gpt-5-mini"]
        with pytest.raises(ServiceError, match=r"3 of 3 attempts have no verdict: .*too long.* — .*--retry-failures"):
            benchmark.main(told)
        assert results(root) == []
        del down[1:]
        benchmark.main([*told, "--retry-failures"])
    assert "1 of 3 attempts have no verdict, see failures.jsonl; to repeat them" in capsys.readouterr().out
    (summary,) = results(root)
    assert (summary.scored, summary.failures) == (2, 1)


HOLDER = """
import sys
from pathlib import Path
from orchestra.system.workspace import alone
with alone(Path(sys.argv[1]) / "lock", Path(), ""):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_command_for_the_same_evaluation_asks_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = published("hle", tmp_path, pairs("hle")[:1])
    with serving(player("hle")) as double:
        monkeypatch.setenv(URL, double.url)
        model = f"{MODEL}@{double.url}"
        told = ["--benchmark", "hle", "--data", str(file), "--model", model, "--price", "openai/gpt-5-mini"]
        wanted = Wanted(benchmark="hle", data=[str(file)], model=model, price="openai/gpt-5-mini")
        command = [sys.executable, "-c", HOLDER, str(benchmark.prepare(wanted, root).folder)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None and other.stdout.readline() == b"held\n"
            with pytest.raises(ServiceError, match=f"a run with pid {other.pid} works on this evaluation"):
                benchmark.main([*told, "--limit", "1"])
            other.communicate()
        assert not double.asked
        benchmark.main(told)


def test_a_version_or_a_folder_that_is_not_there_is_said_in_one_line(root: Path) -> None:
    with pytest.raises(ConfigError, match="this benchmark has no second judge — leave it out"):
        benchmark.main(["--benchmark", "own", "--model", "1", "--agreement", "5"])
    with pytest.raises(ConfigError, match="it has no failures to repeat — leave it or --harness out"):
        benchmark.main(["--benchmark", "hle", "--model", "1", "--harness", "inspect", "--retry-failures"])
    with pytest.raises(DataError, match=r"data/tau2: no such file — make setup-tau2$"):
        benchmark.main(["--benchmark", "tau2", "--model", "1"])
    with pytest.raises(DataError, match="none: no such file — name the published files: --data FILE"):
        benchmark.main(["--benchmark", "tau2", "--model", "1", "--data", "none"])
    with pytest.raises(ConfigError, match="no version 9"):
        benchmark.main(["--benchmark", "own", "--model", "9"])
    with pytest.raises(DataError, match="no model of that name"):
        benchmark.main(["--benchmark", "own", "--model", "models/none"])
