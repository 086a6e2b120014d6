"""One tool of the catalogue: its fields, and what an entry must hold."""

import json
import re
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Literal, get_args

from pydantic import Field, JsonValue

from orchestra.config.section import RequestSettings
from orchestra.errors import ConfigError
from orchestra.tools.catalogue.schema import schema_problem
from orchestra.tools.mcp.spec import McpServer, McpTool
from orchestra.types import Component, Record, Seconds, ToolKind, Usage

Share = Annotated[float, Field(ge=0, le=1)]
WebProvider = Literal["tavily"]
"""Search APIs; orchestra/tools/search/web.py has a class for each."""
TAKEN: dict[str, str | None] = {"generalist": None, "math": None, "code writer": "code", "query writer": "query"}
"""Roles of real experts, and the argument of another tool that takes what they write; None: it is the answer."""
HELPERS = {"code": "python", "query": "search"}
DECENT = 0.47
"""Skill from which an expert covers a topic."""
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What `ToolSpec.name` takes."""
MASTERED = 0.57
"""Skill from which a specialist's description names a topic without reserve."""


class Simulated(Record):
    """How a stand-in expert behaves."""

    skills: dict[str, Share]
    """Share of answers that are right, by topic."""
    unsure: Share
    """Share of the other answers that say UNSURE; the rest are plausible and wrong."""
    hard_gap: Share = 0.0
    """How much less often it is right on hard questions than on the others."""
    hard_unsure: Share | None = None
    """`unsure` on hard questions: who knows little does not notice it. None: the same."""
    shared: Share = 0.0
    """Share of its wrong answers that are the question's popular one, which every expert may give."""
    failures: Share = 0.0
    """Share of the questions at which its service fails, always the same ones."""

    def chance(self, topic: str, hard_share: float, *, hard: bool) -> float:
        """How often it is right on hard or other questions of a topic; over both, `hard_share` of them hard, its skill.

        The gap is made smaller where a chance would leave [0, 1].
        """
        skill = self.skills.get(topic, 0.0)
        if not 0 < hard_share < 1:
            return skill
        gap = min(self.hard_gap, (1 - skill) / hard_share, skill / (1 - hard_share))
        chance = skill - (1 - hard_share) * gap if hard else skill + hard_share * gap
        return min(1.0, max(0.0, chance))

    def doubt(self, *, hard: bool) -> float:
        """How often it says UNSURE where it is not right."""
        return self.hard_unsure if hard and self.hard_unsure is not None else self.unsure


class Entry(Record):
    """One tool of the catalogue."""

    kind: ToolKind
    role: str
    component: Component
    """Whom its charges are booked on."""
    description: str
    parameters: dict[str, JsonValue]
    """JSON schema of the arguments object."""
    price: str
    """`provider/model` in the price book."""
    latency_s: Seconds
    usage: Usage = Usage()
    """Expected tokens of one call."""
    implementation: str
    """A name of orchestra/tools/implementations; a toolkit refuses others."""
    simulated: Simulated | None = None
    base_url_env: str | None = None
    """Environment variable that holds the endpoint's address (openai; web_search, where it is not the provider's)."""
    api_key_env: str | None = None
    endpoint_model: str | None = None
    """The model's name at the endpoint (openai)."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    """Tokens that one reply may have (openai). None: as many as the endpoint allows, so that no cap can be kept."""
    settings: RequestSettings = Field(default_factory=dict)
    """What else a request says, such as temperature or reasoning_effort; null: not sent (openai)."""
    orchestrator_settings: RequestSettings = Field(default_factory=dict)
    """The same over `settings`, where the model orchestrates as `chat:` and this entry (openai)."""
    hands_to: str | None = None
    """The tool that what it writes is given to: a code writer's interpreter, a query writer's search."""
    fallback: str | None = None
    """The expert that is asked where this one fails; it is charged at its own price, and named in the result."""
    mcp: McpTool | None = None
    """The tool behind it and what was imported (mcp); `orchestra tools import-mcp` writes it."""
    deadline_s: float = Field(default=300, gt=0)
    index: str | None = None
    """Folder of a built index, relative to the workspace (search); None: the pipeline's own corpus."""
    by: Literal["bm25", "dense", "hybrid"] = "bm25"
    """How the index is searched."""
    provider: WebProvider | None = None
    """The API to ask (web_search)."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Sent with every request, in the provider's own words (web_search)."""
    results: int = Field(default=3, ge=1, le=20)
    """How many passages or pages a search gives at most."""
    source: str
    """Where the figures come from; "assumed" where nothing is published."""
    retires: date | None = None
    """The day from which its provider serves it no more; None: none is announced."""

    @property
    def vendor(self) -> str:
        """Who is paid: the first part of its price."""
        return self.price.partition("/")[0]

    @property
    def fingerprint(self) -> str:
        """What of the entry decides its replies, for cassettes: not what is only read by policies and people."""
        return json.dumps(self.model_dump(mode="json", exclude=UNHEARD), sort_keys=True)


