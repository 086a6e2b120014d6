"""An index as a tool of the catalogue: `implementation: search` with `index: FOLDER`."""

from __future__ import annotations

import asyncio
import threading
from functools import cached_property
from pathlib import Path

from pydantic import JsonValue

from orchestra.tools.base import ToolContext, ToolResult
from orchestra.tools.search.format import Hit, shown
from orchestra.tools.search.index.local import By, LocalIndex
from orchestra.types import Component


class IndexSearch:
    """Searches one index, which is opened at the first call. Its time is the listed one, as `SearchTool`'s is."""

    component = Component.SEARCH

    def __init__(self, folder: Path, *, count: int, by: By) -> None:
        self._folder, self._count, self._by = folder, count, by
        self._opening = threading.Lock()

    @cached_property
    def _index(self) -> LocalIndex:
        return LocalIndex.open(self._folder)

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        """The best passages; raises `DataError` where the index is missing, damaged or stale."""
        # In a thread: embedding takes a model's time, and others' calls go on meanwhile.
        text = await asyncio.to_thread(self._search, str(arguments["query"]))
        return ToolResult(text=text, cost_usd=context.price.per_call, latency_s=context.latency_s)

    async def ready(self) -> str:
        """How much it holds; raises `DataError` where the index is missing, damaged or stale."""
        return await asyncio.to_thread(self._opened)

    def _opened(self) -> str:
        with self._opening:
            return f"{len(self._index)} passages"

    def _search(self, query: str) -> str:
        with self._opening:
            index = self._index
        found = index.search(query, self._count, self._by)
        return shown([Hit(title=each.passage.title, text=each.passage.text) for each in found])
