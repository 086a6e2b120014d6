"""Writes tools of an MCP server into the catalogue: what training, evaluation and serving then show is what it said."""

import io
import os
import re
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestra.errors import ConfigError
from orchestra.files import atomic
from orchestra.tools.catalogue.catalogue import Catalogue, catalogue_files
from orchestra.tools.catalogue.entry import Entry
from orchestra.tools.catalogue.schema import schema_problem
from orchestra.tools.mcp.spec import McpServer, ToolOffer
from orchestra.types import Component, ToolKind

LONG = 300
"""Characters of a description from which the import says that every prompt will carry them."""
PLAIN = re.compile(r"(?!(?i:y|n|yes|no|on|off|true|false|null|none|nan|inf)\Z)[A-Za-z][A-Za-z_ .()/-]*")
"""A text that every reader of YAML takes as one without quotes."""
PROVIDER = "mcp"
"""Provider of the price rows that an import adds."""


@dataclass(frozen=True)
class Freezer:
    """Edits a catalogue and its price book; both files change, or none."""

    catalogue_path: Path
    prices_path: Path
    price_date: str

    def freeze(
        self,
        name: str,
        server: McpServer,
        offers: Mapping[str, ToolOffer],
        tools: Collection[str],
        *,
        per_call: Decimal = Decimal(0),
        latency_s: float = 1.0,
        reserved: Collection[str] = (),
    ) -> list[str]:
        """Add or renew the entries of `tools` (empty: those imported already, or else all); a line for each change.

        What was edited by hand stays unless the server changed that very part. `reserved` names are taken elsewhere: a
        domain's tools are offered beside the catalogue's. Raises `ConfigError`, and writes nothing then.
        """
        catalogue = Catalogue.load(self.catalogue_path, self.prices_path, self.price_date)
        ours = {e.mcp.tool: key for key, e in catalogue.entries.items() if e.mcp is not None and e.mcp.server == name}
        document, prices = _read(self.catalogue_path), _read(self.prices_path)
        if document.get("tools") is None:
            document["tools"] = _map({})
        said = [] if catalogue.mcp_servers.get(name) == server else _set_server(document, name, server)
        for tool in tools or ours or offers:
            offer = offers.get(tool)
            if offer is None:
                known = ", ".join(name[:60] for name in list(offers)[:50]) or "none"
                raise ConfigError(f"no tool {tool[:60]}", where=f"MCP server {name}", fix=f"there are: {known}")
            problem = schema_problem(offer.parameters)
            if problem is not None:
                raise ConfigError(
                    f"{tool[:60]}: {problem}", where=f"MCP server {name}", fix="leave it out: --tool OTHER"
                )
            if tool in ours and ours[tool] not in document["tools"]:
                base = catalogue_files(self.catalogue_path)[0]
                raise ConfigError(
                    f"{ours[tool]} is in {base}", where=f"MCP server {name}", fix="set world.catalogue to that file"
                )
            if tool in ours:
                said += _renew(document["tools"][ours[tool]], ours[tool], catalogue.entries[ours[tool]], offer)
                continue
            key = _name(name, tool, {*catalogue.entries, *document["tools"], *reserved})
            entry = _entry(name, offer, latency_s)
            document["tools"].insert(_place(document["tools"]), _quoted(key), entry)
            said.append(f"{key}: added{_long(offer.description)}")
        said += _price(prices, name, per_call, self.price_date)
        self._write({self.catalogue_path: document, self.prices_path: prices})
        return said

    def _write(self, documents: Mapping[Path, Any]) -> None:
        """Replace the files, or what links in their place lead to, once they have been read back as a whole."""
        with ExitStack() as stack:
            places = {path: Path(os.path.realpath(path)) for path in documents}
            partials = {path: stack.enter_context(atomic.whole_file(place)) for path, place in places.items()}
            for path, document in documents.items():
                buffer = io.StringIO()
                _yaml().dump(document, buffer)
                partials[path].write_text(buffer.getvalue(), encoding="utf-8")
            Catalogue.load(partials[self.catalogue_path], partials[self.prices_path], self.price_date)


