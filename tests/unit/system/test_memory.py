"""The memory forecast: published sizes of Qwen3, what each strategy spares, and the setting that makes a stage fit."""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from trl.kernels.chunked_logprob import TOKEN_CHUNK_SIZE
from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

from orchestra.cli.common import CheckResult
from orchestra.cli.readiness import _memory, examine_profile, refuse, shape_of
from orchestra.config.compute import Lora
from orchestra.config.overrides import effective
from orchestra.config.schema import Params, load_params
from orchestra.errors import ConfigError, DataError
from orchestra.rollout.inference.decoder import MAX_PARAMETERS
from orchestra.serving.releases import vllm
from orchestra.system import machine
from orchestra.system.machine import Gpu, needs, peak, plan_of
from orchestra.system.memory import EXAMPLE, GIB, OWN_DECODER, TILES, ModelShape, TrainingPlan, rollouts, training
from orchestra.training.compute.arguments import training_dtype

ROOT = Path(__file__).parents[3]
EIGHT = ModelShape.load(ROOT / "models/recipes/qwen3-8b")
SMALL = ModelShape.load(ROOT / "models/recipes/qwen3-0.6b")
H100 = Gpu("H100", 80 * GIB, "570.1")


def test_the_shapes_have_the_published_numbers_of_weights() -> None:
    """Qwen3 technical report (arXiv 2505.09388): 8.2 B, 6.95 B of them outside the embeddings; 0.6 B, 0.44 B."""
    assert EIGHT.weights == pytest.approx(8.19e9, rel=0.002)
    assert EIGHT.weights - 2 * EIGHT.embedding == pytest.approx(6.95e9, rel=0.002)
    assert SMALL.weights == pytest.approx(0.596e9, rel=0.002)
    assert SMALL.weights - SMALL.embedding == pytest.approx(0.44e9, rel=0.01)


def test_a_token_of_the_8b_model_takes_144_kib_of_cache() -> None:
    assert rollouts(EIGHT, 1, 1, bfloat16=True).parts["KV cache"] == 144 * 1024


def test_states_of_adamw_are_122_gib_at_8b_and_shared_by_the_ranks() -> None:
    whole = training(EIGHT, TrainingPlan()).parts
    assert (whole["weights"] + whole["optimizer"]) / GIB == pytest.approx(3 * 30.5, rel=0.01)
    shared = training(EIGHT, TrainingPlan(ranks=8, strategy="zero3")).parts
    assert (
        shared["optimizer"] * 8 == pytest.approx(whole["optimizer"]) and shared["weights"] * 8 <= whole["weights"] + 8
    )
    halfway = training(EIGHT, TrainingPlan(ranks=8, strategy="zero2")).parts
    assert halfway["weights"] == whole["weights"] and halfway["optimizer"] == shared["optimizer"]


def test_under_zero_one_backward_pass_leaves_the_whole_gradient_until_it_ends() -> None:
    """DeepSpeed takes a rank's share of a gradient that is ready, and one backward pass has none before its last part
    (`test_micro_batches`). Where each part has a backward pass, as SFT's do, shares are all that is left."""
    # In bfloat16, and the copy in float32 that the ranks share.
    share, head = EIGHT.weights * 4 // 8, EIGHT.embedding * (2 + 4)
    apart = plan_of(grpo_of("qwen3-8b"), "grpo")
    assert training(EIGHT, apart).parts["gradients"] == share + head
    plan = plan_of(grpo_of("qwen3-8b", top_entropy_quantile=0.2), "grpo")
    assert training(EIGHT, plan).parts["gradients"] == share + EIGHT.weights * 2 + head
    assert (
        training(EIGHT, replace(plan, bfloat16=False)).parts["gradients"]
        == share + EIGHT.weights * 4 + EIGHT.embedding * 4
    )
    assert training(EIGHT, replace(plan, accumulates=False)).parts["gradients"] == head
    assert training(EIGHT, plan_of(grpo_of("qwen3-8b"), "sft")).parts["gradients"] == share + head


def test_of_a_short_pass_the_peak_is_after_it_with_every_gradient() -> None:
    """Beside them are what the first layer keeps, or what the optimizer's step needs, whichever is more."""
    short = TrainingPlan(rows=2, tokens=4)
    kept = training(SMALL, short).parts
    assert kept["gradients"] == SMALL.weights * 4 and kept["last of the step"] == 8 * SMALL.saved * 4
    muon = training(SMALL, replace(short, muon=True)).parts
    matrices = SMALL.layers * SMALL.layer
    # Muon has one state of each matrix, AdamW two of every other weight.
    assert muon["optimizer"] == 4 * (matrices + 2 * (SMALL.weights - matrices))
    assert muon["last of the step"] == 4 * 5 * 28 * 2 * 1024 * 3072
    zero = training(SMALL, replace(short, strategy="zero2", ranks=4, gpu=True)).parts
    assert zero["last of the step"] == SMALL.weights * 4 // 4
    assert "last of the step" not in training(SMALL, replace(short, tokens=4096)).parts


