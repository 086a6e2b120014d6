"""`orchestra analyse` on a real evaluation of small random models."""

import fcntl
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestra.config.judge import JudgeSettings
from orchestra.errors import BudgetError, ConfigError, DataError, ServiceError
from orchestra.evaluation import run as running
from orchestra.evaluation.baselines.base import STRONGEST
from orchestra.evaluation.benchmarks.base import Attempt
from orchestra.evaluation.benchmarks.report import ATTEMPTS, REPORTS, SUMMARY
from orchestra.files.jsonl import write_jsonl
from orchestra.tools.experts.judging import URL
from orchestra.types import Episode, Example, Judged, Verdict
from tasks.analyses import run as analyse
from tasks.analyses.attempts import identity
from tasks.evaluate import heldout
from tasks.platform.stage import Stage
from tasks.platform.tracking import connect, experiment
from tests.support.benchmarks import pairs, published
from tests.support.endpoint import answer, serving
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
    # A new attempt would be the same to the byte, so that only a changed file tells: here all are solved.
    played = [Episode.model_validate_json(line) for line in first.read_text(encoding="utf-8").splitlines()]
    assert [one.solved for one in played] == [False, False]
    marked = [one.model_copy(update={"verdict": Verdict(solved=True, why="marked")}) for one in played]
    first.write_text("".join(one.model_dump_json() + "\n" for one in marked), encoding="utf-8")
    analyse.main(asked)
    assert told(here, "frontier")["points"][0]["accuracy"]["value"] == 1, "what was attempted is taken over"
    points = told(here, "frontier")["points"]
    assert [(one["setting"]["name"], one["examples"]) for one in points] == [
        ("1 turn", 2),
        ("neutral", 2),
    ], "the limits that are named take the place of the default ones"
    analyse.main([*asked, "--budget", "0.000001"])
    last = told(here, "frontier")["points"][-1]
    assert (last["setting"]["series"], last["setting"]["budget_usd"], last["accuracy"]["value"]) == ("budget", 1e-6, 0)
    with pytest.raises(ConfigError, match="no policy named nobody"):
        analyse.main(["frontier", "--policy", "nobody"])


def test_attempts_are_of_one_way_to_play_and_of_one_day_s_prices(here: Path) -> None:
    def of(section: str, **changed: Any) -> str:
        told = params()
        told = told.model_copy(update={section: getattr(told, section).model_copy(update=changed)})
        stage = Stage.open("analyse", here, told)
        return identity(stage, ["grpo"], [heldout(stage)])

    made = [of("evaluate"), of("evaluate", by_rule=True), of("evaluate", engine="vllm")]
    assert len({*made, of("world", price_date="2025-11-16")}) == 4 and of("evaluate") == made[0]


