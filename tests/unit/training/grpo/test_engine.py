"""Playing through a server, without one: the proof of its weights, importance weights, and turns that are repeated."""

import asyncio
import copy
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributions import Normal, StudentT

from orchestra.config.compute import Lora
from orchestra.config.engine import PlayServer, RolloutServer
from orchestra.config.schema import Grpo
from orchestra.errors import ServiceError, TrainingError
from orchestra.rollout.loop import RolloutOptions
from orchestra.rollout.policies.base import Conversation, Generation
from orchestra.rollout.policies.transformers import TransformersPolicy
from orchestra.serving.engines.policy import TRIES, ServedPolicy
from orchestra.serving.engines.server import _flags
from orchestra.serving.releases.vllm import TOLERANCES
from orchestra.training.compute.lora import adapted
from orchestra.training.distributed import whole_weights
from orchestra.training.grpo import callbacks, rollouts
from orchestra.training.grpo.engine import weights
from orchestra.training.grpo.engine.ahead import Ahead
from orchestra.training.grpo.engine.canary import NOISE, WeightCanary, _scores
from orchestra.training.grpo.engine.sync import RolloutEngine
from orchestra.training.grpo.engine.weights import WholeWeights, untied, write_adapters
from orchestra.training.grpo.passes.batches import weighed
from orchestra.training.grpo.rollouts import sampled_logprobs
from orchestra.training.grpo.trainer import train_grpo
from orchestra.types import Episode, Example, StopReason, Turn
from tasks import grpo
from tests.support.worlds import PRICE, ROOT, codec, example, tiny_model, toolkit, warm_model
from tests.unit.training.grpo.test_trainer import LIMITS, SETTINGS, examples

FINITE = st.floats(-30, 0, allow_nan=False)
FAR = 100 * NOISE["float32"]


def canary(dtype: str = "float32") -> WeightCanary:
    return WeightCanary([[1, 2, 3]], dtype, TOLERANCES[dtype])


def test_the_same_numbers_pass_and_other_numbers_do_not() -> None:
    assert set(canary().check([-1.0, -2.0], [-1.0, -2.0]).values()) == {0.0}
    with pytest.raises(TrainingError, match=r"0\.5 nats apart, 0\.02 allowed"):
        canary().check([-1.0, -2.0], [-1.0, -2.5])


@pytest.mark.parametrize("served", [[-1.0], [-1.0, math.nan], [-1.0, -math.inf]])
def test_a_token_without_a_score_is_no_proof(served: list[float]) -> None:
    with pytest.raises(TrainingError, match="did not score every token"):
        canary().check([-1.0, -2.0], served)


def test_a_server_that_stands_still_is_caught_within_the_tolerance() -> None:
    """The trainer moves less than the tolerance at each step, and the server not at all."""
    proof = canary()
    proof.check([-1.0, -2.0], [-1.0, -2.0])
    with pytest.raises(TrainingError, match="followed 0% of the trainer's last movement"):
        proof.check([-1.0 + FAR, -2.0 - FAR], [-1.0, -2.0])


def test_a_movement_is_proven_when_the_server_follows_it() -> None:
    proof = canary()
    proof.check([-1.0, -2.0], [-1.0, -2.0])
    assert proof.check([-1.0 + FAR, -2.0], [-1.0 + FAR, -2.0])["engine/canary_proven"] == 1.0
    nothing = proof.check([-1.0 + FAR, -2.0], [-1.0 + FAR + NOISE["float32"], -2.0])
    assert nothing["engine/canary_proven"] == 0.0, "a movement that is lost in the noise proves nothing"


TOKENS = 4 * 511
"""As many as four sequences of the canary have that are scored."""