def test_rows_that_share_a_beginning_gather_keys_and_values_in_every_layer_that_is_kept() -> None:
    """Keys, values and their gradients of 8 heads, and on the way those of the 16 heads of queries."""
    plan = TrainingPlan(tokens=4096)
    for checkpointing, layers in ((True, 0), (False, 27)):
        made = [
            training(SMALL, replace(plan, checkpointing=checkpointing, keys=keys)).parts["activations"]
            for keys in (0, 1000)
        ]
        assert made[1] - made[0] == 1000 * 2 * 128 * (2 * 8 + 16 + layers * 8) * 4


def test_bfloat16_weights_of_zero_are_there_beside_the_masters() -> None:
    plan = TrainingPlan(ranks=8, strategy="zero3", bfloat16=True)
    gathered = max(2 * EIGHT.layer, EIGHT.embedding) * 2
    assert training(EIGHT, plan).parts["weights"] == pytest.approx(EIGHT.weights * (4 + 2) / 8 + gathered, abs=8)
    assert training(EIGHT, replace(plan, strategy="zero2")).parts["weights"] == EIGHT.weights * 2 + EIGHT.weights // 2


def test_the_logits_of_a_long_row_are_never_there_at_once() -> None:
    short, long = (training(EIGHT, TrainingPlan(tokens=tokens)).parts["logits"] for tokens in (4096, 65_536))
    assert short == long == TILES * TOKEN_CHUNK_SIZE * _CHUNKED_LOGPROB_CHUNK_SIZE * 4


def test_a_gpu_needs_what_one_was_measured_to_need() -> None:
    """Qwen3-0.6B with passes of about 3,400 tokens: `benchmarks.gpu_step` on one H200 peaked at 11.18 GiB.

    By its sizes an optimizer's step that copied the second moments had 11.10 of it, so a pass may need less than told.
    """
    shape = ModelShape(28, 1024, 3072, 16, 8, 128, 151_936, True)
    plan = TrainingPlan(rows=4, tokens=844, accumulates=True, bfloat16=True, checkpointing=True, gpu=True)
    assert training(shape, plan).total / GIB == pytest.approx(11.18, rel=0.03)
    assert training(shape, replace(plan, gpu=False)).total / GIB > 1.2 * 11.18


@pytest.mark.parametrize("change", [{"checkpointing": True}, {"rows": 1}, {"tokens": 512}, {"lora": 16}])
def test_every_saving_lowers_the_peak(change: dict[str, object]) -> None:
    plan = TrainingPlan(rows=8, tokens=4096)
    assert training(SMALL, replace(plan, **change)).total < training(SMALL, plan).total  # type: ignore[arg-type]


def test_the_embedded_model_fits_anywhere() -> None:
    params = load_params(ROOT / "params.yaml")
    shape = shape_of(ROOT, params.model)
    assert shape is not None
    assert all(need.fits and need.helps == "" for need in needs(params, shape, [replace(H100, memory=24 * GIB)]))


