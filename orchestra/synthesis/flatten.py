"""Examples as flat rows that a data-quality suite can measure: numbers, names, and what is wrong in words."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestra.errors import DataError
from orchestra.jsonl import parse_line
from orchestra.synthesis.verify import replay
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example, ToolKind

Row = dict[str, Any]

COLUMNS = (
    "row",
    "split",
    "id",
    "category",
    "kind",
    "instruction_chars",
    "tools",
    "experts",
    "expert_usd_min",
    "tool_usd_min",
    "latency_s_min",
    "weight_min",
    "weight_max",
    "entities",
    "schema_problem",
    "toolbox_problem",
    "answer_problem",
    "golden_problem",
    "leak",
)


def flatten(
    lines: Mapping[str, Sequence[str]], toolkit: Toolkit, on_progress: Callable[[int], None] | None = None
) -> tuple[list[Row], dict[str, Example]]:
    """Rows of every split's lines in order, and the examples that could be read, by row (`train:17` is line 17).

    Known solutions are replayed on `toolkit`. A line that cannot be read has a `schema_problem` and nothing else.
    """
    rows: list[Row] = []
    examples: dict[str, Example] = {}
    heldout = [parse_line(line, Example) for line in lines.get("heldout", ())]
    kept_apart = {mark for example in heldout if isinstance(example, Example) for mark in _marks(example)}
    with asyncio.Runner() as runner:
        for split, split_lines in lines.items():
            for number, line in enumerate(split_lines, start=1):
                key = f"{split}:{number}"
                example = parse_line(line, Example)
                row: Row = dict.fromkeys(COLUMNS) | {"row": key, "split": split}
                if isinstance(example, str):
                    row["schema_problem"] = example
                else:
                    examples[key] = example
                    row |= _measure(example)
                    row["golden_problem"] = runner.run(_golden_problem(example, toolkit))
                    shared = sorted(_marks(example) & kept_apart) if split != "heldout" else []
                    row["leak"] = f"also held out: {shared[0]}" if shared else None
                rows.append(row)
                if on_progress is not None:
                    on_progress(1)
    return rows, examples


def _marks(example: Example) -> set[str]:
    """What must not be in both splits."""
    return {*example.entities, " ".join(example.instruction.lower().split())}


def _measure(example: Example) -> Row:
    wish, toolbox = example.preference, example.toolbox
    experts = [spec for spec in toolbox if spec.kind is ToolKind.EXPERT]
    weights = [wish.outcome, wish.compute, wish.latency, *wish.tools.values()]
    return {
        "id": example.id,
        "category": example.category.value,
        "kind": example.kind,
        "instruction_chars": len(example.instruction.strip()),
        "tools": len(toolbox),
        "experts": len(experts),
        "expert_usd_min": min((float(spec.call_usd) for spec in experts), default=None),
        "tool_usd_min": min((float(spec.call_usd) for spec in toolbox), default=None),
        "latency_s_min": min((spec.latency_s for spec in toolbox), default=None),
        "weight_min": min(weights),
        "weight_max": max(weights),
        "entities": len(example.entities),
        "toolbox_problem": _toolbox_problem(example),
        "answer_problem": _answer_problem(example),
    }


def _toolbox_problem(example: Example) -> str | None:
    names = [spec.name for spec in example.toolbox]
    if len(set(names)) < len(names):
        return "two tools have one name"
    for call in example.verifier.golden_calls:
        if call.name not in names:
            return f"{call.name} is needed and not offered"
    for name in example.preference.tools:
        if name not in names:
            return f"the preference names {name}, which is not offered"
    if example.category is Category.TOPIC and not any(spec.kind is ToolKind.EXPERT for spec in example.toolbox):
        return "a topic question without an expert"
    return None


def _answer_problem(example: Example) -> str | None:
    verifier = example.verifier
    if verifier.kind == "database":
        return None if verifier.golden_calls else "a database verifier without golden calls"
    if verifier.answer is None or not verifier.answer.strip():
        return "no expected answer"
    if verifier.kind == "numeric":
        try:
            float(verifier.answer)
        except ValueError:
            return f"the expected answer {verifier.answer!r:.40} is no number"
    return None


async def _golden_problem(example: Example, toolkit: Toolkit) -> str | None:
    """Why the known solution fails; topic questions have none, but the experts must know of them."""
    if example.verifier.golden_calls:
        try:
            return await replay(example, toolkit)
        except DataError as error:
            return f"a golden call cannot run: {error.what}"
    simulated = all(
        toolkit.catalogue.is_simulated(spec.tool) for spec in example.toolbox if spec.kind is ToolKind.EXPERT
    )
    if example.category is Category.TOPIC and simulated and toolkit.book.find(example.instruction) is None:
        return "no simulated expert has heard of the question"
    return None