UNHEARD = {
    "description", "parameters", "price", "latency_s", "usage", "source", "fallback", "hands_to", "retires",
    "orchestrator_settings",
}  # fmt: skip
"""Fields that the tool itself never sees."""


def own_temperature(row: str, tools: Mapping[str, Entry]) -> bool:
    """Whether an entry of this row of the price book says temperature 1, the usual one, or null: its model may refuse
    another, so a judge sends it none."""
    return any(entry.price == row and entry.settings.get("temperature", 0) in (None, 1) for entry in tools.values())


def check_entry(name: str, entry: Entry, topics: list[str], where: str) -> None:
    if entry.implementation == "simulated":
        missing = set(topics) - set(entry.simulated.skills if entry.simulated else ())
        if missing:
            raise ConfigError(f"tools.{name}: no skill for {', '.join(sorted(missing))}", where=where, fix="add it")
    if entry.implementation == "openai" and not (entry.base_url_env and entry.endpoint_model):
        fix = "name the environment variable of its address and the model's name there"
        raise ConfigError(f"tools.{name}: openai needs base_url_env and endpoint_model", where=where, fix=fix)
    if entry.implementation == "web_search" and (entry.provider is None or entry.api_key_env is None):
        fix = f"name the provider ({', '.join(get_args(WebProvider))}) and the environment variable of its key"
        raise ConfigError(f"tools.{name}: web_search needs provider and api_key_env", where=where, fix=fix)


def check_helpers(name: str, tools: dict[str, Entry], where: str) -> None:
    """What a real expert relies on: a known role, a tool that takes what it writes, a fallback that ends."""
    entry = tools[name]
    if entry.implementation == "openai" and entry.role not in TAKEN:
        raise ConfigError(f"tools.{name}: no role {entry.role!r:.40}", where=where, fix=f"one of: {', '.join(TAKEN)}")
    takes = TAKEN.get(entry.role)
    if entry.implementation == "openai" and takes is not None:
        helper = tools.get(entry.hands_to or "")
        if helper is None or takes not in helper.parameters.get("properties", {}):  # type: ignore[operator]
            what = f"tools.{name}: a {entry.role} needs a tool that takes its {takes}"
            raise ConfigError(what, where=where, fix=f"name it in hands_to, such as {HELPERS[takes]}")
    seen, after = [name], entry.fallback
    while after is not None:
        if after not in tools or tools[after].kind is not ToolKind.EXPERT or after in seen:
            what = f"tools.{name}: the fallback {after} is no expert, or one that failed already"
            raise ConfigError(what, where=where, fix="name another expert of the catalogue")
        seen, after = [*seen, after], tools[after].fallback


def check_interface(name: str, entry: Entry, servers: dict[str, McpServer], where: str) -> None:
    """A tool is a function in the sense of the OpenAI tools array, whatever is behind it."""
    if TOOL_NAME.fullmatch(name) is None:
        fix = "use at most 64 letters from a to z, digits, dots, dashes and underscores"
        raise ConfigError(f"tools: {name!r:.80} is no name of a tool", where=where, fix=fix)
    if entry.kind is ToolKind.DOMAIN:
        fix = "write basic or expert; a domain's tools are in its folder in data/domains"
        raise ConfigError(f"tools.{name}: an entry of kind domain is never offered", where=where, fix=fix)
    problem = schema_problem(entry.parameters)
    if problem is not None:
        raise ConfigError(f"tools.{name}.parameters: {problem}", where=where, fix="write a JSON schema of an object")
    if entry.implementation == "mcp" and (entry.mcp is None or entry.mcp.server not in servers):
        fix = "let `orchestra tools import-mcp` write the entry"
        raise ConfigError(f"tools.{name}: mcp needs a tool of one of mcp_servers", where=where, fix=fix)
