"""Options of the model that writes data, and its endpoint under a cap of dollars."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestra.cli.common import can_be_written, parse_usd, spend_alone

if TYPE_CHECKING:
    from orchestra.accounting.budget import Budget
    from orchestra.config.schema import Params
    from orchestra.synthesis.writers.structured import Writer
    from orchestra.tools.replay.cassette import Cassette

URL, KEY = "ORCHESTRA_WRITER_URL", "ORCHESTRA_WRITER_KEY"
"""As orchestra/synthesis/writers/endpoint.py reads them."""
VERSION = Path("data/versions/default")


CassetteMode = Literal["auto", "record", "replay"]
Model = Annotated[str, typer.Option(help=f"The model that writes; its address is ${URL}, its key ${KEY}.")]
PriceKey = Annotated[str, typer.Option("--price", metavar="PROVIDER/MODEL", help="The model's row in the price book.")]
Cap = Annotated[str, typer.Option("--cap-usd", metavar="USD", help="The most dollars for the whole version.")]
MaxOutputTokens = Annotated[
    int, typer.Option(min=1, metavar="TOKENS", help="The most tokens of one reply of the model, thoughts included.")
]
VersionFolder = Annotated[
    Path | None,
    typer.Option(
        "--version", metavar="FOLDER", callback=can_be_written, help=f"The data-set version; default: {VERSION}."
    ),
]
Recording = Annotated[CassetteMode, typer.Option("--cassette", help="auto: replay recorded replies, record the rest.")]
Licence = Annotated[str, typer.Option(help="The licence of the model's data.")]


def version_folder(here: Path, version: Path | None) -> Path:
    """From the workspace, which is the working directory by now: what is written names no path of this machine."""
    return VERSION if version is None else Path(os.path.relpath(here / version))


def paid_by(context: typer.Context, version: Path, cap_usd: str, cassette: CassetteMode) -> "tuple[Budget, Cassette]":
    """The version's budget and cassette, one of each for all that a command asks; no other command has them meanwhile
    (`spend_alone`)."""
    from orchestra.accounting.budget import Budget
    from orchestra.synthesis.dataset.versions import CASSETTE, LEDGER
    from orchestra.tools.replay.cassette import Cassette

    cap = parse_usd(cap_usd, "--cap-usd")
    spend_alone(context, version)
    return Budget(version / LEDGER, cap), Cassette(version / CASSETTE, cassette)


def paid_writer(
    context: typer.Context,
    params: "Params",
    root: Path,
    model: str,
    price: str | None,
    version: Path,
    cap_usd: str,
    cassette: CassetteMode,
    max_tokens: int,
) -> "Writer":
    """The model that writes, under the version's cap, with its ledger and cassette."""
    from orchestra.synthesis.writers.endpoint import writing_chat
    from orchestra.synthesis.writers.structured import Writer

    chat = writing_chat(params.world, root, model, price, *paid_by(context, version, cap_usd, cassette), max_tokens)
    return Writer(chat, max_tokens=max_tokens)
