"""However a training uses its machine, the gradient of a step is that of one plain pass in float32."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, PreTrainedModel

from orchestra.config.compute import Compute
from orchestra.config.schema import Grpo, Rollout, Sft
from orchestra.tools.toolkit import Toolkit
from orchestra.training import optimizer, sft
from orchestra.training.compute.arguments import released
from orchestra.training.compute.lora import adapted, base_of, merged, restore_adapters
from orchestra.training.grpo import group_trainer, trainer
from orchestra.training.grpo.passes.micro_batches import parts_of
from orchestra.types import Preference
from tests.support.worlds import PRICE, codec, easy_example, tiny_model, toolkit, warm_model

CHEAP = Preference(kind="cheap", words="", outcome=0.5, compute=1, latency=0)
SFT = Sft.model_validate(
    {
        "seed": 0, "epochs": 1, "batch_size": 8, "learning_rate": 1.0, "warmup": 0.0, "save_steps": 99,
        "teacher": {"strongest": 0, "stop": 0},
        "optimizer": "adamw",
    }
)  # fmt: skip
GRPO = Grpo(
    seed=0, steps=1, examples_per_step=2, group_size=4, learning_rate=1.0, temperature=1.0, clip_low=0.2,
    clip_high=0.28, kl=0.0, advantage_clip=3.0, min_group_std=0.01, malformed="zero",
    max_infrastructure_failures=0.2, eval_every=9, eval_examples=1, save_steps=99,
    top_entropy_quantile=0.5, entropy=0.01, optimizer="adamw",
)  # fmt: skip
ROWS = [
    {"input_ids": list(range(10, 10 + size)), "labels": [-100] * 4 + list(range(14, 10 + size))}
    for size in (9, 30, 14, 22, 7, 18, 26, 11)
]
LONGEST = 40
"""Tokens of an episode of GRPO, at most."""
Gradient = torch.Tensor


def descend(model: Any, compute: Compute, lr: float) -> torch.optim.Optimizer:
    """Plain descent: what a step changes is the gradient."""
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)


@pytest.fixture(autouse=True)
def descent(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (trainer, sft):
        monkeypatch.setattr(module, "new_optimizer", descend)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    return toolkit(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def plain() -> dict[str, Gradient]:
    """Gradients of plain passes in float32, for all tests of the same rows."""
    return {}


def changed(model: Any, train: Callable[[], Any]) -> Gradient:
    """What a training changed, as one vector."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train()
    return torch.cat([(before[name] - p.detach()).flatten() for name, p in model.named_parameters()])


def sft_gradient(work: Path, model: PreTrainedModel | None = None, **compute: Any) -> Gradient:
    trained = model or tiny_model()
    settings = SFT.model_copy(update=compute)
    log = dict[int, Any]()
    return changed(
        trained, lambda: sft.train_rows(trained, codec(), ROWS, settings, work, lambda m, s: log.update({s: m}))
    )  # fmt: skip


def grpo_gradient(
    tools: Toolkit, work: Path, model: PreTrainedModel | None = None,
    log: Callable[[dict[str, float], int], None] = lambda m, s: None, **compute: Any,
) -> Gradient:  # fmt: skip
    trained = model or warm_model()
    if compute.get("kl") and not trained.config.name_or_path:
        # The term's own model is read from where the trained one is from.
        trained.save_pretrained(str(work.parent / "base"))
        trained = AutoModelForCausalLM.from_pretrained(str(work.parent / "base"))
    settings, limits = GRPO.model_copy(update=compute), Rollout(max_turns=2, max_turn_tokens=24, max_tokens=LONGEST)
    examples = [easy_example(f"e{i}", CHEAP) for i in range(4)]
    return changed(
        trained,
        lambda: trainer.train_grpo(trained, codec(), tools, examples, settings, limits, PRICE, work, log, lambda m: {}),
    )


