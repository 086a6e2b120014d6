"""What tests of MCP share: connections to the servers beside this file, and a catalogue that holds their tools."""

import asyncio
import shutil
import sys
from pathlib import Path

from orchestra.tools.catalogue import Catalogue
from orchestra.tools.mcp.freeze import Freezer
from orchestra.tools.mcp.session import Connection
from orchestra.tools.mcp.spec import McpServer, McpTool, Offer
from tests.worlds import ROOT

DAY = "2025-11-15"


def real(**env: str) -> McpServer:
    """The server by the official SDK: a second and a half to start."""
    return McpServer(command=(sys.executable, str(ROOT / "tests/mcp_server.py")), env=env)


def fake(*faults: str) -> McpServer:
    return McpServer(command=(sys.executable, "-S", str(ROOT / "tests/mcp_fake.py"), *faults))


def frozen(offer: Offer, server: str = "t") -> McpTool:
    """A tool as an import now would freeze it."""
    return McpTool(
        server=server,
        tool=offer.name,
        schema_hash=offer.schema_hash,
        description_hash=offer.description_hash,
    )


def offers(server: McpServer) -> dict[str, Offer]:
    async def ask() -> dict[str, Offer]:
        connection = Connection("t", server)
        try:
            return await connection.offers()
        finally:
            await connection.aclose()

    return asyncio.run(ask())


def freezer(folder: Path) -> Freezer:
    """Over a copy of the shipped catalogue."""
    for name in ("tools.yaml", "prices.yaml"):
        shutil.copy(ROOT / "data/catalogue" / name, folder)
    return Freezer(folder / "tools.yaml", folder / "prices.yaml", DAY)


def load(made: Freezer) -> Catalogue:
    return Catalogue.load(made.catalogue_path, made.prices_path, DAY)
