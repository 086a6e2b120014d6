"""What serving tests share: a workspace with data and checkpoints, and a backend over a scripted policy."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from orchestra.config.schema import Params, parse_params
from orchestra.files.checkpoint import hash_dir, keep, write_manifest
from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation, Policy, ScriptedPolicy
from orchestra.serving.backend import Backend
from orchestra.serving.client import AskResponse
from orchestra.serving.demonstration import EXAMPLES
from orchestra.serving.releases.release import ReleaseCandidate
from orchestra.serving.releases.state import Serving
from orchestra.types import ToolCall
from tests.support.worlds import ROOT, codec, example, toolkit

SMOKE = [example("e1"), example("e2", instruction="who wrote Opal?", answer="Tesk"), example("e3")]
"""What a release works through."""
MADE: dict[str, Any] = {
    "cost_usd": 0.0621,
    "latency_s": 96.2,
    "wall_s": 0.4,
    "engine": "vllm",
    "version": "3",
    "simulated": True,
    "stop": "answered",
    "trace_id": "t",
    "tool_calls": [
        {"name": "gpt-5", "arguments": {"question": "who?"}, "observation": "Tesk", "cost_usd": 0.062, "latency_s": 96}
    ],
}
"""What a gateway tells of an answer, beside the answer."""


def params(**deploy: Any) -> Params:
    """The shipped parameters with the mock domain, room for the test tokenizer's long prompts, and any free port."""
    raw = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    raw["world"]["domains"] = ["mock"]
    raw["rollout"] |= {"max_tokens": 2048, "max_turn_tokens": 64, "max_turns": 4}
    raw["deploy"] |= {
        "gateway_port": 0,
        "smoke_examples": 3,
        "start_timeout_s": 120,
        "least_confidence": None,
        **deploy,
    }
    return parse_params(raw)


def reply(**changes: Any) -> AskResponse:
    """What a client has of such an answer."""
    return AskResponse.model_validate({"question": "who wrote Opal?", "answer": "Tesk", **MADE, **changes})


def workspace(root: Path) -> Path:
    """A root with the shipped catalogue, the mock domain, and a little generated data."""
    shutil.copytree(ROOT / "data/catalogue", root / "data/catalogue")
    shutil.copytree(ROOT / "data/domains/mock", root / "data/domains/mock")
    generated = root / "data/generated"
    generated.mkdir(parents=True)
    toolkit(generated)
    return root


def questions(root: Path) -> Path:
    """Held-out questions in that root, as a gateway offers them to newcomers."""
    file = root / EXAMPLES
    file.parent.mkdir(parents=True)
    rows = [
        {"category": "topic", "instruction": "Tell me the year of the Battle of Opal."},
        {"category": "topic", "instruction": "When was the Battle of Opal?"},
        {"category": "lookup", "instruction": "What is on invoice 3?"},
        {"category": "arithmetic", "instruction": "What is 2 + 3?"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return root


def checkpoint(root: Path, seed: int, version: str) -> ReleaseCandidate:
    """A kept random checkpoint: two layers, head dimension 32 (vLLM on a CPU cannot do 16)."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    tokenizer = codec().tokenizer
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=0.125,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    folder = root / f"models/{version}"
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    manifest(folder)
    return ReleaseCandidate(version, keep(folder, root / ".state/models"), hash_dir(folder))


def manifest(folder: Path) -> None:
    write_manifest(folder, base=None, data_hash="none", params={}, git_commit="", price_date="2025-11-15")


def calculate(conversation: Conversation) -> str:
    """Calls the calculator with what follows "what is", then says what it said."""
    if not conversation.turns:
        expression = conversation.example.instruction.removeprefix("what is ").rstrip("?")
        return format_call(ToolCall(name="calculator", arguments={"expression": expression}))
    return format_answer(conversation.turns[-1].observation or "")


def backend(
    folder: Path, decide: Callable[[Conversation], str] = calculate, policy: Policy | None = None, **deploy: Any
) -> Backend:
    """A release in memory whose policy is scripted; its tools are real."""
    wanted = params(**deploy)
    serving = Serving(
        version="7",
        checkpoint="models/none",
        checkpoint_hash="none",
        engine="in_process",
        params=json.loads(wanted.model_dump_json(by_alias=True)),
        fingerprint="f7",
        code="c",
    )
    acting = policy or ScriptedPolicy("scripted", decide, codec().turn)
    return Backend(serving, codec(), toolkit(folder), acting, wanted.rollout, (3, 5))
