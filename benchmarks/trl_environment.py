"""Baseline (a): TRL's own multi-turn loop (`environment_factory`), with the same tools, prompts and turn limits."""

from __future__ import annotations

import asyncio
import copy
import inspect
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from orchestra.errors import CallError
from orchestra.rewards.outcome import verify
from orchestra.rollout.render import tool_dict
from orchestra.tools.session import ToolSession
from orchestra.types import Example, ToolCall, ToolSpec

KINDS = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}

TEMPLATE = """
{%- for message in messages %}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content }}
{%- for call in message.tool_calls or [] %}
{%- set body = {'name': call.function.name, 'arguments': call.function.arguments} | tojson %}
{{- '<tool_call>\\n' ~ body ~ '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""The recipe's template with the tool calls TRL insists on; the toolbox comes as a system message (see `messages`)."""


def messages(bench: Bench, example: Example) -> list[dict[str, str]]:
    """The example's prompt as TRL takes it. TRL would render the tools from Python functions, without their prices:
    preference and toolbox are rendered by our template beforehand, so that both loops read the same tokens."""
    tools: list[Any] = [tool_dict(spec) for spec in example.toolbox]
    blank = [{"role": "user", "content": ""}]
    if example.preference.words:
        blank = [{"role": "system", "content": example.preference.words}, *blank]
    text: Any = bench.codec.tokenizer.apply_chat_template(blank, tools=tools, tokenize=False)
    toolbox = text.removeprefix("<|im_start|>system\n").partition("<|im_end|>\n")[0]
    return [{"role": "system", "content": toolbox}, {"role": "user", "content": example.instruction}]


def environment(bench: Bench, example: Example, loop: asyncio.AbstractEventLoop) -> type:
    """A TRL environment class whose methods are the example's tools."""

    class Environment:
        def reset(self, **row: Any) -> None:
            self._session = ToolSession(bench.toolkit, example)

        def get_reward(self) -> float:
            self._session.close()
            return 0.0

        def _verdict(self, answer: str) -> bool:
            return verify(example, answer, self._session).solved

    for spec in example.toolbox:
        setattr(Environment, spec.name, _method(spec, loop))
    return Environment


def _method(spec: ToolSpec, loop: asyncio.AbstractEventLoop) -> Any:
    """One tool as a method with the signature and docstring that TRL makes a schema of."""

    def tool(self: Any, **arguments: Any) -> str:
        try:
            call = self._session.call(ToolCall(name=spec.name, arguments=arguments))
            return str(loop.run_until_complete(call).text)
        except CallError as failure:
            return f"error: {failure}"

    schema: Any = spec.parameters
    kinds = {name: KINDS[part.get("type", "string")] for name, part in schema.get("properties", {}).items()}
    named = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, annotation=k) for n, k in kinds.items()]
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    tool.__name__ = spec.name
    tool.__doc__ = spec.description + "\n\nArgs:\n" + "".join(f"    {name}: {name}\n" for name in kinds)
    tool.__annotations__ = {**kinds, "return": str}
    tool.__signature__ = inspect.Signature([own, *named])  # type: ignore[attr-defined]
    return tool


class TrlLoop:
    """GRPOTrainer's generation and tool loop, called as its training step calls it."""

    def __init__(self, bench: Bench, examples: list[Example], samples: int, temperature: float, work: Path) -> None:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer
        from trl.chat_template_utils import qwen3_template

        loop = asyncio.new_event_loop()
        tokenizer: Any = copy.deepcopy(bench.codec.tokenizer)
        tokenizer.chat_template = TEMPLATE
        tokenizer.response_template = qwen3_template
        self.rows = [{"prompt": messages(bench, e), "environment": e.id} for e in examples for _ in range(samples)]
        limits = bench.params.rollout
        arguments = GRPOConfig(
            output_dir=str(work), max_steps=1, per_device_train_batch_size=len(self.rows), steps_per_generation=1,
            num_generations=samples, max_completion_length=limits.max_tokens, beta=0.0, report_to=[],
            max_tool_calling_iterations=limits.max_turns - 1, temperature=temperature or 1.0, disable_tqdm=True,
            top_k=0, gradient_checkpointing=False, bf16=False, use_cpu=bench.model.device.type == "cpu",
            # TRL bounds whole completions only; without a bound on turns a lost row would take ten times as long.
            generation_kwargs={"max_new_tokens": limits.max_turn_tokens, "do_sample": temperature > 0},
        )  # fmt: skip
        self.trainer = GRPOTrainer(
            model=copy.deepcopy(bench.model),
            args=arguments,
            reward_funcs=[lambda completions, **kwargs: [0.0] * len(completions)],
            train_dataset=Dataset.from_list(self.rows),
            processing_class=tokenizer,
            environment_factory={e.id: environment(bench, e, loop) for e in examples},
        )
        self.trainer.current_gradient_accumulation_steps = 1

    def __call__(self) -> list[list[int]]:
        """Completion ids (observations within) of every episode."""
        model: Any = self.trainer.model
        model.train()
        batch = self.trainer._generate_and_score_completions([dict(row) for row in self.rows])
        self.tokens = int((batch["completion_mask"] * batch["tool_mask"]).sum())
        masked = zip(batch["completion_ids"].tolist(), batch["completion_mask"].tolist(), strict=True)
        return [[i for i, keep in zip(ids, mask, strict=True) if keep] for ids, mask in masked]
