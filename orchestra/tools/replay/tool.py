"""A tool whose results are recorded and replayed: for whatever is not the same twice and no chat endpoint."""

from collections.abc import Callable

from pydantic import JsonValue

from orchestra.errors import CallError, ToolError
from orchestra.tools.base import Tool, ToolContext, ToolResult, result_of
from orchestra.tools.catalogue.entry import Entry
from orchestra.tools.failures import Failure
from orchestra.tools.replay.cassette import Cassette


class TapedTool:
    """Made only when something has to be asked, so that a replay needs no key. The price is part of the request: what a
    result cost is replayed, too."""

    keeps_deadline = True  # That of the tool behind it, whose failure is recorded.

    def __init__(self, make: Callable[[], Tool], entry: Entry, cassette: Cassette) -> None:
        self.component, self._make, self._entry, self._cassette = entry.component, make, entry, cassette
        self._tool: Tool | None = None

    async def call(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        """As the tool would; raises what was recorded where it failed."""
        request = {"arguments": arguments, "price": context.price.model_dump(mode="json")}
        slot = self._cassette.slot(request, self._entry.fingerprint)
        if slot.found is not None and slot.found.failure is not None:
            raise slot.found.failure.error()
        if slot.found is not None:
            return ToolResult.model_validate(slot.found.reply)
        self._tool = self._tool or self._make()
        try:
            result = await result_of(self._tool, arguments, context)
        except (CallError, ToolError) as error:
            slot.keep(Failure.of(error))
            raise
        slot.keep(result)
        return result

    async def ready(self) -> str:
        """How the tool is available; a replay asks for none."""
        if self._cassette.mode == "replay":
            return "replayed"
        self._tool = self._tool or self._make()
        ready = getattr(self._tool, "ready", None)
        return str(await ready()) if ready is not None else ""

    async def aclose(self) -> None:
        """Close what the tool holds open."""
        close = getattr(self._tool, "aclose", None)
        if close is not None:
            await close()