def test_the_embedded_profile_runs_on_a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only with every episode at its longest would its step need more than a laptop has."""
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(machine, "host_memory", lambda: 4 * GIB)
    params = load_params(ROOT / "params.yaml")
    refuse(ROOT, params)
    (told,) = [one for one in examine(params) if one.what == "memory forecast" and one.level == "warning"]
    assert "with every episode at its longest, of 4.0 GiB" in told.found and "micro_batch" in told.fix
    monkeypatch.setattr(machine, "host_memory", lambda: GIB // 8)
    with pytest.raises(ConfigError, match="needs"):
        refuse(ROOT, params)


def full(changes: dict[str, object]) -> Params:
    params = load_params(ROOT / "models/recipes/qwen3-8b/params.yaml")
    return params.model_copy(update={"grpo": params.grpo.model_copy(update=changes)})


def test_a_stage_that_cannot_fit_is_refused_with_the_number_and_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: [replace(H100, memory=24 * GIB)])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match=r"needs \d+\.\d GiB .* a process, of 23\.0 GiB") as caught:
        refuse(ROOT, full({"processes": 1, "strategy": "ddp"}))
    assert len(str(caught.value).splitlines()) == 1 and caught.value.fix


def grpo_of(name: str, **changes: object) -> Params:
    params = load_params(ROOT / f"models/recipes/{name}/params.yaml")
    return params.model_copy(update={"grpo": params.grpo.model_copy(update=changes)})


def test_rollouts_in_process_have_the_types_of_the_weights_that_train() -> None:
    """Autocast keeps float32 weights, which the rollouts read without it, and of which their decoder has a copy."""

    def acting(params: Params, shape: ModelShape) -> dict[str, int]:
        return peak(params, "grpo", shape, plan_of(params, "grpo")).parts

    many = acting(grpo_of("qwen3-0.6b", engine="in_process", eval_examples=64), SMALL)
    assert many["KV cache"] == 64 * 6144 * 2 * 28 * 8 * 128 * 4, "a development check plays all of its examples at once"
    assert many["decoder"] == (SMALL.weights - SMALL.norms) * 4
    lora = acting(grpo_of("qwen3-8b-lora", engine="in_process"), EIGHT)
    assert lora["KV cache"] == 64 * 16384 * 144 * 1024 and "decoder" not in lora
    assert OWN_DECODER == MAX_PARAMETERS


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("ddp", EIGHT.weights * 4), ("zero2", EIGHT.weights * 2), ("zero3", EIGHT.weights * 2 // 8)],
)
def test_a_kl_term_has_a_model_of_its_own_unless_adapters_can_be_taken_off(strategy: str, expected: int) -> None:
    def held(name: str, kl: float) -> dict[str, int]:
        return training(EIGHT, plan_of(grpo_of(name, strategy=strategy, kl=kl), "grpo")).parts

    assert held("qwen3-8b", 1e-4)["reference"] == expected
    assert "reference" not in held("qwen3-8b", 0.0) and "reference" not in held("qwen3-8b-lora", 1e-4)


def test_the_disk_holds_three_checkpoints_and_what_is_written_beside_them() -> None:
    full_size = machine.checkpoint_bytes(grpo_of("qwen3-8b"), EIGHT)
    assert full_size == EIGHT.weights * (3 * (12 + 2) + 4 + 2 + 4)
    assert machine.checkpoint_bytes(grpo_of("qwen3-8b", engine="in_process"), EIGHT) == full_size - 2 * EIGHT.weights
    lora = machine.checkpoint_bytes(grpo_of("qwen3-8b-lora"), EIGHT)
    assert 4 * EIGHT.weights < lora < 5 * EIGHT.weights, "adapters are small, and no whole model is served"


def test_only_the_stages_that_run_here_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod without a GPU prepares the data of a training on others."""
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(machine, "host_memory", lambda: 64 * GIB)
    params = load_params(ROOT / "models/recipes/qwen3-8b/params.yaml")
    for until in ("synthesize", "validate"):
        refuse(ROOT, params, until)
    with pytest.raises(ConfigError, match="sft needs"):
        refuse(ROOT, params, "sft")
    small = params.model_copy(update={"sft": params.sft.model_copy(update={"processes": 1, "micro_batch": 1})})
    monkeypatch.setattr(machine, "host_memory", lambda: 300 * GIB)
    refuse(ROOT, small, "sft")
    with pytest.raises(ConfigError, match="grpo needs"):
        refuse(ROOT, small)


def test_a_large_set_of_examples_counts_in_every_process_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(machine, "host_memory", lambda: 64 * GIB)
    embedded = load_params(ROOT / "params.yaml")
    shape = shape_of(ROOT, embedded.model)
    assert shape is not None
    for need in needs(embedded, shape, []):
        assert need.footprint == peak(embedded, need.stage, shape, plan_of(embedded, need.stage)), "few count nothing"
    large = with_examples(embedded, 300_000)
    for need in needs(large, shape, []):
        assert need.footprint.parts["examples"] == 300_000 * EXAMPLE and need.fits
    assert not any(need.fits for need in needs(with_examples(embedded, 2_000_000), shape, []))
    with pytest.raises(ConfigError, match=r"sft needs .*\(examples 70\.6, "):
        refuse(ROOT, with_examples(embedded, 2_000_000))


