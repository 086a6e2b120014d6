"""MCP servers and their tools in the catalogue, and the hashes that tell when a server has changed."""

import json
import os
import re
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from orchestra.errors import ConfigError
from orchestra.text import credentials, digest
from orchestra.types import Record

HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""How HTTP lets a header be called."""
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class McpServer(Record):
    """How a server is reached, e.g. `{command: [npx, -y, some-server], env: {TOKEN: "${SOME_TOKEN}"}}`.

    In `env`, `headers` and `url`, `${NAME}` stands for a variable of our environment: no secret is in the catalogue.
    """

    command: tuple[str, ...] = ()
    """A program that speaks MCP over its stdin and stdout, started in the working directory of the command we run."""
    env: dict[str, str] = Field(default_factory=dict)
    """Its environment, besides HOME, PATH and the like; nothing else of ours is passed on."""
    url: str | None = None
    """Or the address of a server that speaks streamable HTTP."""
    headers: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError("a server has either a command or a url")
        if self.env and not self.command:
            raise ValueError("env belongs to a command; a url has headers")
        if self.headers and self.url is None:
            raise ValueError("headers belong to a url; a command has env")
        if any(HEADER.fullmatch(name) is None for name in self.headers):
            raise ValueError("a header's name has other signs than letters, digits and dashes")
        return self

    def filled(self, name: str) -> Self:
        """The same with every `${NAME}` replaced; raises `ConfigError` for a variable that is not set."""

        def fill(text: str) -> str:
            for variable in VARIABLE.findall(text):
                if not os.environ.get(variable):
                    raise ConfigError(f"{variable} is not set", where=f"MCP server {name}", fix=f"export {variable}=…")
            return VARIABLE.sub(lambda match: os.environ[match[1]], text)

        changed: dict[str, Any] = {
            "env": {key: fill(value) for key, value in self.env.items()},
            "headers": {key: fill(value) for key, value in self.headers.items()},
            "url": None if self.url is None else fill(self.url),
        }
        return self.model_copy(update=changed)

    def secrets(self, filled: Self) -> frozenset[str]:
        """What came from variables into `filled`, with the variables' own values, and the passwords of its address."""
        found = set(credentials(filled.url or ""))
        for text in (*self.env.values(), *self.headers.values(), self.url or ""):
            found |= {os.environ.get(variable, "") for variable in VARIABLE.findall(text)}
        for ours, theirs in ((self.env, filled.env), (self.headers, filled.headers)):
            found |= {theirs[key] for key, text in ours.items() if VARIABLE.search(text)}
        return frozenset(filter(None, found))


class McpTool(Record):
    """Which tool of which server stands behind a catalogue entry, and what it was when it was imported."""

    server: str
    tool: str
    """Its name at the server."""
    schema_hash: str
    description_hash: str
    """Of the server's own words: the entry's may be shortened by hand."""


class ToolOffer(Record):
    """A tool as its server offers it now."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments object."""

    @property
    def schema_hash(self) -> str:
        return digest(json.dumps(self.parameters, sort_keys=True, separators=(",", ":")))

    @property
    def description_hash(self) -> str:
        return digest(self.description)

    def change(self, frozen: McpTool) -> str | None:
        """What differs from the import; None where nothing does."""
        if self.schema_hash != frozen.schema_hash:
            return "schema"
        return "description" if self.description_hash != frozen.description_hash else None


def changed(frozen: McpTool, offers: Mapping[str, ToolOffer]) -> str | None:
    """Why a tool of the catalogue is not what its server offers now; None when it is."""
    offer = offers.get(frozen.tool)
    if offer is None:
        return f"the server no longer offers {frozen.tool}"
    change = offer.change(frozen)
    return None if change is None else f"the {change} of {frozen.tool} has changed since it was imported"
