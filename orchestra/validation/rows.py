"""Examples as flat rows that a data-quality suite can measure: numbers, names, and what is wrong in words."""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

from orchestra.errors import DataError, JudgeError, ToolError
from orchestra.files.jsonl import parse_line
from orchestra.rewards.answers import normalise_text
from orchestra.text import number
from orchestra.tools.catalogue.schema import schema_problem
from orchestra.tools.recording import is_recorded
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Category, Example, ToolKind, ToolSpec
from orchestra.validation.replay import Copies, replay, unjudged

Row = dict[str, Any]
HELDOUT = "heldout"

TEXTS = ("row", "split", "id", "category", "kind", "domain", "preference", "topic", "request", "source", "generator")
"""`row` is `train:17` for line 17; `request` a hash of what is asked within a split."""
COUNTS = ("instruction_chars", "tools", "experts", "choices", "golden_calls", "entities", "hard")
"""`choices` are the experts of a topic question; `hard` is 1 or 0."""
NUMBERS = (
    "expert_usd_min",
    "expert_usd_max",
    "tool_usd_min",
    "tool_usd_max",
    "latency_s_min",
    "latency_s_max",
    "weight_min",
    "weight_max",
)
PROBLEMS = (
    "schema_problem",
    "reference_problem",
    "toolbox_problem",
    "answer_problem",
    "golden_problem",
    "leak",
    "gate_problem",
)
"""What is wrong, in words; null where nothing is."""
INSTRUCTION_CHARS = (3, 2000)
"""The fewest and the most that an example may have."""
UNHEARD = "no simulated expert has heard of the question"
COLUMNS = (*TEXTS, *COUNTS, *NUMBERS, *PROBLEMS)


def nothing_refused(examples: Sequence[Example]) -> list[str | None]:
    """The gate where there is none."""
    return [None] * len(examples)


@dataclass(frozen=True, repr=False)
class SurveyPart:
    """What a run of lines of one split gave. Without a repr, as `Flattener` is."""

    rows: list[Row]
    marks: set[str]
    """What no other split may have; only of held-out rows."""
    offered: Counter[str] = field(default_factory=Counter)
    """Rows that offer a tool, by its catalogue entry or `domain:<domain>/<tool>`."""
    needed: Counter[str] = field(default_factory=Counter)
    """Rows whose known solution calls it."""

    def count(self, split: str, example: Example) -> None:
        """Add the marks and tools of an example."""
        if split == HELDOUT:
            self.marks.update(marks(example))
        tools = {spec.name: spec.tool for spec in example.toolbox}
        self.offered.update(set(tools.values()))
        self.needed.update({tools[call.name] for call in example.verifier.golden_calls if call.name in tools})


@dataclass(frozen=True, repr=False)
class Flattener:
    """Turns lines into rows; what it holds is only read, so that processes can share it.

    Without a repr: asyncio writes that of what it runs at every start, and this one would be megabytes.
    """

    toolkit: Toolkit
    """Known solutions are replayed on it."""
    gate: Callable[[Sequence[Example]], list[str | None]] = nothing_refused
    """Why each example must not be used (contamination, licence), or None; its words fill the column `gate_problem`."""
    kept_apart: frozenset[str] = frozenset()
    """Marks of the held-out rows: a row of another split that has one leaks."""

    def part(self, split: str, first: int, lines: Iterable[str]) -> SurveyPart:
        """Rows of consecutive lines, the first of them line number `first` of the split's file, from 1.

        A line that cannot be read has a `schema_problem` and nothing else.
        """
        return asyncio.run(self._part(split, first, lines))

    async def _part(self, split: str, first: int, lines: Iterable[str]) -> SurveyPart:
        part = SurveyPart([], set())
        readable: list[tuple[Row, Example]] = []
        with Copies() as copies:
            for number, line in enumerate(lines, start=first):
                row: Row = dict.fromkeys(COLUMNS) | {"row": f"{split}:{number}", "split": split}
                example = parse_line(line, Example)
                if isinstance(example, str):
                    row["schema_problem"] = example
                else:
                    row |= await self._measure(split, example, copies)
                    part.count(split, example)
                    readable.append((row, example))
                part.rows.append(row)
        # Asked of all at once: the gate is many times faster so.
        for (row, _), problem in zip(readable, self.gate([example for _, example in readable]), strict=True):
            row["gate_problem"] = problem
        return part

    async def _measure(self, split: str, example: Example, copies: Copies) -> Row:
        shared = sorted(marks(example) & self.kept_apart) if split != HELDOUT else []
        reference = reference_problem(example, self.toolkit)
        return _measure(split, example) | {
            "answer_problem": answer_problem(example, self.toolkit),
            "reference_problem": reference,
            # What does not exist cannot be called.
            "golden_problem": await golden_problem(example, self.toolkit, copies) if reference is None else None,
            "leak": f"also held out: {shared[0]}" if shared else None,
        }


def _plain(instruction: str) -> str:
    return " ".join(instruction.lower().split())


def marks(example: Example) -> set[str]:
    """What must not be in both splits."""
    return {*example.entities, _plain(example.asked)}


