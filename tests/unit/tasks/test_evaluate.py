"""The evaluate stage: several GPUs measure a checkpoint as one does, and the judge is part of what was measured on."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orchestra.config.engine import PlayServer
from orchestra.config.judge import JudgeSettings
from orchestra.config.schema import Rollout
from orchestra.errors import ToolError
from orchestra.evaluation.run import Contender, evaluate
from orchestra.serving.engines import checkpoints
from orchestra.serving.engines.server import Server
from tasks.evaluate import checkpoint, data_hash, in_turn, tell_failures
from tasks.platform.stage import Stage
from tests.support.serving_world import params, workspace
from tests.support.worlds import PRICE, codec, easy_example, example, toolkit, warm_model


@pytest.mark.parametrize("gpus", [2, 8])
def test_a_checkpoint_is_evaluated_on_the_first_of_the_gpus_that_are_seen(
    gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_model().save_pretrained(str(tmp_path / "grpo"))
    codec().tokenizer.save_pretrained(str(tmp_path / "grpo"))
    examples, limits = (
        [easy_example(f"e{i}") for i in range(4)],
        Rollout(max_turns=2, max_turn_tokens=24, max_tokens=200),
    )
    (tmp_path / "world").mkdir()

    def measured(name: str) -> list[list[int]]:
        contender, kit = checkpoint("grpo", tmp_path / "grpo", PRICE), toolkit(tmp_path / "world")
        found = evaluate([contender], examples, kit, limits, file=tmp_path / name)
        return [episode.completion_ids for episode in found["grpo"]]

    alone = measured("alone.jsonl")
    taken: list[torch.device] = []

    def stay(self: PreTrainedModel, device: torch.device) -> PreTrainedModel:
        """This machine has none of them."""
        taken.append(device)
        return self

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(PreTrainedModel, "to", stay)
    assert measured("several.jsonl") == alone and all(alone)
    assert taken == [torch.device("cuda", 0)]


def test_each_checkpoint_has_one_server_and_the_trained_one_still_has_it_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def opened(root: Path, work: Path, folder: Path, settings: PlayServer, **named: Any) -> Server:
        started.append(folder.name)
        return Server(root, "http://127.0.0.1:1", settings)

    monkeypatch.setattr(checkpoints, "open_server", opened)
    servers = checkpoints.CheckpointServers(tmp_path, tmp_path, PlayServer(), max_len=10, say=print)
    names = ("grpo", "sft", "random")

    def contenders(build: checkpoints.Build) -> list[Contender]:
        return [Contender(name, partial(build, name, tmp_path / name), codec(), PRICE) for name in names]

    playing = in_turn(contenders(servers), servers)
    for one in (*playing, playing[-1]):
        one.build()
    assert playing[-1].name == "grpo" and started == ["sft", "random", "grpo"]
    here = in_turn(contenders(checkpoints.in_process), checkpoints.in_process)
    assert tuple(one.name for one in here) == names


def test_the_most_frequent_reason_of_failures_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kit, stage = toolkit(tmp_path), Stage("evaluate", params(), tmp_path)
    tell_failures(stage, kit)
    assert capsys.readouterr().out == ""
    for what in ("no licence", "gone", "no licence"):
        kit.resources.failures.lost(ToolError(what, where="search"))
    tell_failures(stage, kit)
    told = "evaluate: some episodes have no verdict; most frequent reason: ToolError: search: no licence\n"
    assert capsys.readouterr().out == told


def test_the_judge_is_part_of_the_data_hash(tmp_path: Path) -> None:
    """Otherwise a champion that another judge measured would be compared with a candidate of this one."""
    root, shipped = workspace(tmp_path / "w"), params()
    judge = JudgeSettings(model="o3-mini-2025-01-31", price="openai/o3-mini")
    others: list[dict[str, Any]] = [{"model": "gpt-4.1-2025-04-14"}, {"rubric": "hle"}, {"max_output_tokens": 100}]
    judges = [None, judge, *(judge.model_copy(update=other) for other in others)]
    worlds = [shipped.world.model_copy(update={"judge": one}) for one in judges]
    stages = [Stage("promote", shipped.model_copy(update={"world": world}), root) for world in worlds]
    assert len({data_hash(stage, [example("e1", kind="judge")]) for stage in stages}) == len(judges)
