"""`orchestra learn` before it trains: its options, its parameters, and what it says of both; and seeds at a time."""

import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestra.config.overrides import apply
from orchestra.config.schema import load_params
from orchestra.errors import ConfigError, DataError
from orchestra.evaluation.baselines.base import rivals
from orchestra.evaluation.claims import arms
from orchestra.evaluation.claims.arms import ABLATIONS, ARMS, Arm
from orchestra.evaluation.claims.claims import Claim
from orchestra.system.workspace import Screen
from tasks.experiments import learn
from tasks.experiments.learn import Options, claim_metrics, differences, effective
from tasks.experiments.runner import Learning, arm_metric, policies, seed_overrides
from tasks.experiments.store import Keeper
from tasks.platform.tracking import Recorder

ROOT = Path(__file__).parents[4]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=t", "-c", "user.email=t@e.org", "commit", "-qm", "s"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_by_default_three_seeds_and_no_ablations() -> None:
    options = Options.parse([])
    assert options.seeds == (0, 1, 2) and not options.ablations and not options.force
    assert options.all_overrides == [] and options.command == "orchestra learn"


@pytest.mark.parametrize(
    "words",
    [
        ["--seeds", "3"],
        ["--seeds", "5,4", "--ablations", "--set", "grpo.steps=3", "--examples", "64", "--probe-examples", "9"],
        ["--set", "evaluate.baselines=[oracle, random]"],
        ["--jobs", "2"],
    ],
)
def test_the_page_says_how_to_ask_for_the_same_again(words: list[str]) -> None:
    import shlex

    options = Options.parse(words)
    again = Options.parse(shlex.split(options.command)[2:])
    assert again == options