@pytest.mark.parametrize("noise", [Normal(0.0, 0.05), StudentT(5.0, 0.0, 0.05 * math.sqrt(3 / 5))])
def test_right_weights_in_bfloat16_pass_every_sync_of_a_training(noise: Any) -> None:
    """The published noise of two kernels has a standard deviation of 0.05; some tokens are ten of those away."""
    torch.manual_seed(0)
    proof, ours = canary("bfloat16"), torch.full((TOKENS,), -3.0)
    largest = 0.0
    for _ in range(200):
        ours = ours + 0.02 * torch.randn(TOKENS)
        found = proof.check(ours.tolist(), (ours + noise.sample((TOKENS,))).tolist())
        largest = max(largest, found["engine/canary_gap"])
        assert found["engine/canary_rms"] < 0.08
    assert largest > 0.2, "the noise has tails"


@pytest.mark.parametrize("step", [0.01, 0.05, 0.5])
def test_old_weights_in_bfloat16_are_caught_when_the_trainer_has_moved(step: float) -> None:
    torch.manual_seed(0)
    proof, ours = canary("bfloat16"), torch.full((TOKENS,), -3.0)
    old = ours.clone()
    direction = torch.randn(TOKENS)
    with pytest.raises(TrainingError, match="does not have the trainer's weights"):
        for _ in range(1 + math.ceil(0.12 / step)):
            proof.check(ours.tolist(), (old + 0.05 * torch.randn(TOKENS)).tolist())
            ours = ours + step * direction


def test_the_trainers_scores_are_its_log_probabilities() -> None:
    model = tiny_model(3)
    proof = WeightCanary([[5, 6, 7, 8], [9, 10]], "float32", TOLERANCES["float32"])
    model.train()
    found = proof.trainer_scores(model)
    assert model.training and len(found) == 4
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.tensor([[5, 6, 7, 8]])).logits[0].log_softmax(-1)
    assert found[:3] == pytest.approx([float(logits[i, token]) for i, token in enumerate((6, 7, 8))], abs=1e-5)
    with torch.no_grad():
        assert _scores(model, proof.sequences) == pytest.approx(found, abs=1e-5), "in one pass, as on a GPU"


def batch(sampled: list[float], mask: list[int], **more: Any) -> dict[str, Any]:
    return {
        "sampling_per_token_logps": torch.tensor([sampled]), "completion_mask": torch.tensor([mask]),
        "tool_mask": torch.ones(1, len(mask), dtype=torch.long), **more,
    }  # fmt: skip