def _set_server(document: Any, name: str, server: McpServer) -> list[str]:
    """Write how the server is reached."""
    wanted = server.model_dump(mode="json", exclude_defaults=True)
    servers = document.get("mcp_servers")
    if servers is None:
        servers = _map({})
        document.insert(list(document).index("tools"), "mcp_servers", servers)
    servers[name] = _flow(wanted)
    return [f"server {name}: {' '.join(server.command) or server.url}"]


def _entry(server: str, offer: ToolOffer, latency_s: float) -> Any:
    written = {
        "kind": ToolKind.BASIC.value,
        "role": f"MCP {server}",
        "component": Component.MCP.value,
        "description": _quoted(offer.description or offer.name),
        "parameters": _flow(_quoted(offer.parameters)),
        "price": f"{PROVIDER}/{server}",
        "latency_s": latency_s,
        "implementation": "mcp",
        "mcp": _flow({"server": server, "tool": _quoted(offer.name), **_hashes(offer)}),
        "deadline_s": 60,
        "source": "description and parameters: the server's; price, seconds: assumed",
    }
    return _map(written)


def _renew(written: Any, key: str, entry: Entry, offer: ToolOffer) -> list[str]:
    """Take over what the server changed since the last import."""
    assert entry.mcp is not None
    said = []
    if entry.mcp.schema_hash != offer.schema_hash:
        written["parameters"] = _flow(_quoted(offer.parameters))
        said.append(f"{key}: new parameters")
    if entry.mcp.description_hash != offer.description_hash:
        written["description"] = _quoted(offer.description or offer.name)
        said.append(f"{key}: new description{_long(offer.description)}")
    written["mcp"].update(_hashes(offer))
    return said


def _price(prices: Any, server: str, per_call: Decimal, day: str) -> list[str]:
    """A row for the server, where there is none."""
    if any(row["provider"] == PROVIDER and row["model"] == server for row in prices["prices"]):
        return []
    row = {
        "provider": PROVIDER,
        "model": server,
        "effective_from": date.fromisoformat(day),
        "per_call": str(per_call),
        "source": "assumed",
    }
    prices["prices"].append(_flow(row))
    return [f"price {PROVIDER}/{server}: {per_call} USD a call from {day} (assumed)"]


def _name(server: str, tool: str, taken: Collection[str]) -> str:
    """The name that the policy sees: the tool's own, with the server's before it where that is taken."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", tool)[:64] or "_"
    longer = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{server}_{tool}")[:64]
    for name in (plain, longer):
        if name not in taken:
            return name
    raise ConfigError(f"{longer} is taken", where=f"MCP server {server}", fix="give the server another name")


def _place(tools: Any) -> int:
    """Before the first expert: basic tools stay together."""
    kinds = [entry["kind"] for entry in tools.values()]
    return kinds.index(ToolKind.EXPERT.value) if ToolKind.EXPERT.value in kinds else len(kinds)


def _hashes(offer: ToolOffer) -> dict[str, str]:
    return {"schema_hash": offer.schema_hash, "description_hash": offer.description_hash}


def _quoted(value: Any) -> Any:
    """The value with quotes around each text that no longer were one without them, such as `on` or `12:30`."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, dict):
        return {_quoted(key): _quoted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_quoted(inner) for inner in value]
    return DoubleQuotedScalarString(value) if isinstance(value, str) and PLAIN.fullmatch(value) is None else value


def _long(description: str) -> str:
    if len(description) <= LONG:
        return ""
    return f"; its description has {len(description)} characters, which every prompt carries: shorten it by hand"


def _yaml() -> Any:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 1 << 20
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def _read(path: Path) -> Any:
    return _yaml().load(path.read_text(encoding="utf-8"))


def _map(values: Mapping[str, Any]) -> Any:
    from ruamel.yaml.comments import CommentedMap

    return CommentedMap(values)


def _flow(values: Mapping[str, Any]) -> Any:
    """A mapping written on one line."""
    made = _map(values)
    made.fa.set_flow_style()
    return made
