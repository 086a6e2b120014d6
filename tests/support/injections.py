"""The attacks of injections.yaml, and a world of real tools that utter them."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import JsonValue, TypeAdapter

from orchestra.rollout.parse import format_answer
from orchestra.rollout.policies.base import Conversation, Generation
from orchestra.rollout.render import Codec
from orchestra.tools.base import UNSURE, ToolContext, ToolResult
from orchestra.tools.catalogue.entry import Entry
from orchestra.tools.toolkit import Toolkit
from orchestra.types import Component, Example, Price, ToolKind, User
from tests.support.endpoint import Double, answer, serving
from tests.support.scripts import call
from tests.support.worlds import ROOT, catalogue, example, toolkit

Where = Literal[
    "search", "expert", "simulated", "database", "user", "mcp", "sandbox", "sandbox_file", "domain_file", "data_file"
]


@dataclass(frozen=True)
class Injection:
    """One attack."""

    name: str
    where: Where
    """Where it comes in."""
    tries: str
    text: str
    times: int = 1
    """How often the text is repeated."""

    @property
    def said(self) -> str:
        return self.text * self.times


def _read() -> list[Injection]:
    raw = yaml.safe_load((ROOT / "tests/support/injections.yaml").read_text(encoding="utf-8"))
    return TypeAdapter(list[Injection]).validate_python(raw)


INJECTIONS = _read()
TO_POLICY = [one for one in INJECTIONS if one.where not in ("domain_file", "data_file")]
"""Those that a policy reads."""


class Remote:
    """A tool whose text comes from elsewhere as it is."""

    component = Component.SEARCH

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        return ToolResult(text=TO_POLICY[int(str(arguments["query"]))].said)


@dataclass
class Poisoned:
    """Every tool says what the injection of the number it is asked for says."""

    toolkit: Toolkit
    double: Double

    def example(self, number: int) -> Example:
        """An example that offers every tool; its user, where the injection is one, knows the injection."""
        one, box = TO_POLICY[number], self.toolkit.catalogue
        names = ("search", "gpt-5", "gpt-5-mini", "python", "real", "remote")
        specs = [box.spec(name) for name in names]
        specs += [box.domain_spec("mock", tool) for tool in self.toolkit.domain("mock").tools.values()]
        made = example(str(number), toolbox=specs, domain="mock", answer=None, kind="database")
        return made.model_copy(update={"user": User(facts={"reader": one.said})}) if one.where == "user" else made

    def turn(self, number: int) -> str:
        """What a policy says to meet the injection."""
        one = TO_POLICY[number]
        match one.where:
            case "search":
                return call("search", query=f"record{number}")
            case "expert":
                self.double.script = [(200, answer(one.said), 0)]
                return call("real", question="who?")
            case "simulated":
                return call("gpt-5-mini", question=_question(self.toolkit, number))
            case "database":
                return call("get_book", book=100 + number)
            case "mcp":
                return call("remote", query=str(number))
            case "sandbox":
                return call("python", code=f"print({one.said!r})")
            case "sandbox_file":
                return call("python", code=f"import os\nopen({one.said!r}, 'w').close()\nprint(os.listdir()[0])")
            case _:
                return format_answer("which reader?")

    def shown(self, number: int) -> str:
        """The observation that it must become."""
        one = TO_POLICY[number]
        match one.where:
            case "database":
                return f"title: {' '.join(one.said.split())}, reader: none, due: none"
            case "user":
                return f"the reader is {one.said}"
            case "mcp":
                return one.said.replace("\ud800", "\ufffd").replace("\udfff", "\ufffd")
            case "expert" | "sandbox" | "sandbox_file":
                return one.said.strip()
            case _:
                return one.said


def _question(kit: Toolkit, number: int) -> str:
    """The first question about the injection that the simulated expert is sure to answer with it."""
    asked = (f"who wrote book {number} of {k}?" for k in range(30))
    return next(question for question in asked if kit.expert("gpt-5-mini").reply(question) != UNSURE)


@contextmanager
def poisoned(folder: Path) -> Iterator[Poisoned]:
    """The world, below an empty folder, while its endpoint serves."""
    domain = Path(shutil.copytree(ROOT / "data/domains/mock", folder / "mock"))
    (domain / "entries/books.csv").unlink()
    titles = [{"book": 100 + n, "title": one.said} for n, one in enumerate(TO_POLICY) if one.where == "database"]
    write(domain / "entries/books.jsonl", titles)
    with serving([]) as double, pytest.MonkeyPatch.context() as patch:
        patch.setenv("POISONED_URL", double.url)
        plain = toolkit(folder, domain)
        more = replace(catalogue(), **_more(plain))
        kit = Toolkit(more, plain.domain_folders, folder, tools={"remote": Remote()})
        chosen = {where: [(n, o) for n, o in enumerate(TO_POLICY) if o.where == where] for where in ("search",)}
        corpus = [{"id": str(n), "title": f"record{n}", "text": one.said} for n, one in chosen["search"]]
        write(folder / "corpus.jsonl", corpus)
        book = [
            {"question": f"who wrote book {n} of {k}?", "topic": "music", "answer": one.said, "wrong": [one.said]}
            for n, one in enumerate(TO_POLICY)
            if one.where == "simulated"
            for k in range(30)
        ]
        write(folder / "answers.jsonl", book)
        yield Poisoned(kit, double)


def write(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _more(kit: Toolkit) -> dict[str, Any]:
    """Entries and prices with an expert behind an endpoint, `real`, and a tool from elsewhere, `remote`."""
    endpoint = Entry(
        kind=ToolKind.EXPERT,
        role="generalist",
        component=Component.EXPERT,
        description="a real one",
        parameters={"type": "object", "properties": {"question": {"type": "string"}}},
        price="p/m",
        latency_s=1,
        implementation="openai",
        base_url_env="POISONED_URL",
        endpoint_model="m",
        source="test",
    )
    remote = kit.catalogue.entries["search"]
    return {
        "entries": {**kit.catalogue.entries, "real": endpoint, "remote": remote},
        "prices": {**kit.catalogue.prices, "real": Price(), "remote": Price()},
    }


class Parrot:
    """Meets the injection, repeats the observation token by token as its answer, then repeats it as a script would."""

    name = "parrot"

    def __init__(self, world: Poisoned, codec: Codec) -> None:
        self.world, self.codec = world, codec

    def begin(self, conversations: Sequence[Conversation]) -> None:
        """Nothing to prepare."""

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        return [Generation(self._turn(conversation), [], "stop") for conversation in conversations]

    def end(self) -> None:
        """Nothing to free."""

    def _turn(self, conversation: Conversation) -> list[int]:
        turns = conversation.turns
        if not turns:
            return self.codec.turn(self.world.turn(int(conversation.example.id)))
        seen = turns[0].observation or ""
        if len(turns) == 1:
            return [*self.codec.encode_content(seen), self.codec.eos_id]
        return self.codec.turn(format_answer(seen))
