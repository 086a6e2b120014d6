"""GRPO's episodes through a real vLLM server: equal to in-process ones after every sync, and proven to be so."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import PreTrainedModel

from orchestra.config.compute import Lora
from orchestra.config.engine import PlayServer, RolloutServer
from orchestra.config.schema import Grpo
from orchestra.errors import TrainingError
from orchestra.evaluation.run import Contender, evaluate
from orchestra.serving.engines.checkpoints import Build, CheckpointServers, in_process
from orchestra.serving.engines.server import OwnServer, Server, open_server
from orchestra.serving.releases import vllm
from orchestra.system.processes import session_members, wait_until
from orchestra.tools.toolkit import Toolkit
from orchestra.training.compute.lora import adapted
from orchestra.training.grpo.engine.sync import RolloutEngine
from orchestra.training.grpo.engine.weights import WholeWeights, untied
from orchestra.training.grpo.order import training_rows
from orchestra.training.grpo.rollouts import Rounds
from orchestra.training.grpo.trainer import GrpoResult, train_grpo
from orchestra.types import Episode
from tests.support.engines import HEAD, MAX_LEN, Compared, engine, servers, workspace
from tests.support.worlds import PRICE, ROOT, codec, same, tiny_model, toolkit, warm_model
from tests.unit.training.grpo.test_trainer import LIMITS, SETTINGS, examples

pytestmark = pytest.mark.skipif(
    vllm.interpreter(ROOT) is None, reason="no .venv-vllm: bash scripts/setup_vllm.sh builds it"
)

WHOLE = SETTINGS.model_copy(
    update={"steps": 6, "engine": "vllm", "server": RolloutServer(device="cpu", dtype="float32", sequences=16)}
)
SYNCS = 9
"""One for each round, and one for each development check (`eval_every` 2)."""
LORA = WHOLE.model_copy(update={"lora": Lora(rank=8, alpha=16), "optimizer": "adamw"})
SWITCHES = {"whole": WHOLE, "lora": LORA}


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    return toolkit(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workspace(tmp_path_factory.mktemp("workspace"))


@dataclass
class Trained:
    """What a training left, and the groups that it scored, in their order."""

    model: PreTrainedModel
    result: GrpoResult
    logs: list[dict[str, float]]
    groups: list[list[Episode]]


def train(tools: Toolkit, work: Path, settings: Grpo, played: RolloutEngine | None) -> Trained:
    model = warm_model(head_dim=HEAD)
    if settings.lora is not None:
        model = adapted(model, settings.lora, settings.seed)
    logs: list[dict[str, float]] = []
    groups: list[list[Episode]] = []
    real = Rounds._rewards

    def rewards(self: Rounds, group: Any, one: Any) -> Any:
        groups.append(list(group))
        return real(self, group, one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rounds, "_rewards", rewards)
        result = train_grpo(
            model, codec(), tools, examples(), settings, LIMITS, PRICE, work,
            lambda metrics, step: logs.append(metrics), lambda current: {}, engine=played,
        )  # fmt: skip
    return Trained(model, result, logs, groups)


@pytest.fixture(scope="module")
def undisturbed(
    tools: Toolkit, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Compared, Trained]]:
    """A training whose server lives on, and its engine; each kind is trained once."""

    @cache
    def trained(kind: str) -> tuple[Compared, Trained]:
        work = tmp_path_factory.mktemp(kind)
        played = engine(root, work, SWITCHES[kind])
        try:
            return played, train(tools, work, SWITCHES[kind], played)
        finally:
            played.close()

    return trained


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["whole", pytest.param("lora", marks=pytest.mark.slow)])
def test_after_every_sync_the_server_plays_as_the_trainer_would(
    kind: str, tools: Toolkit, tmp_path: Path, undisturbed: Callable[[str], tuple[Compared, Trained]]
) -> None:
    played, one = undisturbed(kind)
    model, result, logs = one.model, one.result, one.logs
    assert played.equal == [True] * SYNCS
    assert result.steps == 6 and len(result.history) == 6
    assert all(row["engine/canary_gap"] < 1e-3 for row in result.history)
    parts = [[row[f"engine/{part}_s"] for part in ("write", "load", "canary")] for row in result.history]
    whole = [row["engine/sync_s"] for row in result.history]
    assert all(min(some) > 0 and sum(some) <= of for some, of in zip(parts, whole, strict=True))
    assert any(row["engine/canary_proven"] == 1 for row in result.history[1:]), "the trainer has moved measurably"
    mismatches = [row["engine/mismatch_kl"] for row in result.history if "engine/mismatch_kl" in row]
    assert mismatches and all(abs(kl) < 1e-6 for kl in mismatches)
    assert all(row.get("engine/mismatch_clipped", 0) == 0 for row in result.history)
    assert not same(model, warm_model(head_dim=HEAD)) or kind == "lora"
    assert any(row.get("train/grad_norm", 0) > 0 for row in logs)
    assert sum(row["failed"] for row in result.history) == 0
    # The other engine trains from the same rows with rewards of the same kind; its random numbers are its own.
    plain = train(tools, tmp_path, SWITCHES[kind].model_copy(update={"engine": "in_process"}), None).result
    assert len(plain.history) == 6 and not any(name.startswith("engine/") for name in plain.history[0])
    assert abs(plain.history[0]["reward"] - result.history[0]["reward"]) < 0.5


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["whole", pytest.param("lora", marks=pytest.mark.slow)])
def test_a_server_that_keeps_old_weights_is_caught_at_the_first_sync(
    kind: str, tools: Toolkit, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the server says yes to new weights and keeps those it began with."""
    real = Server.post

    def post(self: Server, path: str, body: dict[str, Any]) -> Any:
        if path == "/collective_rpc":
            return None
        if path == "/v1/load_lora_adapter" and Path(body["lora_path"]).parent.name == "adapters":
            body = {**body, "lora_path": str(first.setdefault("path", _kept(Path(body["lora_path"]), tmp_path)))}
        return real(self, path, body)

    first: dict[str, Path] = {}
    monkeypatch.setattr(Server, "post", post)
    played = engine(root, tmp_path, SWITCHES[kind])
    try:
        with pytest.raises(TrainingError, match="does not have the trainer's weights"):
            train(tools, tmp_path, SWITCHES[kind], played)
    finally:
        played.close()
    # The start is no sync: it read the files that hold the trainer's weights.
    assert len(played.equal) == 1


