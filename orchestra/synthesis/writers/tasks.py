"""Examples written by a model: each is proven by execution, or sent back with the reason at most twice, or dropped."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from orchestra.domains.compare import mentions
from orchestra.domains.session import Domain
from orchestra.domains.spec import Name
from orchestra.errors import DataError
from orchestra.synthesis.domain_tasks.evolve import MAX_WORDS
from orchestra.synthesis.domain_tasks.tasks import DomainTask, entity_split, refuted, sides
from orchestra.synthesis.writers.generator import Dropped, Origin
from orchestra.synthesis.writers.prompts import EVOLVE, REPAIR, SHORTER, SYSTEM, TASK, WAYS, Prompt
from orchestra.synthesis.writers.structured import Writer, as_json
from orchestra.types import Example, Record, Split, ToolCall, User

SHOWN_ROWS = 6
"""Entries of each table that a prompt shows, drawn again for each example so that they are about different things."""
Text = Annotated[str, Field(min_length=1, max_length=400)]


class WrittenCall(Record):
    tool: Name
    arguments: dict[Name, str | int | float | bool] = Field(default_factory=dict)


class WrittenTask(Record):
    """One request with its solution, as a model writes it."""

    instruction: Text
    category: Literal["lookup", "change"]
    calls: Annotated[tuple[WrittenCall, ...], Field(min_length=1, max_length=5)]
    communicate: Annotated[tuple[Text, ...], Field(min_length=1, max_length=5)]
    answer: Text
    facts: dict[Text, Text] = Field(default_factory=dict)


@dataclass(frozen=True)
class _Ask:
    """What one request to the model holds beside the domain."""

    values: dict[str, str]
    min_calls: int = 1
    parent: str | None = None


class ModelGenerator:
    """A generator over a model's endpoint; one conversation an example, so that a cap stops between examples."""

    def __init__(self, writer: Writer, seed: int, licence: str) -> None:
        self._writer, self._seed, self._licence = writer, seed, licence

    @property
    def origin(self) -> Origin:
        return Origin("written by a model", self._licence, f"model:{self._writer.chat.chat.model}", self._seed)

    def tasks(
        self, domain: Domain, split: Split, count: int, category: Literal["lookup", "change"] | None = None
    ) -> Iterator[DomainTask | Dropped]:
        """About the domain's tools in turn. Raises `BudgetError` or `ToolError` when the endpoint ends the run."""
        tools = [t for t in domain.tools.values() if category is None or t.writes == (category == "change")]

        def ask(number: int, rng: random.Random) -> _Ask:
            return _Ask({"focus": tools[number % len(tools)].name})

        return self._write(domain, split, count, TASK, ask)

    def evolved(
        self, domain: Domain, split: Split, parents: Sequence[Example], count: int
    ) -> Iterator[DomainTask | Dropped]:
        """From the parents in turn. Raises `DataError` without any, `BudgetError` and `ToolError` as `tasks`."""
        if not parents:
            raise DataError("no examples to evolve", where=f"domain {domain.name}", fix="write examples first")

        def ask(number: int, rng: random.Random) -> _Ask:
            parent = parents[number % len(parents)]
            values = {"parent": _shown(parent), "how": rng.choice(WAYS)}
            return _Ask(values, len(parent.verifier.golden_calls) + 1, parent.id)

        return self._write(domain, split, count, EVOLVE, ask)

    def _write(
        self, domain: Domain, split: Split, count: int, prompt: Prompt, ask: Callable[[int, random.Random], _Ask]
    ) -> Iterator[DomainTask | Dropped]:
        frame, prompts = _Frame(domain, split), tuple(p.sha256 for p in (SYSTEM, prompt, REPAIR, SHORTER))
        tools = as_json([tool.file.model_dump(mode="json", exclude_defaults=True) for tool in domain.tools.values()])
        with asyncio.Runner() as runner:
            try:
                for number in range(count):
                    rng = random.Random(f"{self._seed}:{domain.name}:{split}:{prompt.sha256}:{number}")
                    asked = ask(number, rng)
                    values = {"policy": domain.policy, "tools": tools, "entries": frame.entries(rng), **asked.values}
                    made: list[DomainTask] = []

                    def check(written: WrittenTask, asked: _Ask = asked, made: list[DomainTask] = made) -> None:
                        made.append(frame.task(written, asked, prompts))

                    seed = rng.randrange(2**31)
                    try:
                        runner.run(self._writer.write(WrittenTask, prompt, values, seed=seed, check=check))
                        yield made[0]
                    except DataError as error:
                        yield Dropped.by(f"{domain.name} {split} {number}", error)
            finally:
                runner.run(self._writer.chat.aclose())


