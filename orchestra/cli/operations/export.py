"""`orchestra export`: a checkpoint as one file for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from orchestra.cli.common import can_be_written, workspace

PROMPTS = 8


def export(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A folder, such as models/grpo.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", callback=can_be_written, help="The GGUF file to write.")],
    kind: Annotated[str, typer.Option("--type", help="Of the weights: f32, f16 or q8_0.")] = "f32",
) -> None:
    """Write a checkpoint as a GGUF file, and compare both on held-out prompts by their greedy tokens."""
    from orchestra.files.checkpoint import verify_manifest
    from orchestra.files.examples import read_examples
    from orchestra.rollout.render import Codec
    from orchestra.serving.export import GREEDY_TOKENS, export_gguf

    folder, target, root = Path.cwd() / checkpoint, Path.cwd() / file, workspace()
    verify_manifest(folder)
    codec = Codec.load(folder)
    prompts = [codec.prompt(one) for one in read_examples(root / "data/validated/heldout.jsonl")[:PROMPTS]]
    report = export_gguf(folder, target, kind, prompts)
    print(f"{target}: {kind}; after {report.same} of {report.prompts} prompts the same {GREEDY_TOKENS} greedy tokens")
    if not report.reads_text:
        print("llama.cpp does not split text as this tokenizer does: hand it token ids, not text")