@pytest.mark.parametrize(
    ("profile", "examples", "memory", "told", "level"),
    [
        ("qwen3-8b", 4000, 128, "8 x model and examples need 122.1 GiB", "ok"),
        ("qwen3-8b", 4000, 96, "8 x model and examples need 122.1 GiB", "error"),
        ("qwen3-8b", 300_000, 256, "8 x model and examples need 206.7 GiB", "ok"),
        ("qwen3-8b-lora", 4000, 64, "1 x model and examples need 15.3 GiB", "ok"),
    ],
)
def test_beside_gpus_they_lie_in_the_machine_s_memory_where_each_process_loads_the_model(
    profile: str, examples: int, memory: int, told: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "host_memory", lambda: memory * GIB)
    params = with_examples(load_params(ROOT / f"models/recipes/{profile}/params.yaml"), examples)
    (found,) = [one for one in _memory(ROOT, params, [H100] * 8) if one.found.startswith(told)]
    assert found.level == level


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("change", [{}, {"strategy": "zero2"}, {"strategy": "zero3"}, {"lora": Lora(rank=8)}])
def test_a_training_loads_weights_of_the_type_that_is_forecast(change: dict[str, object], precision: str) -> None:
    """DeepSpeed casts to bfloat16 before it makes its float32 masters: float32 of 8 ranks would fill a machine."""
    params = load_params(ROOT / "params.yaml")
    settings = params.grpo.model_copy(update={"precision": precision, "processes": 8} | change)
    halved = plan_of(params.model_copy(update={"grpo": settings}), "grpo", gpu=True).bfloat16_weights
    assert training_dtype(settings) is (torch.bfloat16 if halved else torch.float32)
    assert halved is (precision == "bfloat16" and change != {})


def with_examples(params: Params, count: int) -> Params:
    return params.model_copy(update={"synthesize": params.synthesize.model_copy(update={"train_examples": count})})


def test_the_setting_that_helps_makes_it_fit() -> None:
    params = load_params(ROOT / "models/recipes/qwen3-0.6b/params.yaml")
    grpo = params.grpo.model_copy(update={"examples_per_step": 8, "group_size": 8, "processes": 4})
    longer = params.rollout.model_copy(update={"max_tokens": 8192})
    large = params.model_copy(update={"grpo": grpo, "rollout": longer})
    found = {need.stage: need for need in needs(large, SMALL, [replace(H100, memory=256 * GIB)])}
    assert found["grpo"].fits or "--set" in found["grpo"].helps
    assert not list(needs(large, EIGHT, [H100]))[1].fits


def test_the_settings_that_help_can_be_typed_and_hold() -> None:
    """LoRA and ZeRO go with adamw, and the shell parts braces."""
    params = load_params(ROOT / "params.yaml")
    helps = [need.helps for need in needs(params, EIGHT, [replace(H100, memory=40 * GIB)])]
    assert any("lora" in one for one in helps)
    for one in filter(None, helps):
        assert effective(ROOT / "params.yaml", [word for word in shlex.split(one) if word != "--set"])


def test_a_profile_is_examined_without_a_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in (machine, vllm):
        monkeypatch.setattr(module, "gpus", lambda *_: [H100] * 8)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    found = {one.what: one for one in examine(load_params(ROOT / "models/recipes/qwen3-8b/params.yaml"))}
    assert found["GPUs"].found.startswith("8: H100 (80 GiB)") and "driver 570.1" in found["GPUs"].found
    assert "OPENAI_API_KEY" in found["keys"].found and found["keys"].level == "error"
    assert "general-thought.jsonl" in found["data"].found
    assert "gpt-6-1-sol" in found["experts"].found and "describe --all" in found["experts"].fix


def test_a_server_on_the_same_gpu_leaves_less_room() -> None:
    params = load_params(ROOT / "models/recipes/qwen3-8b-lora/params.yaml")
    server = params.grpo.server
    beside = list(needs(params, EIGHT, [H100]))[1]
    assert beside.room == pytest.approx(79 * GIB - server.gpu_memory * 80 * GIB, abs=2)
    for elsewhere in ({"devices": "1"}, {"url": "http://127.0.0.1:9"}):
        moved = params.grpo.model_copy(update={"server": server.model_copy(update=elsewhere)})
        assert list(needs(params.model_copy(update={"grpo": moved}), EIGHT, [H100]))[1].room == 79 * GIB


def examine(params: Params) -> Iterator[CheckResult]:
    return examine_profile(ROOT, params)


def test_a_config_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match="no model's shape"):
        ModelShape.load(tmp_path)


@pytest.mark.parametrize(("name", "memory"), [("qwen3-8b", 80), ("qwen3-8b-lora", 80), ("qwen3-0.6b", 24)])
def test_every_shipped_profile_fits_the_gpus_that_it_names(name: str, memory: int) -> None:
    params = load_params(ROOT / f"models/recipes/{name}/params.yaml")
    shape = shape_of(ROOT, params.model)
    assert shape is not None
    assert [
        need.stage for need in needs(params, shape, [replace(H100, memory=memory * GIB)] * 8) if not need.fits
    ] == []