def test_each_seed_once_in_the_order_given() -> None:
    assert Options.parse(["--seeds", "2, 0,2"]).seeds == (2, 0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--seeds", "one"], "--seeds"),
        (["--seeds", ""], "--seeds"),
        (["--seeds", "-1"], "--seeds"),
        (["--examples", "0"], "--examples"),
        (["--probe-examples", "-3"], "--probe-examples"),
        (["--split", "bogus"], "--split"),
        (["--jobs", "0"], "--jobs"),
    ],
)
def test_bad_options_are_one_line(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{says}: "):
        Options.parse([words[0] + "=" + words[1]])


def test_the_test_set_has_the_size_that_was_frozen() -> None:
    with pytest.raises(ConfigError, match=r"^--examples: the test set is measured whole"):
        Options.parse(["--split", "test", "--examples", "9"])


def test_overrides_hold_for_once(root: Path) -> None:
    before = (root / "params.yaml").read_text()
    params = effective(root, ["grpo.steps=7", "evaluate.examples=64"])
    assert params.grpo.steps == 7 and params.evaluate.examples == 64
    assert (root / "params.yaml").read_text() == before
    with pytest.raises(ConfigError, match=r"no key grpo\.stepz") as caught:
        effective(root, ["grpo.stepz=7"])
    assert str(root / "params.yaml") in str(caught.value), "no copy of it"


def test_what_differs_from_the_commit_is_said_wherever_it_was_changed(root: Path) -> None:
    assert differences(root, effective(root, [])) == {}
    steps = load_params(root / "params.yaml").grpo.steps
    apply(root / "params.yaml", ["sft.epochs=9", "sft.seed=8"])
    found = differences(root, effective(root, ["grpo.steps=7"]))
    assert found["grpo.steps"] == f"7 (default {steps})" and found["sft.epochs"].startswith("9 (default ")
    assert set(found) == {"grpo.steps", "sft.epochs"}


def test_seeds_and_policies_are_valid_overrides(root: Path) -> None:
    params = effective(root, [*seed_overrides(4), *policies(["grpo"]), "evaluate.seed=3"])
    assert params.evaluate.policies == ["grpo"] and params.evaluate.baselines == []
    assert effective(root, policies([], rivals())).evaluate.baselines == rivals()
    apply(root / "params.yaml", seed_overrides(4))
    raw = yaml.safe_load((root / "params.yaml").read_text())
    assert raw["sft"]["seed"] == raw["grpo"]["seed"] == 4


@pytest.mark.parametrize("arm", [*ARMS, *ABLATIONS], ids=lambda arm: arm.name)
def test_what_an_arm_changes_is_in_the_shipped_parameters(root: Path, arm: Arm) -> None:
    apply(root / "params.yaml", [f"{key}={value}" for key, value in {**(arm.overrides or {}), **arm.measured}.items()])
    load_params(root / "params.yaml")


def test_an_arm_that_no_training_takes_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Arm(name="clipped", overrides={"grpo.clip_low": "2"})
    misspelt = Arm(name="tried", overrides={"grpo.branch.words": "[cheapest, strongst]"})
    for arm, says in (
        (wrong, "the arm 'clipped', --set: "),
        (misspelt, "the arm 'tried', grpo.branch.words: no thought"),
    ):
        monkeypatch.setattr(arms, "ABLATIONS", (*ABLATIONS, arm))
        with pytest.raises(ConfigError, match=f"^{says}") as caught:
            learn.learn(ROOT, Options.parse(["--ablations"]), Screen())
        assert "\n" not in str(caught.value)


def test_a_joined_file_that_is_not_there_is_refused_before_anything_runs() -> None:
    with pytest.raises(DataError, match=r"^nofile\.json\.gz: is not the result of a seed"):
        learn.learn(ROOT, Options.parse(["--join", "nofile.json.gz"]), Screen())
    with pytest.raises(DataError, match=r"^params\.yaml: is not the result of a seed"):
        learn.learn(ROOT, Options.parse(["--join", "params.yaml"]), Screen())


class Meeting(Learning):
    """Its seeds wait for each other, two at a time; seed 3 fails, and seed 9 is interrupted."""

    meeting = threading.Barrier(2, timeout=60)

    def _seed(self, seed: int, base: Any, recorder: Recorder) -> Any:
        self.meeting.wait()
        if seed == 3:
            raise DataError("lost", where="sft")
        if seed == 9:
            raise KeyboardInterrupt
        self.parts.append(seed)  # type: ignore[arg-type]
        return {"ours": seed}


def meeting(root: Path) -> Meeting:
    params, recorder = load_params(root / "params.yaml"), Recorder.open(root, "r", "learn")
    return Meeting(root, params, Keeper(root, print), recorder, 9, jobs=2)


def test_seeds_of_one_time_are_told_in_their_order_and_one_that_fails_takes_no_other_with_it(root: Path) -> None:
    learning = meeting(root)
    found: list[Any] = [*learning._seeds([2, 1, 4, 3], ())]
    parts: list[Any] = [*learning.parts]
    assert found == [{"ours": 2}, {"ours": 1}, {"ours": 4}, None] and parts == [2, 1, 4]
    assert learning.failures == ["seed 3: sft: lost"]


def test_an_interruption_ends_every_seed(root: Path) -> None:
    learning = meeting(root)
    with pytest.raises(KeyboardInterrupt):
        learning._seeds([9, 1], ())
    with pytest.raises(KeyboardInterrupt):
        learning.keeper.run("sft", "seed 2")


def test_every_arm_has_metrics_of_its_own_and_ours_are_those_of_the_trained_policy() -> None:
    names = [arm_metric(arm, "grpo.accuracy") for arm in (*ARMS, *ABLATIONS)]
    assert len(set(names)) == len(names) and {"grpo.accuracy", "sft.accuracy", "base.accuracy"} <= set(names)
    assert all(re.fullmatch(r"[\w.]+", name) for name in names)


def test_metrics_have_names_that_mlflow_takes_and_no_holes() -> None:
    one = Claim(name="cost: ≤ 30 %", bar="", value=0.2, low=0.1, high=0.3, holds=True, per_seed=())
    other = Claim(name="Reads «prices»", bar="", value=None, low=None, high=None, holds=False, per_seed=())
    assert claim_metrics([one, other]) == {
        "claim.cost_30.holds": 1.0,
        "claim.cost_30": 0.2,
        "claim.cost_30.low": 0.1,
        "claim.cost_30.high": 0.3,
        "claim.reads_prices.holds": 0.0,
    }


def test_a_bug_ends_in_one_line_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> int:
        raise RuntimeError("no answer of s3cr3t-Pa55word")

    monkeypatch.setenv("SOME_TOKEN", "s3cr3t-Pa55word")
    monkeypatch.setattr(learn, "learn", fails)
    monkeypatch.chdir(tmp_path)
    assert learn.main([]) == 1
    said = capfd.readouterr()
    assert "s3cr3t" not in said.out + said.err and "Traceback" in said.err
    assert (said.out + said.err).count("error: learn: RuntimeError: no answer of [secret]") == 1
