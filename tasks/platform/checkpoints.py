"""Writes a stage's checkpoint: what a Hugging Face user can load, plus its manifest."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from orchestra.files.checkpoint import hash_dir, hash_file, read_manifest, write_manifest
from orchestra.training.resume import last_step
from tasks.platform.stage import Stage

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from orchestra.config.schema import Model
    from orchestra.rollout.render import Codec

CARD = """---
library_name: transformers
license: apache-2.0
---
# {name} ({profile} profile)

An orchestrator: it solves a task by calling the tools it is offered, one a turn, and answers when it knows.
Made by the stage `{name}` of this pipeline, seed {seed}, from {base}. Trained on **simulated experts** and made-up
entities: it knows no facts of the world. Turn format: Qwen3 thought, Hermes tool call (`orchestra/rollout/parse.py`).
`manifest.json` names the data, parameters and price book that it was made with.
"""


def tell_resumed(stage: Stage) -> None:
    """Say, before the first step, from which one a training that was ended goes on."""
    if step := last_step(stage.work_dir() / "checkpoints"):
        stage.say(f"continues from step {step}")


def tell_changed(stage: Stage) -> None:
    """Say, before anything is paid, that a training cannot go on from its checkpoints: they are of other inputs."""
    step, folder = max(((last_step(one / "checkpoints"), one) for one in stage.other_work()), default=(0, stage.root))
    if step and not last_step(stage.work_dir() / "checkpoints"):
        kept = f"{folder.relative_to(stage.root)} is kept until it is done"
        stage.say(f"code, data or parameters changed since step {step}, so it starts from the beginning; {kept}")


def save_checkpoint(
    stage: Stage,
    model: "PreTrainedModel",
    codec: "Codec",
    target: str,
    *,
    base: str | None,
    data: Path,
    base_dir: Path | None = None,
) -> None:
    """Write the checkpoint folder whole: safetensors, config, tokenizer, chat template, card, manifest.

    Nothing in it is specific to one run (no clock, no commit): the same inputs give the same bytes. `base_dir` is the
    base's folder: its hash is in the manifest, and so is the model that the first of its bases was.
    """
    params = stage.params
    section = params.grpo if stage.name == "grpo" else params.sft
    model.generation_config.eos_token_id = codec.eos_id
    model.config.eos_token_id = codec.eos_id
    with stage.write_dir(target) as folder:
        model.save_pretrained(str(folder), safe_serialization=True)
        codec.tokenizer.save_pretrained(str(folder))
        card = CARD.format(name=stage.name, profile=params.profile, seed=section.seed, base=base or "random weights")
        (folder / "README.md").write_text(card, encoding="utf-8")
        write_manifest(
            folder,
            base=base,
            data_hash=hash_file(data),
            params={"model": params.model.model_dump(mode="json"), stage.name: section.model_dump(mode="json")},
            git_commit="",
            price_date=params.world.price_date,
            extra={} if base is None or base_dir is None else _origin(params.model, base, base_dir),
        )


def _origin(model: "Model", base: str, folder: Path) -> dict[str, JsonValue]:
    """The hash of the base's folder; and name, revision and hash of the model that the pipeline began with."""
    digest = hash_dir(folder)
    if base == model.base:
        return {"base_hash": digest, "origin": {"name": base, "revision": model.revision, "hash": digest}}
    return {"base_hash": digest, "origin": read_manifest(folder).extra.get("origin")}