def test_the_frontier_of_another_seed_is_attempted_with_the_preferences_that_it_gives(here: Path) -> None:
    file = here / "data/validated/heldout.jsonl"
    held_out = [Example.model_validate_json(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for n, one in enumerate(held_out):
        stated = one.preference.model_copy(update={"kind": "cheap", "words": f"words {n}"})
        held_out[n] = one.model_copy(update={"preference": stated})
    write_jsonl(file, held_out)
    prompts = []
    for seed in (0, 1):
        told = params()
        told = told.model_copy(update={"evaluate": told.evaluate.model_copy(update={"seed": seed})})
        (here / "params.yaml").write_text(yaml.safe_dump(told.model_dump(mode="json", by_alias=True)))
        analyse.main(["frontier", "--turns", "1", "--examples", "3"])
        prompts.append(last_prompts(here, "cheap"))
    assert prompts[0] != prompts[1]


def last_prompts(root: Path, kind: str) -> str:
    """Of what was attempted last for a kind of preference."""
    files = sorted((root / "work/analyse").rglob(f"preference-{kind}.jsonl"), key=lambda one: one.stat().st_mtime_ns)
    return str([json.loads(line)["prompt_ids"] for line in files[-1].read_text(encoding="utf-8").splitlines()])


@pytest.mark.parametrize("asked", [["frontier", "--examples", "2"], ["unseen-prices", "--examples", "2"]])
def test_a_checkpoint_that_a_run_makes_at_this_moment_is_named(here: Path, asked: list[str]) -> None:
    shutil.rmtree(here / "models/grpo")
    with pytest.raises(DataError, match=r"models/grpo: no such checkpoint — orchestra run makes it"):
        analyse.main(asked)


def test_an_analysis_keeps_the_attempts_of_others(here: Path) -> None:
    other = here / "work/analyse/judges-hle/qwen3-32b.jsonl"
    other.parent.mkdir(parents=True)
    other.write_text("paid for\n", encoding="utf-8")
    analyse.main(["frontier", "--turns", "1", "--examples", "2"])
    played = {file: file.read_bytes() for file in (here / "work/analyse").rglob("*.jsonl")}
    analyse.main(["unseen-tools", "--examples", "2"])
    assert other.read_text(encoding="utf-8") == "paid for\n"
    assert {file: file.read_bytes() for file in played if file.is_file()} == played


def test_unseen_prices_are_attempted_beside_the_known_ones(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    analyse.main(["unseen-prices", "--examples", "2"])
    found = told(here, "unseen-prices")
    shown = [(row["summary"]["policy"], row["condition"]) for row in found["rows"]]
    assert shown == [(name, what) for name in ("grpo", "sft", STRONGEST) for what in ("known", "unseen")]
    assert all(row["summary"]["examples"] == 2 for row in found["rows"])
    # The control solves the sum both times: its known solution needs no expert, whatever one costs.
    assert [row["summary"]["accuracy"]["value"] for row in found["rows"][4:]] == [1, 1]
    assert "always strongest" in capsys.readouterr().out and (here / analyse.REPORTS / "unseen-prices.png").is_file()
    played = {file.name for file in (here / "work/analyse").rglob("*.jsonl")}
    assert played >= {"known.jsonl", "unseen.jsonl"}


def test_preferences_of_a_public_set_are_judged_by_its_judge(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = params()
    stating = settings.model_copy(
        update={"synthesize": settings.synthesize.model_copy(update={"preference_share": 1.0})}
    )
    (here / "params.yaml").write_text(yaml.safe_dump(stating.model_dump(mode="json", by_alias=True)), encoding="utf-8")
    file = published("hle", here, pairs("hle")[:6])
    said = {"extracted_final_answer": "x", "reasoning": "", "correct": "no", "confidence": 50, "strict": True}
    with serving(lambda request: said) as double:
        monkeypatch.setenv(URL, double.url)
        analyse.main(["preferences", "--benchmark", "hle", "--data", str(file)])
    found = told(here, "preferences-hle")
    assert found["simulated"] and found["data"] == "hle"
    overall = {row["policy"]: row for row in found["rows"] if row["preference"] == "all"}
    assert list(overall) == ["grpo", "sft", STRONGEST] and overall[STRONGEST]["examples"] == 6
    assert overall[STRONGEST]["gain"]["value"] == 0, "the rule hears nothing"
    # A rule decides for replies in the reference's words, the judge of the protocol for the others.
    assert {request["model"] for request in double.asked} == {"o3-mini-2025-01-31"}
    assert 0 < len(double.asked) < 12 and overall[STRONGEST]["accuracy"]["value"] < 1
    with pytest.raises(ConfigError, match="no set named tau2"):
        analyse.main(["preferences", "--benchmark", "tau2"])


def stored(
    root: Path, model: str, verdicts: list[bool], part: str = "", identity: str = "", judge: str = "o3-mini-2025-01-31"
) -> None:
    folder = root / REPORTS / "hle" / f"{model}{part}"
    folder.mkdir(parents=True)
    attempts = [
        Attempt(
            item=f"q{number}",
            trial=0,
            solved=solved,
            answer="x",
            judged=Judged(judge=judge, rubric="hle", prompt=f"is {model} q{number} right?", reply="", solved=solved),
        )
        for number, solved in enumerate(verdicts)
    ]
    (folder / ATTEMPTS).write_text("".join(one.model_dump_json() + "\n" for one in attempts), encoding="utf-8")
    (folder / SUMMARY).write_text(json.dumps({"identity": identity} if identity else {}), encoding="utf-8")


def test_an_answer_of_a_part_and_of_the_whole_is_judged_and_counted_once(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(here, "a", [True, True, False], identity="1")
    stored(here, "a", [True, True], "-first-2", identity="1")
    stored(here, "b", [True, False, False], identity="2")
    said = {"extracted_final_answer": "x", "reasoning": "", "correct": "yes", "confidence": 50}
    asked = ["judges", "--benchmark", "hle", "--judge", "qwen3-32b", "--judge-price", "together/qwen3-32b"]
    with serving(lambda request: (200, answer(json.dumps(said)), 0)) as double:
        monkeypatch.setenv(URL, double.url)
        analyse.main(asked)
    assert len(double.asked) == 6
    rows = told(here, "judges-hle-qwen3-32b")["rows"]
    assert [(one["model"], one["answers"]) for one in rows] == [("all", 6), ("a", 3), ("b", 3)]
    (here / REPORTS / "hle" / "b" / SUMMARY).write_text("[", encoding="utf-8")
    with pytest.raises(DataError, match=r"b/summary\.json: not a summary — run the evaluation again"):
        analyse.main(asked)


def test_another_judge_reads_the_stored_prompts_once(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stored(here, "a", [True, True, False])
    stored(here, "b", [True, False, False])

    def reply(request: dict[str, Any]) -> Any:
        prompt = request["messages"][0]["content"]
        right = "yes" if "q0" in prompt or "q2" in prompt else "no"
        said = {"extracted_final_answer": "x", "reasoning": "", "correct": right, "confidence": 50, "strict": True}
        return (200, answer("I cannot say." if "b q1" in prompt else json.dumps(said)), 0)

    asked = ["judges", "--benchmark", "hle", "--judge", "qwen3-32b", "--judge-price", "together/qwen3-32b"]
    with serving(reply) as double:
        monkeypatch.setenv(URL, double.url)
        analyse.main(asked)
        assert len(double.asked) == 6 and all("response_format" in request for request in double.asked)
        assert "cannot be read" in caplog.text and "'I cannot say.'" in caplog.text, "the log says why one is left out"
        analyse.main(asked)
        assert len(double.asked) == 7, "only the reply that could not be read is asked for again"
    found = told(here, "judges-hle-qwen3-32b")
    everything, one, two = found["rows"]
    assert (found["failed"], everything["lenient"], everything["strict"]) == (1, 2, 1)
    assert (one["model"], one["answers"], two["model"], two["answers"]) == ("a", 3, "b", 2)
    with pytest.raises(DataError, match="no verdict of the protocol's judge is stored"):
        analyse.main([*asked[:2], "frames", *asked[3:]])


def test_at_the_cap_the_verdicts_that_are_under_way_are_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(here, "a", [True] * 9)  # one more than are asked at once
    said = json.dumps({"extracted_final_answer": "x", "reasoning": "", "correct": "yes", "confidence": 50})

    def reply(request: dict[str, Any]) -> Any:
        prompt = request["messages"][0]["content"]
        if "q1" in prompt:
            return (200, answer(said) | {"usage": {"prompt_tokens": 10, "completion_tokens": 10**9}}, 0)
        return (200, answer(said), 1)  # Later, or the ninth is asked before the dollars of q1 are booked.

    asked = ["judges", "--benchmark", "hle", "--judge", "qwen3-32b", "--judge-price", "together/qwen3-32b"]
    with serving(reply) as double:
        monkeypatch.setenv(URL, double.url)
        with pytest.raises(BudgetError, match="raise the cap"):
            analyse.main([*asked, "--cap-usd", "1"])
        assert len(double.asked) == 8
        with pytest.raises(BudgetError, match="raise the cap"):
            analyse.main([*asked, "--cap-usd", "1"])
        other = ["judges", "--benchmark", "hle", "--judge", "gpt-5", "--judge-price", "openai/gpt-5"]
        with pytest.raises(BudgetError, match="raise the cap"):
            analyse.main([*other, "--cap-usd", "1"])
        assert len(double.asked) == 16, "the dollars of one judge are none of the other's"
    files = (here / "work/analyse/judges-hle/qwen3-32b").glob("*.jsonl")
    (file,) = (one for one in files if one.name != "ledger.jsonl")
    kept = file.read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["item"] for line in kept} == {f"q{number}" for number in range(8)}


def test_verdicts_of_another_judge_are_no_control(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(here, "a", [True] * 4)
    stored(here, "a", [False] * 4, part="-judge-qwen3-32b", judge="qwen3-32b")
    said = json.dumps({"extracted_final_answer": "x", "reasoning": "", "correct": "no", "confidence": 50})
    with serving(lambda request: (200, answer(said), 0)) as double:
        monkeypatch.setenv(URL, double.url)
        analyse.main(["judges", "--benchmark", "hle", "--judge", "qwen3-32b", "--judge-price", "together/qwen3-32b"])
        assert len(double.asked) == 4
    found = told(here, "judges-hle-qwen3-32b")
    assert found["first"] == "o3-mini-2025-01-31" and [one["agreed"] for one in found["rows"]] == [0, 0]


def test_a_judge_with_other_settings_reads_again_and_one_command_at_a_time_asks_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(here, "a", [True] * 2)
    said = json.dumps({"extracted_final_answer": "x", "reasoning": "", "correct": "no", "confidence": 50})
    asked = ["judges", "--benchmark", "hle", "--judge", "gpt-5", "--judge-price", "openai/gpt-5"]
    with serving(lambda request: (200, answer(said), 0)) as double:
        monkeypatch.setenv(URL, double.url)
        analyse.main(asked)
        judge = JudgeSettings(model="gpt-5", price="openai/gpt-5", settings={"reasoning_effort": "high"})
        shipped = params()
        named = shipped.model_copy(update={"world": shipped.world.model_copy(update={"judge": judge})})
        (here / "params.yaml").write_text(yaml.safe_dump(named.model_dump(mode="json", by_alias=True)))
        analyse.main(asked)
        assert len(double.asked) == 4
        with (here / "work/analyse/judges-hle/gpt-5/lock").open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(ServiceError, match="works with this judge"):
                analyse.main(asked)
