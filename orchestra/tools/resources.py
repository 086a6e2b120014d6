"""Resources opened once for a catalogue and its domains, and shared by every toolkit over them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.errors import ConfigError
from orchestra.tools.arguments import ArgumentCheck, checker, refusal
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.failure_log import FailureLog
from orchestra.tools.rate_limits import RateLimiter, limiter_of
from orchestra.types import ToolSpec

if TYPE_CHECKING:
    from orchestra.domains.engine import Domain
    from orchestra.tools.mcp.session import Connection


MOST_CHECKS = 512
"""Schemas whose checks are kept, the last that were used. The catalogue and its domains have half as many; callers of
the gateway send any number."""


class Resources:
    """Domains, checks of arguments, providers and connections to MCP servers, each made at its first use; failures."""

    def __init__(self, catalogue: Catalogue, domain_folders: Mapping[str, Path]) -> None:
        self.catalogue, self.domain_folders = catalogue, domain_folders
        self.connections: dict[str, Connection] = {}
        """By the server's name in the catalogue."""
        self.failures = FailureLog()
        self._domains: dict[str, Domain] = {}
        self._checks: OrderedDict[str, ArgumentCheck] = OrderedDict()

    def domain(self, name: str) -> Domain:
        """Loaded once; raises `ConfigError` for a name params.yaml lacks."""
        if name not in self._domains:
            if name not in self.domain_folders:
                fix = f"add it to world.domains (there are: {', '.join(self.domain_folders) or 'none'})"
                raise ConfigError(f"no domain named {name}", where="params.yaml", fix=fix)
            from orchestra.domains.engine import load_domain

            domain = load_domain(self.domain_folders[name])
            if both := sorted(domain.tools.keys() & self.catalogue.entries.keys()):
                what = f"the catalogue and the domain {name} both have a tool {both[0]}"
                raise ConfigError(what, where="the catalogue", fix="rename one of them")
            self._domains[name] = domain
        return self._domains[name]

    def check(self, spec: ToolSpec, arguments: dict[str, Any]) -> None:
        """Arguments against the tool's schema; raises `CallError` with a short message for the model, `ToolError` when
        the schema is none."""
        key = json.dumps(spec.parameters, sort_keys=True)
        self._checks[key] = check = self._checks.pop(key, None) or checker(spec)
        if len(self._checks) > MOST_CHECKS:
            self._checks.popitem(last=False)
        problem = check(arguments)
        if problem is not None:
            raise refusal(spec, problem)

    def provider(self, price: str) -> RateLimiter:
        """The limits and the state of the provider that a price names, which all of its models share."""
        return limiter_of(price, self.catalogue.providers)

    def connection(self, server: str) -> Connection:
        """The connection to an MCP server, which all of its tools share."""
        from orchestra.tools.mcp.session import Connection

        if server not in self.connections:
            self.connections[server] = Connection(server, self.catalogue.mcp_servers[server])
        return self.connections[server]