def _kept(folder: Path, into: Path) -> Path:
    import shutil

    kept = into / "kept"
    return kept if kept.exists() else Path(shutil.copytree(folder, kept))


def _episodes(trained: Trained) -> list[list[tuple[object, ...]]]:
    return [[(e.example_id, e.sample, e.completion_ids, e.cost_usd) for e in group] for group in trained.groups]


def _scored(row: dict[str, float]) -> dict[str, float]:
    """What a round measured, without the seconds and the starts of its server."""
    return {name: value for name, value in row.items() if not name.endswith("_s") and name != "engine/restarts"}


@pytest.mark.timeout(600)
def test_a_server_killed_amid_the_turns_of_a_round_costs_nothing_but_time(
    tools: Toolkit, root: Path, tmp_path: Path, undisturbed: Callable[[str], tuple[Compared, Trained]]
) -> None:
    played = engine(root, tmp_path, WHOLE)
    played.killed_at = 4
    try:
        disturbed = train(tools, tmp_path, WHOLE, played)
        assert isinstance(played.server, OwnServer) and played.server.restarts == 1 and played.cut > 0
        pid, sessions = played.server.pid, played.killed
    finally:
        played.close()
    assert disturbed.result.steps == 6 and disturbed.result.stopped is None
    assert played.equal == [True] * SYNCS
    _, whole = undisturbed("whole")
    assert _episodes(disturbed) == _episodes(whole), "the same episodes, each scored once"
    for ours, theirs in zip(disturbed.result.history, whole.result.history, strict=True):
        assert _scored(ours) == pytest.approx(_scored(theirs), abs=1e-6)
    pairs = zip(disturbed.model.parameters(), whole.model.parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)
    assert pid is not None and not Path(f"/proc/{pid}").exists(), "nothing of it is left over"
    assert [one for one in (*sessions, pid) if session_members(one, "0")] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_that_started_with_half_of_the_new_weights_gets_them_all(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the server is killed amid the write, and started again before its end."""
    model, played, written = warm_model(head_dim=HEAD), engine(root, tmp_path, WHOLE), WholeWeights.write
    mixtures: list[list[float]] = []

    def write(self: WholeWeights, trained: PreTrainedModel) -> None:
        if played.server is not None and not mixtures:
            assert isinstance(played.server, OwnServer) and played.server.pid is not None
            half = len(self._places) // 2
            for place, weight in list(zip(self._places, untied(trained).values(), strict=True))[:half]:
                place.copy_(weight)
            os.kill(played.server.pid, signal.SIGKILL)
            assert wait_until(lambda: played.server is not None and played.server.restarts == 1, 30)
            played.server.wait_for(played.model)
            mixtures.append(played.server.scores(played.model, played.sequences, together=True))
        written(self, trained)

    monkeypatch.setattr(WholeWeights, "write", write)
    try:
        played.sync(model)
        with torch.no_grad():
            for one in model.parameters():
                one.add_(0.05 * torch.randn_like(one))
        played.sync(model)
    finally:
        played.close()
    assert played.equal == [True, True] and played.measures["engine/canary_proven"] == 1
    ours = played.canary.trainer_scores(model)
    assert max(abs(a - b) for a, b in zip(ours, mixtures[0], strict=True)) > 0.02, "it was a mixture"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_next_round_is_played_while_this_one_trains(tools: Toolkit, root: Path, tmp_path: Path) -> None:
    settings = WHOLE.model_copy(update={"steps_ahead": 1})
    played = engine(root, tmp_path, settings)
    played.killed_at = 4
    try:
        trained = train(tools, tmp_path, settings, played)
    finally:
        played.close()
    result, asked = trained.result, [[episode.example_id for episode in group] for group in trained.groups]
    rows = [row["prompt"][0]["example_id"] for row in training_rows(examples(), settings)]
    assert asked == [[name] * settings.group_size for name in rows], "each example once, in its place"
    assert [row["engine/staleness"] for row in result.history] == [0, 1, 1, 1, 1, 1]
    mismatches = [row.get("engine/mismatch_kl", 0.0) for row in result.history]
    assert abs(mismatches[0]) < 1e-6 < max(mismatches), "the weights that played are one round old"
    assert [row["failed"] for row in result.history] == [0.0] * 6


@pytest.fixture
def named(root: Path, tmp_path: Path) -> Iterator[OwnServer]:
    """A server that the training did not start; later tests count servers."""
    own = open_server(root, tmp_path / "named", root / "base", WHOLE.server, max_len=MAX_LEN, lora=None, say=print)
    assert isinstance(own, OwnServer)
    try:
        yield own
    finally:
        own.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_that_is_named_serves_on(tools: Toolkit, root: Path, tmp_path: Path, named: OwnServer) -> None:
    server = WHOLE.server.model_copy(update={"url": named.url})
    settings = WHOLE.model_copy(update={"steps": 2, "server": server})
    played = engine(root, tmp_path, settings)
    try:
        result = train(tools, tmp_path, settings, played).result
    finally:
        played.close()
    assert played.equal == [True] * 3 and result.steps == 2
    assert vllm.healthy(named.url)
    for path in ("/collective_rpc", "/sleep", "/server_info", "/v1/models"):
        assert httpx.post(named.url + path, json={"method": "x"}, trust_env=False).status_code == 401, path


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_checkpoint_is_measured_alike_by_either_engine(tools: Toolkit, root: Path, tmp_path: Path) -> None:
    items, other = examples()[:6], tmp_path / "other"
    tiny_model(1, head_dim=HEAD).save_pretrained(str(other))
    codec().tokenizer.save_pretrained(str(other))
    settings = PlayServer(device="cpu", dtype="float32", sequences=16)

    def measured(build: Build, file: str) -> list[list[tuple[object, ...]]]:
        contenders = [
            Contender(folder.name, partial(build, folder.name, folder), codec(), PRICE)
            for folder in (root / "base", other)
        ]
        found = evaluate(contenders, items, tools, LIMITS, file=tmp_path / file)
        return [[(e.completion_ids, e.stop, e.answer, e.cost_usd) for e in each] for each in found.values()]

    opened = CheckpointServers(root, tmp_path / "work", settings, max_len=LIMITS.max_tokens, say=print)
    with closing(opened):
        served = measured(opened, "served.jsonl")
        assert len(servers()) == 1, "the first checkpoint's server ended before the second's began"
    assert served == measured(in_process, "own.jsonl")
    assert served[0] != served[1], "they are two checkpoints"
    assert servers() == []
