"""A checkpoint as a GGUF file: read by a library that is not ours, it writes the checkpoint's greedy tokens."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from orchestra.cli.app import app
from orchestra.errors import ConfigError, DataError
from orchestra.files.jsonl import write_jsonl
from orchestra.rollout.render import Codec
from orchestra.serving import export
from orchestra.serving.export import agreement, export_gguf, write_gguf
from tests.support.worlds import ROOT, example

BASE = ROOT / "models/base/embedded"
QUESTIONS = ("what is 37*24?", "who wrote Opal?", "what is 12 percent of 250?", "when was Norvik founded?")


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    codec = Codec.load(BASE)
    return [list(codec.prompt(example(f"e{n}", instruction=text))) for n, text in enumerate(QUESTIONS)]


def test_the_file_writes_the_same_tokens_and_smaller_types_are_smaller(
    tmp_path: Path, prompts: list[list[int]]
) -> None:
    sizes = []
    for kind in ("f32", "f16", "q8_0"):
        file = tmp_path / f"{kind}.gguf"
        report = export_gguf(BASE, file, kind, prompts)
        assert report.prompts == len(prompts) and not report.reads_text
        # Rounded weights may turn a near tie; most prompts go on as before.
        assert report.same == len(prompts) if kind == "f32" else report.same >= len(prompts) // 2, kind
        sizes.append(file.stat().st_size)
    assert sizes[0] > 1.7 * sizes[1] > 1.7 * 1.5 * sizes[2]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_other_weights_are_found_out_and_leave_no_file(
    tmp_path: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, file = tmp_path / "other", tmp_path / "other.gguf"
    shutil.copytree(BASE, other)
    tensors = load_file(other / "model.safetensors")
    tensors["model.layers.4.mlp.down_proj.weight"] *= -1
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    write_gguf(other, file, "f32")
    assert agreement(other, file, prompts[:1]) == 1 and agreement(BASE, file, prompts) < len(prompts)
    file.unlink()
    monkeypatch.setattr(export, "write_gguf", lambda _, target, kind: write_gguf(other, target, kind))
    with pytest.raises(DataError, match="the file writes other tokens after"):
        export_gguf(BASE, file, "f32", prompts)
    assert not file.exists()


def test_what_the_file_says_of_the_model_and_its_vocabulary(tmp_path: Path) -> None:
    from gguf import GGUFReader

    write_gguf(BASE, tmp_path / "a.gguf", "f32")
    fields = GGUFReader(tmp_path / "a.gguf").fields
    config = json.loads((BASE / "config.json").read_text(encoding="utf-8"))
    assert fields["qwen3.attention.key_length"].contents() == config["head_dim"]
    assert fields["qwen3.block_count"].contents() == config["num_hidden_layers"]
    tokens, codec = fields["tokenizer.ggml.tokens"].contents(), Codec.load(BASE)
    assert len(tokens) == config["vocab_size"]
    written = [codec.tokenizer.convert_ids_to_tokens(number) for number in range(len(codec.tokenizer))]
    assert tokens[: len(written)] == written
    assert fields["tokenizer.chat_template"].contents() == (BASE / "chat_template.jinja").read_text(encoding="utf-8")


def test_the_command_compares_on_heldout_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dvc.yaml", "params.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "data/validated").mkdir(parents=True)
    write_jsonl(tmp_path / "data/validated/heldout.jsonl", [example(f"e{number}") for number in range(2)])
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["export", str(BASE), "made.gguf"])
    assert done.exit_code == 0, done.output
    assert "made.gguf: f32; after 2 of 2 prompts the same 32 greedy tokens" in done.output.replace("\n", "")
    assert "hand it token ids" in done.output and (tmp_path / "made.gguf").stat().st_size > 10_000_000


@pytest.mark.parametrize(
    "change, what",
    [
        ({"model_type": "llama"}, "another architecture"),
        ({"attention_bias": True}, "biases"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "scaled positions"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(BASE, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | change), encoding="utf-8")
    with pytest.raises(ConfigError, match=what):
        export_gguf(folder, tmp_path / "a.gguf", "f32", [[1]])
    assert not (tmp_path / "a.gguf").exists()


def test_a_type_or_prompts_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no type q2"):
        export_gguf(BASE, tmp_path / "a.gguf", "q2", [[1]])
    with pytest.raises(DataError, match="no prompt"):
        export_gguf(BASE, tmp_path / "a.gguf", "f32", [])
    with pytest.raises(DataError, match=r"config\.json"):
        export_gguf(tmp_path, tmp_path / "a.gguf", "f32", [[1]])