def _measure(split: str, example: Example) -> Row:
    preference, toolbox = example.preference, example.toolbox
    experts = [float(spec.call_usd) for spec in toolbox if spec.kind is ToolKind.EXPERT]
    prices = [float(spec.call_usd) for spec in toolbox]
    seconds = [spec.latency_s for spec in toolbox]
    weights = [preference.outcome, preference.compute, preference.latency, *preference.tools.values()]
    asked = f"{split}\x1f{example.domain}\x1f{_plain(example.asked)}"
    return {
        "id": example.id,
        "category": example.category.value,
        "kind": example.kind,
        "domain": example.domain,
        "preference": preference.kind,
        "topic": example.topic,
        "source": example.provenance.source,
        "generator": example.provenance.generator,
        "request": hashlib.blake2b(asked.encode(), digest_size=8).hexdigest(),
        "instruction_chars": len(example.instruction.strip()),
        "tools": len(toolbox),
        "experts": len(experts),
        "choices": len(experts) if example.category is Category.TOPIC else None,
        "golden_calls": len(example.verifier.golden_calls),
        "entities": len(example.entities),
        "hard": int(example.hard),
        "expert_usd_min": min(experts, default=None),
        "expert_usd_max": max(experts, default=None),
        "tool_usd_min": min(prices, default=None),
        "tool_usd_max": max(prices, default=None),
        "latency_s_min": min(seconds, default=None),
        "latency_s_max": max(seconds, default=None),
        "weight_min": min(weights),
        "weight_max": max(weights),
        "toolbox_problem": toolbox_problem(example),
    }


def reference_problem(example: Example, toolkit: Toolkit) -> str | None:
    """What the example names that does not exist, or does not belong to it."""
    if (example.kind == "domain") != (example.domain is not None):
        return f"kind {example.kind} and domain {example.domain or 'none'} do not go together"
    recorded = is_recorded(example, toolkit.domain_folders)
    if example.domain is not None and example.domain not in toolkit.domain_folders and not recorded:
        return (
            f"the domain {example.domain} is not in world.domains: put its folder into data/domains and name it there"
        )
    return next((problem for spec in example.toolbox if (problem := _strange(spec, example, toolkit))), None)


def _strange(spec: ToolSpec, example: Example, toolkit: Toolkit) -> str | None:
    if spec.kind is not ToolKind.DOMAIN:
        entry = toolkit.catalogue.entries.get(spec.tool)
        known = entry is not None and entry.kind is spec.kind
        return None if known else f"the catalogue has no {spec.kind.value} tool {spec.tool}"
    prefix, _, name = spec.tool.partition("/")
    if example.domain is None or prefix != f"domain:{example.domain}":
        return f"{spec.tool} is not of the domain {example.domain or 'none'}"
    if is_recorded(example, toolkit.domain_folders):
        return None
    return None if name in toolkit.domain(example.domain).tools else f"the domain {example.domain} has no tool {name}"


def length_problem(example: Example) -> str | None:
    """That the instruction is too short or too long."""
    fewest, most = INSTRUCTION_CHARS
    fits = fewest <= len(example.instruction.strip()) <= most
    return None if fits else f"the instruction has fewer than {fewest} or more than {most:,} characters"


def toolbox_problem(example: Example) -> str | None:
    """What of the example's own its toolbox does not offer."""
    names = [spec.name for spec in example.toolbox]
    if len(set(names)) < len(names):
        return f"two tools have one name: {next(name for name in names if names.count(name) > 1)}"
    for call in example.verifier.golden_calls:
        if call.name not in names:
            return f"{call.name} is needed and not offered"
    for name in example.preference.tools:
        if name not in names:
            return f"the preference names {name}, which is not offered"
    for spec in example.toolbox:
        if (problem := _schema_problem(json.dumps(spec.parameters))) is not None:
            return f"{spec.name}: {problem}"
    if example.category is Category.TOPIC and not any(spec.kind is ToolKind.EXPERT for spec in example.toolbox):
        return "a topic question without an expert"
    return None


@lru_cache(maxsize=10_000)
def _schema_problem(schema: str) -> str | None:
    """Of a schema as text, since rows share most of theirs. One that names no type is an object's."""
    return schema_problem({"type": "object", **json.loads(schema)})


def answer_problem(example: Example, toolkit: Toolkit) -> str | None:
    """Why no answer to it can be checked."""
    verifier = example.verifier
    if verifier.kind == "database":
        return None if verifier.golden_calls else "a database verifier without golden calls"
    if (problem := unjudged(example, judge=toolkit.judge is not None)) is not None:
        return problem
    if is_recorded(example, toolkit.domain_folders):
        return None
    if verifier.answer is None or not verifier.answer.strip():
        return "no expected answer"
    if verifier.kind == "numeric":
        expected = number(verifier.answer.strip())
        if expected is None:
            return f"the expected answer {verifier.answer!r:.40} is no number"
        if verifier.tolerance > max(abs(expected), Fraction(1)):
            return f"the tolerance {verifier.tolerance:g} is wider than the expected answer {verifier.answer!r:.40}"
    if verifier.kind == "exact" and not normalise_text(verifier.answer):
        return f"the expected answer {verifier.answer!r:.40} is nothing but punctuation: any would be right"
    return None


def all_simulated(example: Example, toolkit: Toolkit) -> bool:
    """Whether every expert of the toolbox is a simulated one."""
    experts = (spec.tool for spec in example.toolbox if spec.kind is ToolKind.EXPERT)
    return all(map(toolkit.catalogue.is_simulated, experts))


async def golden_problem(example: Example, toolkit: Toolkit, copies: Copies) -> str | None:
    """Why the known solution fails; topic questions have none, but the experts must know of them."""
    if example.verifier.golden_calls:
        try:
            return await replay(example, toolkit, copies)
        except (DataError, JudgeError, ToolError) as error:
            return f"a golden call cannot run: {error.what}"
    if (
        example.category is Category.TOPIC
        and all_simulated(example, toolkit)
        and toolkit.book.find(example.instruction) is None
    ):
        return UNHEARD
    return None