def away(one: Gradient, other: Gradient) -> float:
    """The difference as a share of the gradient."""
    assert float(other.norm()) > 1e-3
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize(
    ("compute", "most"),
    [
        ({"micro_batch": 2}, 1e-5),
        ({"gradient_checkpointing": True}, 1e-6),
        ({"micro_batch": 4, "gradient_checkpointing": True}, 1e-5),
        ({"precision": "bfloat16"}, 0.03),
    ],
)
def test_sft(compute: dict[str, Any], most: float, plain: dict[str, Gradient], tmp_path: Path) -> None:
    if "sft" not in plain:
        plain["sft"] = sft_gradient(tmp_path / "plain")
    assert away(sft_gradient(tmp_path / "one", **compute), plain["sft"]) < most


APART: dict[str, Any] = {"top_entropy_quantile": 1.0, "entropy": 0.0}
"""No row's gradient depends on another row: each part of a step has a backward pass of its own."""


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Parts of each batch that was split."""
    found: list[int] = []

    def counted(*given: Any, **named: Any) -> list[list[int]]:
        made = parts_of(*given, **named)
        found.append(len(made))
        return made

    monkeypatch.setattr(group_trainer, "parts_of", counted)
    return found


@pytest.mark.parametrize("rows", [{}, APART, APART | {"kl": 0.5, "num_iterations": 2, "steps": 2, "save_steps": 98}])
@pytest.mark.parametrize(
    ("compute", "most"),
    [
        ({"shared_prefix": False, "micro_batch": 3}, 1e-4),
        ({"micro_batch": 1}, 1e-4),
        ({"micro_batch": 1, "gradient_checkpointing": True}, 1e-4),
        ({"precision": "bfloat16"}, 0.05),
    ],
)
def test_grpo(
    compute: dict[str, Any], most: float, rows: dict[str, Any], tools: Toolkit, plain: dict[str, Gradient],
    tmp_path: Path, parts: list[int],
) -> None:  # fmt: skip
    if str(rows) not in plain:
        plain[str(rows)] = grpo_gradient(tools, tmp_path / "plain", shared_prefix=False, **rows)
        assert not parts
    assert away(grpo_gradient(tools, tmp_path / "one", **rows, **compute), plain[str(rows)]) < most
    assert all(count > 1 for count in parts) and bool(parts) == ("micro_batch" in compute)


def test_the_measures_of_a_step_are_of_all_its_parts(tools: Toolkit, tmp_path: Path, parts: list[int]) -> None:
    def logged(work: str, **compute: Any) -> dict[str, float]:
        found: dict[str, float] = {}
        grpo_gradient(tools, tmp_path / work, log=lambda m, s: found.update(m), kl=0.5, **APART, **compute)
        return {name: value for name, value in found.items() if "step_time" not in name and "_s" not in name[-2:]}

    plain, one = logged("plain"), logged("one", micro_batch=1)
    assert parts[0] > 1 and plain.keys() == one.keys()
    assert one == pytest.approx(plain, rel=1e-4, abs=1e-6)
    assert plain["train/entropy"] > 0 and plain["train/loss"] != 0


def test_a_reference_model_may_be_wrapped(tools: Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As DeepSpeed wraps it before the training starts; DataParallel is a wrapper that needs no second process."""
    warm_model().save_pretrained(str(tmp_path / "base"))

    def gradient(work: str) -> Gradient:
        model = AutoModelForCausalLM.from_pretrained(str(tmp_path / "base"))
        return grpo_gradient(tools, tmp_path / work, model, kl=0.5, steps=2)

    plain = gradient("plain")
    prepare: Any = Accelerator.prepare_model

    def wrapped(self: Any, model: Any, device_placement: Any = None, evaluation_mode: bool = False) -> Any:
        made = prepare(self, model, device_placement, evaluation_mode)
        return torch.nn.DataParallel(made) if evaluation_mode else made

    monkeypatch.setattr(Accelerator, "prepare_model", wrapped)
    assert away(gradient("wrapped"), plain) == 0


def test_masters_keep_steps_that_bfloat16_would_lose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sft, "new_optimizer", optimizer.new_optimizer)
    model: Any = tiny_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters() if "proj" in name}
    sft_gradient(tmp_path, model, precision="bfloat16", learning_rate=1e-6)
    moved = [p.detach() != before[name] for name, p in model.named_parameters() if name in before]
    assert float(torch.cat([part.flatten() for part in moved]).float().mean()) > 0.9
    lost = [p.detach().bfloat16() != before[name].bfloat16() for name, p in model.named_parameters() if name in before]
    assert float(torch.cat([part.flatten() for part in lost]).float().mean()) < 0.1