@given(st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=8))
def test_weights_are_ratios_up_to_the_cap(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = ([pair[i] for pair in pairs] for i in (0, 1))
    ratio, (kl, clipped, count) = weighed(batch(theirs, [1] * len(pairs)), torch.tensor([ours]), 2.0)
    expected = [min(2.0, math.exp(max(-20.0, min(20.0, a - b)))) for a, b in pairs]
    assert ratio[0].tolist() == pytest.approx(expected, rel=1e-4)
    assert kl >= -1e-6 and count == len(pairs)
    assert clipped == sum(math.exp(min(20.0, a - b)) > 2.0 + 1e-5 for a, b in pairs) or any(
        abs(a - b - math.log(2)) < 1e-4 for a, b in pairs
    )


def test_tokens_that_the_server_did_not_sample_weigh_one() -> None:
    given_ = batch([math.nan, -1.0, -1.0], [1, 1, 0])
    ratio, (_, _, count) = weighed(given_, torch.tensor([[-3.0, -1.5, -9.0]]), 2.0)
    assert ratio[0].tolist() == pytest.approx([1.0, math.exp(-0.5), 1.0]) and count == 1


def test_in_the_second_step_of_a_round_weights_are_those_of_the_first() -> None:
    first = torch.tensor([[-1.2]])
    ratio, _ = weighed(batch([-1.0], [1], old_per_token_logps=first), torch.tensor([[-5.0]]), 2.0)
    assert ratio[0, 0].item() == pytest.approx(math.exp(-0.2))


def test_an_episode_without_log_probabilities_is_unknown_and_its_observations_are_not() -> None:
    turns = (
        Turn(ids=(1, 2), text="", logprobs=(-0.5, -0.25), observation_ids=(7,)),
        Turn(ids=(3,), text=""),
    )
    made = Episode(example_id="e1", policy="p", prompt_ids=(1,), turns=turns, stop=StopReason.MALFORMED)
    found = sampled_logprobs(made)
    assert found[:3] == [-0.5, -0.25, 0.0] and math.isnan(found[3]) and len(found) == len(made.completion_ids)


class Failing:
    """Fails so many times, then answers."""

    by_episode, name = True, "failing"

    def __init__(self, failures: int) -> None:
        self.left, self.asked = failures, 0

    async def generate(self, conversations: list[Conversation], max_tokens: list[int]) -> list[Generation]:
        self.asked += 1
        if self.left:
            self.left -= 1
            raise ServiceError("it died", where="server", fix="none")
        return [Generation([1], [-0.5], "stop") for _ in conversations]


@pytest.mark.parametrize("failures", range(TRIES))
def test_a_turn_is_repeated_when_the_server_is_back(failures: int) -> None:
    inner, waited = Failing(failures), list[int]()
    policy = ServedPolicy(inner, lambda: waited.append(1))  # type: ignore[arg-type]
    (found,) = asyncio.run(policy.generate([Conversation(example(), [1])], [4]))
    assert found.ids == [1] and inner.asked == failures + 1 and len(waited) == failures


def test_a_server_that_does_not_come_back_is_an_error() -> None:
    policy = ServedPolicy(Failing(TRIES), lambda: None)  # type: ignore[arg-type]
    with pytest.raises(ServiceError, match="it died"):
        asyncio.run(policy.generate([Conversation(example(), [1])], [4]))


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_written_weights_are_whole_and_not_tied(tmp_path: Path, dtype: str, ours: bool) -> None:
    model, folder = tiny_model(4), tmp_path / "served"
    files = WholeWeights(folder, codec(), dtype, ours=ours)
    files.write(model)
    found = load_file(folder / "model.safetensors")
    assert found.keys() == {*model.state_dict(), "lm_head.weight"}
    for name, weight in model.state_dict().items():
        assert torch.equal(found[name], weight.to(getattr(torch, dtype))), name
    assert torch.equal(found["lm_head.weight"], found["model.embed_tokens.weight"])
    with safe_open(folder / "model.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["tie_word_embeddings"] is False and config["architectures"] == ["Qwen3ForCausalLM"]
    assert model.config.tie_word_embeddings is True, "the trainer's own model stays tied"
    before = found["lm_head.weight"].clone()
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    files.write(model)
    again = load_file(folder / "model.safetensors")
    assert not torch.equal(before, again["lm_head.weight"])
    assert torch.equal(found["lm_head.weight"], again["lm_head.weight"]) == ours, "memory is overwritten in place"
    assert (folder / "model.safetensors").is_symlink() == ours
    assert not list(folder.glob(".*")), "nothing half-written stays"
    files.close()
    assert (folder / "model.safetensors").exists() != ours


@pytest.mark.parametrize("refused", ["room", "memory", "reader"])
def test_what_cannot_lie_in_memory_is_a_file_of_the_folder(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if refused == "room":
        monkeypatch.setattr(weights, "ROOM", 10**9)
    elif refused == "memory":
        monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=OSError("no space left")))
    else:
        monkeypatch.setattr(WholeWeights, "_link", "/proc/self/no-such-file")
    files = WholeWeights(tmp_path, codec(), "float32", ours=True)
    files.write(tiny_model(4))
    assert files._memory is None, "what nobody reads takes no memory"
    files.close()
    assert load_file(tmp_path / "model.safetensors") and not (tmp_path / "model.safetensors").is_symlink()


KILLED = """
import os, signal, sys
from pathlib import Path
from orchestra.training.grpo.engine.weights import WholeWeights
from tests.support.worlds import codec, tiny_model
WholeWeights(Path(sys.argv[1]), codec(), "float32", ours=True).write(tiny_model(4))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("ours", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_killed_training_leaves_no_weights_in_memory(tmp_path: Path, ours: bool) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, timeout=60)
    file = tmp_path / "model.safetensors"
    assert ended.returncode == -signal.SIGKILL and file.is_symlink() and not file.exists()
    files = WholeWeights(tmp_path, codec(), "float32", ours=ours)
    files.write(tiny_model(5))
    assert torch.equal(load_file(file)["lm_head.weight"], untied(tiny_model(5))["lm_head.weight"])
    files.close()


def test_the_server_reserves_room_for_the_adapters_rank_and_takes_prompts_whole_on_a_cpu() -> None:
    on_gpu, on_cpu = PlayServer(device="gpu"), PlayServer(device="cpu")
    assert "--enable-lora" not in _flags(None, on_gpu, 16_384)
    flags = _flags(Lora(rank=24), on_gpu, 16_384)
    assert flags[flags.index("--max-lora-rank") + 1] == "32" and "--no-enable-chunked-prefill" not in flags
    flags = _flags(None, on_cpu, 16_384)
    assert flags[flags.index("--max-num-batched-tokens") + 1] == "16384" and "--no-enable-chunked-prefill" in flags


def test_one_round_is_played_ahead_and_taken_once() -> None:
    asked: list[tuple[list[str], int]] = []

    def play(items: Sequence[Example], seed: int) -> list[list[Episode]]:
        asked.append(([one.id for one in items], seed))
        return [[] for _ in items]

    ahead, first, second = Ahead(play), [example("e1")], [example("e2"), example("e3")]
    try:
        assert ahead.take(first)[0] is None, "nothing was begun"
        ahead.start(second, 7)
        assert ahead.take(second)[0] == [[], []] and ahead.take(second)[0] is None
        ahead.start(first, 8)
        assert ahead.take(second)[0] is None, "another round was played"
    finally:
        ahead.close()
    assert asked == [(["e2", "e3"], 7), (["e1"], 8)]


def test_what_fails_ahead_fails_the_round_that_takes_it() -> None:
    def play(items: Sequence[Example], seed: int) -> list[list[Episode]]:
        raise ServiceError("it died", where="server", fix="none")

    ahead = Ahead(play)
    ahead.start([example("e1")], 0)
    ahead.settle()
    with pytest.raises(ServiceError, match="it died"):
        ahead.take([example("e1")])
    ahead.close()


@pytest.mark.parametrize("change", [{"engine": "in_process"}, {"branch": {"at": "expert"}}])
def test_only_a_server_without_branches_plays_ahead(change: dict[str, Any]) -> None:
    settings = {**SETTINGS.model_dump(), "engine": "vllm", "steps_ahead": 1}
    assert Grpo.model_validate(settings).steps_ahead == 1
    with pytest.raises(ValueError, match="steps_ahead 1 needs engine vllm"):
        Grpo.model_validate({**settings, **change})


def test_a_server_gets_the_trained_adapters_and_not_those_of_the_kl_term(tmp_path: Path) -> None:
    model: Any = adapted(tiny_model(), Lora(rank=2, alpha=4), 0)
    model.add_adapter("ref", model.peft_config["default"])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B.default" in name:
                weight.fill_(0.5)
    write_adapters(model, tmp_path / "adapters")
    assert not (tmp_path / "adapters/ref").exists()
    found = load_file(tmp_path / "adapters/adapter_model.safetensors")
    assert found and all((weight == 0.5).all() for name, weight in found.items() if "lora_B" in name)


class Played:
    """An engine without a server: it plays with a copy of the weights that it was given last."""

    def __init__(self) -> None:
        self.measures: dict[str, float] = {}
        self.playing = 0

    def sync(self, model: Any) -> None:
        assert not self.playing, "weights changed in the middle of an episode"
        self.model = copy.deepcopy(model)

    def policy(self, temperature: float, seed: int) -> TransformersPolicy:
        engine = self

        class Counted(TransformersPolicy):
            def begin(self, conversations: Sequence[Conversation]) -> None:
                engine.playing += 1
                super().begin(conversations)

            def end(self) -> None:
                super().end()
                engine.playing -= 1

        return Counted("", name="grpo", model=self.model, temperature=temperature, seed=seed, eos_id=codec().eos_id)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_development_check_is_played_by_the_engine_with_the_weights_of_its_step(
    tmp_path: Path, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS.model_copy(update={"engine": "vllm", "steps_ahead": ahead})
    engine: Any = Played()
    tools, checked, order = toolkit(tmp_path), list[bool](), list[str]()

    def gather(trainer: Any) -> Any:
        order.append("gather")
        return whole_weights(trainer)

    monkeypatch.setattr(rollouts, "wait_for_all", lambda: order.append("wait"))
    monkeypatch.setattr(callbacks, "wait_for_all", lambda: order.append("wait"))
    monkeypatch.setattr(rollouts, "whole_weights", gather)

    def evaluate(current: Any) -> dict[str, float]:
        order.append("check")
        pairs = zip(current.parameters(), engine.model.parameters(), strict=True)
        checked.append(all(torch.equal(ours, its) for ours, its in pairs) and not engine.playing)
        made = grpo.watch(examples()[:2], None, engine, codec(), tools, RolloutOptions(LIMITS, PRICE))  # type: ignore[arg-type]
        return {"episodes": float(len(made))}

    logs: list[dict[str, float]] = []
    train_grpo(
        warm_model(), codec(), tools, examples(), settings, LIMITS, PRICE, tmp_path,
        lambda metrics, step: logs.append(metrics), evaluate, engine=engine,
    )  # fmt: skip
    assert checked == [True, True]
    assert [row["dev/episodes"] for row in logs if "dev/episodes" in row] == [2.0, 2.0]
    # No rank waits in a collective of its GPU for one that plays.
    rounds = ["wait", "gather"] * 2
    assert order == [*rounds, "wait", "gather", "check", "wait"] * 2


def test_a_training_that_fails_does_not_wait_for_what_is_played_ahead(tmp_path: Path) -> None:
    class Slow(Played):
        def policy(self, temperature: float, seed: int) -> TransformersPolicy:
            if threading.current_thread() is not threading.main_thread():
                waited.append(over.wait(60))
            return super().policy(temperature, seed)

    def log(metrics: dict[str, float], step: int) -> None:
        raise TrainingError("broken", where="grpo", fix="none")

    over, waited, engine = threading.Event(), list[bool](), Slow()
    settings = SETTINGS.model_copy(update={"engine": "vllm", "steps_ahead": 1})
    try:
        with pytest.raises(TrainingError, match="broken"):
            train_grpo(
                warm_model(), codec(), toolkit(tmp_path), examples(), settings, LIMITS, PRICE, tmp_path, log,
                lambda current: None, engine=engine,  # type: ignore[arg-type]
            )  # fmt: skip
        assert not waited, "the next round is still played"
    finally:
        over.set()


@pytest.mark.parametrize(
    ("rank", "local", "url", "owner"),
    [(0, 0, None, 0), (1, 1, None, 0), (2, 0, None, 2), (3, 1, None, 2), (3, 1, "http://other:1", 0)],
)
def test_each_machine_has_its_server_unless_one_is_named(
    rank: int, local: int, url: str | None, owner: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines of two ranks, which share the stage's folder."""
    for name, value in {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    settings = SETTINGS.model_copy(update={"engine": "vllm", "server": RolloutServer(url=url)})
    engine = RolloutEngine(tmp_path, tmp_path / "work", tmp_path, codec(), settings, [[1, 2]], 64, print)
    assert engine.owner == owner
    assert engine.work == (tmp_path / "work" / f"rank-{owner}" if owner else tmp_path / "work")
