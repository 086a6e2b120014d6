"""100 hand-made pairs of HLE and of FRAMES: our verdict is the official scorer's, and so are the figures."""

from pathlib import Path

import pytest

from orchestra.evaluation.benchmarks.base import BENCHMARKS
from orchestra.evaluation.benchmarks.hle.scorer import calibration_error
from orchestra.evaluation.benchmarks.run import Evaluation
from orchestra.rewards.rubrics import rubric
from orchestra.tools.experts.judging import URL
from tests.support.benchmarks import evaluation, pairs, player, published
from tests.support.endpoint import serving

OFFICIAL_ERROR = 0.2644791666666667
"""`cerr` of inspect_evals 0.26.0 on the verdicts on HLE's pairs."""


def run(benchmark: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **more: object) -> tuple[Evaluation, int]:
    with serving(player(benchmark)) as double:
        monkeypatch.setenv(URL, double.url)
        made = evaluation(benchmark, published(benchmark, folder), folder, double.url, **more)
        made.attempt(made.shards)
    return made, len(double.asked)


@pytest.mark.parametrize("benchmark", ["hle", "frames"])
def test_our_verdicts_are_the_official_ones(benchmark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = run(benchmark, tmp_path, monkeypatch)
    attempts, rows = made.attempts(), pairs(benchmark)
    assert len(attempts) == len(rows) == 100 and asked == 200
    assert [attempt.solved for attempt in attempts] == [row["official"] for row in rows]
    failed = [attempt for attempt in attempts if attempt.solved is None]
    assert all("cannot be read" in attempt.failure for attempt in failed)
    assert len(failed) == (4 if benchmark == "hle" else 0)
    for attempt, row in zip(attempts, rows, strict=True):
        if attempt.judged is not None:
            assert attempt.judged.reply == row["reply"].strip() and row["response"] in attempt.judged.prompt


def test_the_confidence_and_the_figures_of_hle_are_the_official_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = run("hle", tmp_path, monkeypatch)
    attempts, rows = made.attempts(), pairs("hle")
    told = [attempt.judged.confidence for attempt in attempts if attempt.judged is not None]
    assert told == [row["official_confidence"] for row in rows if row["official"] is not None]
    found = BENCHMARKS["hle"].figures(attempts, 100)
    solved = sum(bool(row["official"]) for row in rows)
    assert found["accuracy_authors"] == round(100 * solved / 100, 2)
    assert found["calibration_error"] == pytest.approx(OFFICIAL_ERROR, abs=1e-9)
    # 96 verdicts make no whole bin of 100, so the authors' code has nothing to say.
    assert "calibration_error_authors" not in found


def test_the_authors_error_leaves_out_the_most_confident_bin() -> None:
    """Two bins of 100: the sure answers are all wrong, which only the whole figure sees."""
    confidences, correct = [0.5] * 100 + [1.0] * 130, [True, False] * 50 + [False] * 130
    assert calibration_error(confidences, correct, last_bin=False) == 0
    whole = calibration_error(confidences, correct)
    assert whole == pytest.approx((130 / 230) ** 0.5)


def test_the_prompt_of_the_protocol_is_the_one_that_is_sent() -> None:
    for name in ("hle", "frames", "frames-oracle", "tau2"):
        protocol = BENCHMARKS[name].protocol
        assert protocol.judge is not None
        assert rubric(protocol.judge.rubric).sha256 == protocol.prompt_sha256