def of_adapters(model: Any, lora: Any, whole: Gradient) -> Gradient:
    """What the gradient of all weights makes that of new adapters: of B it is the weight's times A, scaled."""
    parts, at = [], 0
    plain = tiny_model()
    scale = lora.alpha / lora.rank
    gradients = {}
    for name, p in plain.named_parameters():
        gradients[name] = whole[at : at + p.numel()].view(p.shape)
        at += p.numel()
    for name, p in model.named_parameters():
        if "lora_B" in name:
            weight = name.removeprefix("base_model.model.").replace(".lora_B.default", "")
            a = dict(model.named_parameters())[name.replace("lora_B", "lora_A")]
            parts.append((scale * gradients[weight] @ a.detach().T).flatten())
        elif p.requires_grad:
            parts.append(torch.zeros(p.numel()))
        else:
            parts.append(torch.zeros(p.numel()))
    return torch.cat(parts)


def test_adapters_get_the_gradient_that_their_place_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lora = {"rank": 4, "alpha": 8}
    settings = Sft.model_validate(SFT.model_dump() | {"lora": lora})
    assert settings.lora is not None
    model = adapted(tiny_model(), settings.lora, seed=0)
    plain = sft_gradient(tmp_path / "plain", learning_rate=1e-3)
    expected = of_adapters(model, settings.lora, plain)
    found = sft_gradient(tmp_path / "lora", model, learning_rate=1e-3, lora=settings.lora)
    # Both are clipped to the same norm, so that their directions are compared.
    assert float(torch.cosine_similarity(found, expected, dim=0)) > 0.9999


def test_grpo_trains_adapters_alone_and_writes_them_merged(tools: Toolkit, tmp_path: Path) -> None:
    settings = Grpo.model_validate(GRPO.model_dump() | {"lora": {"rank": 4, "alpha": 8}})
    assert settings.lora is not None
    model: Any = adapted(warm_model(), settings.lora, seed=0)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    moved = grpo_gradient(tools, tmp_path, model, lora=settings.lora)
    assert names
    assert all("lora_" in name for name in names)
    assert float(moved.norm()) > 0
    ids = torch.arange(20, 40)[None]
    before = model(ids).logits
    plain = warm_model()(ids).logits
    assert not torch.allclose(before, plain, atol=1e-4)
    whole = released(model, settings)
    assert type(whole) is type(warm_model())
    torch.testing.assert_close(whole(ids).logits, before, atol=1e-4, rtol=1e-4)


def test_adapters_are_restored_from_a_checkpoint_or_to_nothing(tmp_path: Path) -> None:
    settings = Sft.model_validate(SFT.model_dump() | {"lora": {"rank": 4}})
    assert settings.lora is not None
    model: Any = adapted(tiny_model(), settings.lora, seed=0)
    ids = torch.arange(20, 40)[None]
    untrained = base_of(tiny_model())(ids).logits
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.fill_(0.1)
    trained = model(ids).logits
    model.save_pretrained(str(tmp_path))
    restore_adapters(model, tmp_path / "none")
    torch.testing.assert_close(model(ids).logits, untrained)
    restore_adapters(model, tmp_path)
    torch.testing.assert_close(model(ids).logits, trained)
    torch.testing.assert_close(merged(model)(ids).logits, trained, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("gpus", [2, 8])
def test_a_process_takes_one_of_the_gpus_that_it_sees(
    gpus: int, tools: Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert float(sft_gradient(tmp_path / "sft").norm()) > 0
    assert float(grpo_gradient(tools, tmp_path / "grpo").norm()) > 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lora": {}, "optimizer": "muon"}, "set optimizer to adamw"),
        ({"strategy": "zero3", "optimizer": "muon"}, "set optimizer to adamw"),
        ({"lora": {}, "strategy": "zero3"}, "ddp or zero2"),
        ({"processes": 3}, "batch_size 8 is no multiple of processes, 3"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Sft.model_validate(SFT.model_dump() | wrong)
