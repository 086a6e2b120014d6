"""The tools of one world, complete when built: their implementations, their data, and the budget they are under."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from orchestra.accounting.budget import Budget
from orchestra.config.schema import Params, World
from orchestra.errors import ConfigError
from orchestra.tools.base import Tool
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.experts.judging import JudgeEndpoint
from orchestra.tools.experts.metered import PaidChat
from orchestra.tools.experts.simulated import AnswerBook, SimulatedExpert
from orchestra.tools.implementations.base import IMPLEMENTATIONS
from orchestra.tools.replay.cassette import Cassette
from orchestra.tools.replay.tool import TapedTool
from orchestra.tools.resources import Resources
from orchestra.tools.search.corpus import SearchIndex
from orchestra.types import ToolSpec

if TYPE_CHECKING:
    from orchestra.domains.engine import Domain


class Toolkit:
    """The tools of one world: opened once, shared by every episode."""

    def __init__(
        self,
        catalogue: Catalogue,
        domain_folders: Mapping[str, Path],
        data_dir: Path,
        *,
        root: Path = Path(),
        cassette: Cassette | None = None,
        budget: Budget | None = None,
        index: SearchIndex | None = None,
        book: AnswerBook | None = None,
        tools: Mapping[str, Tool] | None = None,
        resources: Resources | None = None,
        judge: JudgeEndpoint | None = None,
    ) -> None:
        """`index` and `book` are read from `data_dir` (corpus.jsonl, answers.jsonl) at their first use by default.

        `root` is what the folders of indexes in the catalogue are relative to. `cassette` records or replays every call
        that is not the same twice. `budget` books and caps every call and the policy's own tokens. `tools` are
        implementations of your own by catalogue name, recorded where their entry's implementation would be. `resources`
        are those of another toolkit over the same catalogue. `judge` is the model behind the verdicts that no rule can
        reach.
        """
        for entry in catalogue.entries.values():
            IMPLEMENTATIONS.find(entry.implementation)  # An unknown one is an error before anything is called.
        self.catalogue: Final = catalogue
        self.domain_folders: Final = domain_folders
        self.data_dir: Final = data_dir
        self.root: Final = root
        self.cassette: Final = cassette
        self.budget: Final = budget
        self.resources: Final = resources or Resources(catalogue, domain_folders)
        self.judge: Final = judge
        self._index, self._book = index, book
        self._own: Final = dict(tools or {})
        self._as_given: dict[str, Tool] = {}
        self._tools = {name: self._taped(name, partial(self._own.__getitem__, name)) for name in self._own}

    @classmethod
    def from_params(
        cls,
        params: Params,
        root: Path,
        data_dir: Path | None = None,
        *,
        budget: Budget | None = None,
        index: SearchIndex | None = None,
        book: AnswerBook | None = None,
        cassette: Cassette | None = None,
    ) -> Self:
        """The tools of a workspace's parameters; raises `ConfigError` when the catalogue, a price or a domain is
        missing."""
        return cls.of(params.world, root, data_dir, budget=budget, index=index, book=book, cassette=cassette)

    @classmethod
    def of(
        cls,
        world: World,
        root: Path,
        data_dir: Path | None = None,
        *,
        budget: Budget | None = None,
        index: SearchIndex | None = None,
        book: AnswerBook | None = None,
        cassette: Cassette | None = None,
    ) -> Self:
        """The same, of one section of the parameters; the cassette that ORCHESTRA_CASSETTE names comes first."""
        catalogue = Catalogue.load(root / world.catalogue, root / world.prices, world.price_date)
        folders = {name: root / "data/domains" / name for name in world.domains}
        for name, folder in folders.items():
            if not folder.is_dir():
                raise ConfigError(f"no domain {name} in {folder}", where="world.domains", fix="use one of data/domains")
        return cls(
            catalogue,
            folders,
            data_dir or root / "data/generated",
            root=root,
            cassette=Cassette.from_environment() or cassette,
            budget=budget,
            index=index,
            book=book,
            judge=None if world.judge is None else cls._judge(world, catalogue),
        )

    def with_data(self, index: SearchIndex | None, book: AnswerBook) -> Self:
        """The same tools, with another corpus (None: the one in `data_dir`) and other answers; all else is shared."""
        return self._again(index=index, book=book)

    def with_tools(self, tools: Mapping[str, Tool]) -> Self:
        """The same tools, these implementations in place of others, by catalogue name; all else is shared.

        They may call the tools that they replace, so the cassette records no call of theirs a second time.
        """
        return self._again(tools)

    def with_budget(self, budget: Budget, cassette: Cassette | None = None) -> Self:
        """The same tools under another budget; what they ask is recorded, unless it is already. All else is shared."""
        return self._again(budget=budget, cassette=self.cassette or cassette)

    def with_cassette(self, cassette: Cassette) -> Self:
        """The same tools; what they ask is replayed from there or recorded, in place of another cassette."""
        return self._again(cassette=cassette)

    def _again(self, as_given: Mapping[str, Tool] | None = None, /, **changes: Any) -> Self:
        same = {
            "root": self.root,
            "cassette": self.cassette,
            "budget": self.budget,
            "index": self._index,
            "book": self._book,
            "tools": self._own,
            "resources": self.resources,
            "judge": self.judge,
        }
        made = type(self)(self.catalogue, self.domain_folders, self.data_dir, **(same | changes))
        made._as_given = {**self._as_given, **(as_given or {})}
        made._tools |= made._as_given
        return made

    @cached_property
    def judge_chat(self) -> PaidChat:
        """The endpoint of the judge, one for all verdicts; raises `ConfigError` where none is configured."""
        if self.judge is None:
            raise ConfigError("no judge is configured", where="world.judge", fix="name a model")
        return self.judge.chat(self.budget, self.cassette)

    @staticmethod
    def _judge(world: World, catalogue: Catalogue) -> JudgeEndpoint:
        assert world.judge is not None and catalogue.book is not None
        price = catalogue.book.at(world.judge.price, date.fromisoformat(world.price_date))
        return JudgeEndpoint.among(world.judge, price, catalogue.providers, catalogue.entries)

    @property
    def index(self) -> SearchIndex:
        """The corpus that `search` reads."""
        if self._index is None:
            self._index = SearchIndex.load(self.data_dir / "corpus.jsonl")
        return self._index

    @property
    def book(self) -> AnswerBook:
        """The answers that simulated experts know."""
        if self._book is None:
            self._book = AnswerBook.load(self.data_dir / "answers.jsonl")
        return self._book

    def domain(self, name: str) -> Domain:
        """Loaded once; raises `ConfigError` for a name params.yaml lacks."""
        return self.resources.domain(name)

    def check(self, spec: ToolSpec, arguments: dict[str, Any]) -> None:
        """Arguments against the tool's schema; raises `CallError` with a short message for the model, `ToolError` when
        the schema is none."""
        self.resources.check(spec, arguments)

    def as_billed(self, spec: ToolSpec) -> ToolSpec:
        """The tool at its list price where a provider bills its calls: no bill follows the price of an example."""
        entry = self.catalogue.entries.get(spec.tool)
        if entry is None or not IMPLEMENTATIONS.find(entry.implementation).billed:
            return spec
        return spec.model_copy(update={"price": self.catalogue.prices[spec.tool]})

    def expert(self, name: str) -> SimulatedExpert:
        """A simulated expert by catalogue name: what it would reply, without a call."""
        entry = self.catalogue.entry(name)
        if entry.simulated is None:
            raise ConfigError(f"{name} is not simulated", where="the catalogue", fix="name a simulated expert")
        return SimulatedExpert(name, entry, self.book, self.catalogue.hard_share)

    def tool(self, name: str) -> Tool:
        """The implementation behind a catalogue entry, made at its first use."""
        if name not in self._tools:
            self._tools[name] = self._taped(name, partial(self._make, name))
        return self._tools[name]

    async def aclose(self) -> None:
        """Close what the tools hold open."""
        for tool in self._tools.values():
            close = getattr(tool, "aclose", None)
            if close is not None:
                await close()

    def _taped(self, name: str, make: Callable[[], Tool]) -> Tool:
        """The tool, its calls recorded and replayed where its entry's implementation may not be the same twice."""
        entry = self.catalogue.entry(name)
        if self.cassette is None or not IMPLEMENTATIONS.find(entry.implementation).taped:
            return make()
        return TapedTool(make, entry, self.cassette)

    def _make(self, name: str) -> Tool:
        entry = self.catalogue.entry(name)
        return IMPLEMENTATIONS.find(entry.implementation).make(name, entry, self)
