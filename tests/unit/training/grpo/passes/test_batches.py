"""The measures of a step that has several parts."""

from orchestra.training.grpo.passes.batches import as_one


def test_measures_of_parts_become_one_by_their_tokens() -> None:
    measures = {"entropy": [9.0], "clip_ratio/low_min": [], "clip_ratio/high_max": [], "step_time": [1.0]}
    with as_one(measures, [3.0, 1.0]):
        for name, values in (("entropy", (2.0, 6.0)), ("clip_ratio/low_min", (4.0, 3.0))):
            measures[name] += values
        measures["clip_ratio/high_max"] += (4.0, 3.0)
        measures["kl"] = [0.0, 1.0]
    assert measures == {
        "entropy": [9.0, 3.0], "clip_ratio/low_min": [3.0], "clip_ratio/high_max": [4.0], "step_time": [1.0],
        "kl": [0.25],
    }  # fmt: skip


def test_parts_without_tokens_have_measures_too() -> None:
    measures: dict[str, list[float]] = {}
    with as_one(measures, [0.0, 0.0]):
        measures["entropy"] = [1.0, 2.0]
    assert measures == {"entropy": [0.0]}
