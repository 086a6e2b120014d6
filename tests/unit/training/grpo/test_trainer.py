"""GRPO through the real trainer: it runs, its filters count, and a killed run continues exactly."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from orchestra.config.reward import Constraint
from orchestra.config.schema import Grpo, Rollout
from orchestra.errors import ConfigError, DataError, TrainingError
from orchestra.rollout.render import Codec
from orchestra.tools.toolkit import Toolkit
from orchestra.training.grpo.health import WINDOW
from orchestra.training.grpo.order import training_rows
from orchestra.training.grpo.trainer import GrpoResult, train_grpo
from orchestra.types import Category, Example, Preference
from tests.support.worlds import PRICE, codec, easy_example, example, same, toolkit, warm_model

SETTINGS = Grpo(
    seed=0, steps=4, examples_per_step=2, group_size=4, learning_rate=0.01, temperature=1.0, clip_low=0.2,
    clip_high=0.28, kl=0.0, advantage_clip=3.0, min_group_std=0.01, malformed="zero", max_infrastructure_failures=0.2,
    eval_every=2, eval_examples=1, save_steps=2,
)  # fmt: skip
LIMITS = Rollout(max_turns=2, max_turn_tokens=24, max_tokens=200)
CHEAP = Preference(kind="cheap", words="", outcome=0.5, compute=1, latency=0)
FAST = Preference(kind="fast", words="", outcome=0.5, compute=0, latency=1)
Logs = dict[tuple[int, str], dict[str, float]]


class Killed(Exception):
    """As far as the trainer knows."""


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    return toolkit(tmp_path_factory.mktemp("world"))


def examples(**changes: Any) -> list[Example]:
    return [easy_example(f"e{i}", CHEAP).model_copy(update=changes) for i in range(8)]


def train(
    tools: Toolkit, work: Path, settings: Grpo = SETTINGS, *, items: list[Example] | None = None, stop_at: int = 0
) -> tuple[PreTrainedModel, GrpoResult, Logs]:
    """The model, the result, and what was logged by step and kind (train or dev)."""
    model, logs = warm_model(), Logs()

    def log(metrics: dict[str, float], step: int) -> None:
        kind = "dev" if any(name.startswith("dev/") for name in metrics) else "train"
        logs[step, kind] = {k: v for k, v in metrics.items() if k != "train/step_time"}
        if step == stop_at and kind == "train":
            raise Killed

    def evaluate(current: PreTrainedModel) -> dict[str, float]:
        return {"norm": float(sum(p.detach().double().square().sum() for p in current.parameters()))}

    chosen = items if items is not None else examples()
    return model, train_grpo(model, codec(), tools, chosen, settings, LIMITS, PRICE, work, log, evaluate), logs


def test_a_killed_run_continues_exactly(tools: Toolkit, tmp_path: Path) -> None:
    whole, result, logs = train(tools, tmp_path / "whole")
    assert (result.steps, result.resumed_from, result.stopped) == (4, 0, None)
    assert [step for step, kind in logs if kind == "train"] == [1, 2, 3, 4]
    assert [step for step, kind in logs if kind == "dev"] == [2, 4]
    # It trains at all: rewards differ within groups, gradients are not zero, weights move.
    assert any(row["dead_groups"] < 1 for row in result.history)
    assert any(row["train/grad_norm"] > 0 for (_, kind), row in logs.items() if kind == "train")
    assert not same(whole, warm_model())
    # As the parameter says, which is AdamW's; Muon's is another.
    assert {logs[step, "train"]["train/learning_rate"] for step in (1, 2, 3, 4)} == {SETTINGS.learning_rate}
    with pytest.raises(Killed):
        train(tools, tmp_path / "cut", stop_at=3)
    half = tmp_path / "cut/checkpoints/checkpoint-3"
    half.mkdir()
    continued, again, tail = train(tools, tmp_path / "cut")
    assert again.resumed_from == 2
    assert not half.exists()
    assert tail == {key: row for key, row in logs.items() if key[0] > 2}
    assert again.history == result.history
    assert same(whole, continued)
    done, last, nothing = train(tools, tmp_path / "cut")
    assert (last.resumed_from, last.steps, last.history) == (4, 4, result.history)
    assert nothing == {}
    assert same(whole, done)
    # Another training does not take this one's weights for its own.
    for other in (
        {"settings": SETTINGS.model_copy(update={"learning_rate": 0.001})},
        {"items": [easy_example(f"z{i}", CHEAP) for i in range(8)]},
    ):
        with pytest.raises(ConfigError, match="checkpoint-4: this checkpoint is of a training with other settings"):
            train(tools, tmp_path / "cut", **other)


def test_dead_infrastructure_stops_a_run_that_goes_on_when_mended(tools: Toolkit, tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(
        update={"steps": WINDOW + 2, "group_size": 2, "save_steps": WINDOW, "eval_every": 100}
    )
    verifier = easy_example().verifier
    dead = examples(verifier=verifier.model_copy(update={"kind": "judge", "answer": "x"}))
    with pytest.raises(TrainingError, match="infrastructure: 100% of episodes failed") as caught:
        train(tools, tmp_path, settings, items=dead)
    assert "most frequent: JudgeError: no judge is configured" in str(caught.value)
    assert "it continues" in str(caught.value)
    _, result, _ = train(tools, tmp_path, settings)
    assert (result.resumed_from, result.steps, result.stopped) == (WINDOW, WINDOW + 2, None)
    assert [row["failed"] for row in result.history] == [1.0] * WINDOW + [0.0] * 2


def test_a_short_training_whose_tools_all_fail_is_none_and_is_trained_once_they_work(
    tools: Toolkit, tmp_path: Path
) -> None:
    """Fewer steps than a window: it ended as a success, and from its last checkpoint no attempt would train."""
    dead = examples(verifier=easy_example().verifier.model_copy(update={"kind": "judge", "answer": "x"}))
    settings = SETTINGS.model_copy(update={"save_steps": 4})
    with pytest.raises(TrainingError, match="infrastructure: 100% of episodes failed over 4 steps"):
        train(tools, tmp_path, settings, items=dead)
    _, result, _ = train(tools, tmp_path, settings)
    assert (result.resumed_from, result.steps, result.stopped) == (0, 4, None)
    assert [row["failed"] for row in result.history] == [0.0] * 4


def test_several_optimizer_steps_a_generation_put_the_clip_to_use(tools: Toolkit, tmp_path: Path) -> None:
    """With one step every ratio is 1 and nothing is clipped; the second step on the same episodes is bounded."""
    _, once, first = train(tools, tmp_path / "once")
    assert all(row["train/clip_ratio/region_mean"] == 0 for (_, kind), row in first.items() if kind == "train")
    settings = SETTINGS.model_copy(update={"num_iterations": 2, "learning_rate": 0.05})
    whole, twice, second = train(tools, tmp_path / "twice", settings)
    assert (len(once.history), len(twice.history), twice.steps) == (4, 2, 4)
    clipped = [second[step, "train"]["train/clip_ratio/region_mean"] for step in (1, 2, 3, 4)]
    assert clipped[0] == clipped[2] == 0 and max(clipped[1], clipped[3]) > 0
    with pytest.raises(Killed):
        train(tools, tmp_path / "cut", settings, stop_at=3)
    continued, again, _ = train(tools, tmp_path / "cut", settings)
    assert again.resumed_from == 2 and again.history == twice.history
    assert same(whole, continued)
    assert len(training_rows(examples(), settings)) == 2 * settings.examples_per_step


def test_the_multipliers_of_a_limit_are_state_that_a_killed_run_takes_up_exactly(
    tools: Toolkit, tmp_path: Path
) -> None:
    limited = {"constraint": Constraint(usd={"cheap": 1e-6, "fast": 1.0}, rate=0.01), "scale": "none"}
    settings = SETTINGS.model_copy(update=limited)
    whole, result, logs = train(tools, tmp_path / "whole", settings)
    path = [row["multiplier/cheap"] for row in result.history]
    assert path == sorted(path) and path[0] > 0 and len(set(path)) == 4
    assert [row["multiplier/fast"] for row in result.history] == [0.0] * 4
    assert [logs[step, "train"]["train/multiplier/cheap"] for step in (1, 2, 3, 4)] == path
    assert all(row["reward_limit"] < 0 for row in result.history[1:])
    with pytest.raises(Killed):
        train(tools, tmp_path / "cut", settings, stop_at=3)
    continued, again, _ = train(tools, tmp_path / "cut", settings)
    assert again.resumed_from == 2 and again.history == result.history
    assert same(whole, continued)


def test_examples_are_told_budgets_in_training_where_the_parameters_say_so(tools: Toolkit, tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"budget_share": 1.0, "steps": 2})
    items = [one.model_copy(update={"toolbox": example().toolbox}) for one in examples()]
    limits = Rollout(max_turns=2, max_turn_tokens=24, max_tokens=900)
    seen: list[str] = []

    class Listening(Codec):
        def prompt(self, example: Example) -> list[int]:
            seen.append("" if example.budget_usd is None else f"{example.budget_usd:.4f}")
            return super().prompt(example)

    listening = Listening(codec().tokenizer)
    arguments = (listening, tools, items, settings, limits, PRICE, tmp_path, lambda *_: None, lambda _: {"x": 1.0})
    train_grpo(warm_model(), *arguments)
    assert len(seen) == 4 and all(seen)


def test_another_number_of_processes_than_configured_is_refused_at_the_start(
    tools: Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(TrainingError, match=r"started as 3 processes where grpo.processes is 1"):
        train(tools, tmp_path)


def test_two_examples_with_one_id_are_refused(tools: Toolkit, tmp_path: Path) -> None:
    twins = [easy_example("twin", CHEAP), easy_example("twin", FAST), easy_example("other", CHEAP)]
    with pytest.raises(DataError, match="2 examples have the id 'twin'"):
        train(tools, tmp_path, items=twins)


def test_a_training_in_a_notebook_has_a_loop_around_it_and_may_measure_nothing(tools: Toolkit, tmp_path: Path) -> None:
    """Its folder may be a text."""
    settings = SETTINGS.model_copy(update={"steps": 2, "examples_per_step": 1, "group_size": 2})
    arguments = (tools, examples(), settings, LIMITS, PRICE, str(tmp_path), lambda *_: None, lambda _: None)

    async def cell() -> GrpoResult:
        return train_grpo(warm_model(), codec(), *arguments)

    assert asyncio.run(cell()).steps == 2


@pytest.mark.parametrize("steps", [1, 3, 4, 9])
def test_the_rows_of_a_run_are_one_epoch(steps: int) -> None:
    settings = SETTINGS.model_copy(update={"steps": steps})
    rows = [row["prompt"][0]["example_id"] for row in training_rows(examples(), settings)]
    assert len(rows) == steps * 2
    assert rows == [row["prompt"][0]["example_id"] for row in training_rows(examples(), settings)]
    counts = Counter(rows).values()
    assert max(counts) - min(counts) <= 1
    longer = settings.model_copy(update={"steps": steps + 5})
    # More steps only add to the end: a run that is made longer starts alike.
    assert [row["prompt"][0]["example_id"] for row in training_rows(examples(), longer)][: len(rows)] == rows
    other = settings.model_copy(update={"seed": 1, "steps": 9})
    assert training_rows(examples(), other) != training_rows(examples(), settings.model_copy(update={"steps": 9}))


@pytest.mark.parametrize(("count", "a_step", "copies"), [(10, 8, 0), (10, 4, 0), (7, 7, 0), (3, 4, 40)])
def test_no_round_has_an_example_twice_where_there_are_others(count: int, a_step: int, copies: int) -> None:
    """Its second group would be the first's copy: chances hang on the example's id."""
    some = [easy_example(f"e{i}", CHEAP) for i in range(count)]
    settings = SETTINGS.model_copy(update={"steps": 40, "examples_per_step": a_step})
    rows = [row["prompt"][0]["example_id"] for row in training_rows(some, settings)]
    rounds = [rows[i : i + a_step] for i in range(0, len(rows), a_step)]
    assert sum(len(one) - len(set(one)) for one in rounds) == copies
    counts = Counter(rows).values()
    assert max(counts) - min(counts) <= 1 + (a_step % count > 0)


def test_the_mix_says_which_categories_are_trained_on() -> None:
    sums, topics = examples(), [easy_example(f"t{i}", CHEAP) for i in range(8)]
    both = sums + [e.model_copy(update={"category": Category.TOPIC, "topic": "music"}) for e in topics]
    mix = {Category.TOPIC: 0.75, sums[0].category: 0.25}
    settings = SETTINGS.model_copy(update={"steps": 200, "mix": mix})
    rows = [row["prompt"][0]["example_id"] for row in training_rows(both, settings)]
    assert 0.68 < sum(name.startswith("t") for name in rows) / len(rows) < 0.82
    with pytest.raises(TrainingError, match="no training example is of a category"):
        training_rows(sums, SETTINGS.model_copy(update={"mix": {Category.LOOKUP: 1.0}}))