class _Frame:
    """What of a domain a split may see, and whether a written task stays within it."""

    def __init__(self, domain: Domain, split: Split) -> None:
        self._domain, self._split = domain, split
        self._sides = sides(domain)
        self._kinds = {
            (call.tool, argument): kind
            for intent in domain.intents
            for kind, slot in intent.about.items()
            for call in intent.calls
            for argument, value in call.arguments.items()
            if value == f"{{{slot}}}"
        }
        session = domain.open()
        try:
            self._contents = session.contents()
        finally:
            session.close()

    def entries(self, rng: random.Random) -> str:
        """Some rows of every table, none that names an entity of the other split."""
        shown = {}
        for table, rows in self._contents.items():
            columns = self._domain.tables[table].columns
            ours = [row for row in rows if all(map(self._ours, columns, row))]
            shown[table] = [
                dict(zip(columns, row, strict=True)) for row in rng.sample(ours, min(SHOWN_ROWS, len(ours)))
            ]
        return as_json(shown)

    def task(self, written: WrittenTask, asked: _Ask, prompts: tuple[str, ...]) -> DomainTask:
        """The written task, proven by execution; raises `DataError` with the reason, for the model to read."""
        calls = tuple(ToolCall(name=call.tool, arguments=dict(call.arguments)) for call in written.calls)
        task = DomainTask(
            instruction=" ".join(written.instruction.split()),
            category=written.category,
            golden_calls=calls,
            communicate=written.communicate,
            answer=written.answer,
            entities=self._entities(calls),
            tools_needed=tuple(dict.fromkeys(call.name for call in calls)),
            user=User(facts=written.facts) if written.facts else None,
            parent=asked.parent,
            prompts=prompts,
        )
        why = self._refused(task, asked.min_calls) or refuted(self._domain, task, MAX_WORDS)
        if why is not None:
            raise DataError(why)
        return task

    def _refused(self, task: DomainTask, min_calls: int) -> str | None:
        if len(task.golden_calls) < min_calls:
            return f"it needs {len(task.golden_calls)} calls; at least {min_calls}"
        unknown = sorted(set(task.tools_needed) - set(self._domain.tools))
        if unknown:
            return f"there is no tool {unknown[0]}"
        if (task.category == "change") != any(self._domain.tools[name].writes for name in task.tools_needed):
            return f"its calls do not make it a {task.category}"
        if all(mentions(task.instruction, text) for text in task.communicate):
            return "the instruction says the answer"
        for word, fact in (task.user.facts if task.user is not None else {}).items():
            if mentions(task.instruction, fact):
                return f"the instruction says the fact {fact}"
            if not any(str(value) == fact for call in task.golden_calls for value in call.arguments.values()):
                return f"no call needs the fact {word}"
        for entity in task.entities:
            if self._side(entity) != self._split:
                return f"it is about {entity.partition('/')[2]}, which is not among the entries shown"
        return None if task.entities else "it is about none of the entries"

    def _entities(self, calls: Sequence[ToolCall]) -> tuple[str, ...]:
        """By the arguments that the domain's intents fill with an entity."""
        found = {
            f"{self._domain.name}/{kind}:{value}"
            for call in calls
            for argument, value in call.arguments.items()
            if (kind := self._kinds.get((call.name, argument))) is not None
        }
        return tuple(sorted(found))

    def _side(self, entity: str) -> Split | None:
        kind = entity.partition(":")[0].partition("/")[2]
        return entity_split(entity) if kind in self._domain.split_by else self._sides.get(entity)

    def _ours(self, column: str, value: object) -> bool:
        kinds = [kind for kind in set(self._kinds.values()) if column == kind or column.startswith(f"{kind}_")]
        return value is None or all(
            self._side(f"{self._domain.name}/{kind}:{value}") in (self._split, None) for kind in kinds
        )


def _shown(parent: Example) -> str:
    verifier = parent.verifier
    calls = [{"tool": call.name, "arguments": call.arguments} for call in verifier.golden_calls]
    return as_json(
        {
            "instruction": parent.instruction,
            "category": parent.category.value,
            "calls": calls,
            "communicate": verifier.communicate,
            "answer": verifier.answer,
        }
    )
