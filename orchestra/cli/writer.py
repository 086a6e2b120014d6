"""Options of the model that writes data, and its endpoint under a cap of dollars."""

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestra.cli.common import parse_usd
from orchestra.errors import ConfigError

if TYPE_CHECKING:
    from orchestra.accounting.budget import Budget
    from orchestra.config.schema import Params, World
    from orchestra.tools.experts.metered import PaidChat
    from orchestra.tools.replay.cassette import Cassette

URL, KEY = "ORCHESTRA_WRITER_URL", "ORCHESTRA_WRITER_KEY"
"""Environment variables of the endpoint that writes: its address up to `/v1`, and its key where it needs one."""
VERSION = Path("data/versions/default")


class CassetteMode(StrEnum):
    AUTO = "auto"
    RECORD = "record"
    REPLAY = "replay"


Model = Annotated[str, typer.Option(help=f"The model that writes; its address is ${URL}, its key ${KEY}.")]
PriceKey = Annotated[str, typer.Option("--price", metavar="PROVIDER/MODEL", help="The model's row in the price book.")]
Cap = Annotated[str, typer.Option("--cap-usd", metavar="USD", help="Most dollars for the whole version.")]
VersionFolder = Annotated[Path, typer.Option("--version", metavar="FOLDER", help="The data-set version.")]
Recording = Annotated[CassetteMode, typer.Option("--cassette", help="auto: replay recorded replies, record the rest.")]
Licence = Annotated[str, typer.Option(help="The licence of the model's data.")]


def paid_chat(
    params: "Params", root: Path, model: str, price: str | None, version: Path, cap_usd: str, cassette: CassetteMode
) -> "PaidChat":
    """The endpoint that writes, under the version's cap, with its ledger and cassette."""
    from orchestra.accounting.budget import Budget
    from orchestra.synthesis.dataset.versions import CASSETTE, LEDGER
    from orchestra.tools.replay.cassette import Cassette

    budget = Budget(version / LEDGER, parse_usd(cap_usd, "--cap-usd"))
    return writing_chat(params.world, root, model, price, budget, Cassette(version / CASSETTE, cassette.value))


def writing_chat(
    world: "World", root: Path, model: str, price: str | None, budget: "Budget", tape: "Cassette | None" = None
) -> "PaidChat":
    """The endpoint that writes, at its price of `world.price_date`; where all is replayed it needs no address."""
    from datetime import date

    from orchestra.system.environment import required
    from orchestra.tools.catalogue.price_book import PriceBook
    from orchestra.tools.chat.client import Chat
    from orchestra.tools.experts.metered import PaidChat
    from orchestra.types import Component

    if price is None:
        raise ConfigError(
            "the model's price is unknown", where="--model", fix="name its row of the price book: --price"
        )
    found = PriceBook.load(root / world.prices).at(price, date.fromisoformat(world.price_date))
    url = "" if tape is not None and tape.mode == "replay" else required(URL, tool="writer")
    chat = Chat(model, model=model, url=url, key=os.environ.get(KEY, ""), cassette=tape)
    return PaidChat(chat, found, budget, Component.GENERATOR)
