"""The implementations that are shipped."""

from orchestra.tools.base import Tool
from orchestra.tools.calculator import Calculator
from orchestra.tools.catalogue.entry import Entry
from orchestra.tools.experts.simulated import SimulatedExpert
from orchestra.tools.implementations.base import ToolSources, implementation
from orchestra.tools.search.corpus import SearchTool


@implementation("calculator", taped=False)
def calculator(name: str, entry: Entry, sources: ToolSources) -> Tool:
    return Calculator()


@implementation("search", taped=False)
def search(name: str, entry: Entry, sources: ToolSources) -> Tool:
    """Over the pipeline's own corpus, or the built index that the entry names."""
    if entry.index is None:
        return SearchTool(sources.index)
    from orchestra.tools.search.index.local import By
    from orchestra.tools.search.index.tool import IndexSearch

    return IndexSearch(sources.root / entry.index, count=entry.results, by=By(entry.by))


@implementation("web_search", billed=True)
def web_search(name: str, entry: Entry, sources: ToolSources) -> Tool:
    from orchestra.tools.search.web import WebSearch

    return WebSearch.of(name, entry, sources.resources.provider(entry.price))


@implementation("python")
def python(name: str, entry: Entry, sources: ToolSources) -> Tool:
    from orchestra.tools.sandbox.tool import Sandbox

    return Sandbox()


@implementation("simulated", taped=False)
def simulated(name: str, entry: Entry, sources: ToolSources) -> Tool:
    return SimulatedExpert(name, entry, sources.book, sources.catalogue.hard_share)


@implementation("openai", taped=False, billed=True)
def openai(name: str, entry: Entry, sources: ToolSources) -> Tool:
    from orchestra.tools.experts.endpoint import Endpoint

    return Endpoint(name, entry, provider=sources.resources.provider(entry.price), cassette=sources.cassette)


@implementation("mcp", billed=True)
def mcp(name: str, entry: Entry, sources: ToolSources) -> Tool:
    """A tool of an MCP server; all tools of a server share its connection."""
    from orchestra.tools.mcp.tool import ServerTool

    assert entry.mcp is not None
    return ServerTool(entry.mcp, sources.resources.connection(entry.mcp.server), entry.deadline_s)
