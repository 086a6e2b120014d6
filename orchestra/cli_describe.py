"""`orchestra tools describe`: what an expert is good at, measured, then written."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from orchestra.cli_values import parse_usd


def describe(
    expert: Annotated[str, typer.Argument(help="Its name in the catalogue.")],
    examples: Annotated[int, typer.Option(min=1, help="Training examples to run it on.")] = 40,
    seed: Annotated[int, typer.Option(help="Which examples are drawn.")] = 0,
    data: Annotated[Path, typer.Option(help="The examples to draw from.")] = Path("data/validated/train.jsonl"),
    out: Annotated[
        Path | None, typer.Option(help="Where outcomes are kept; default: work/describe/EXPERT.jsonl.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Have this model write; default: a template over the measured skills.")
    ] = None,
    price: Annotated[str | None, typer.Option(metavar="PROVIDER/MODEL", help="Its row in the price book.")] = None,
    cap_usd: Annotated[str, typer.Option(metavar="USD", help="Dollars that all of it may cost.")] = "1",
    write: Annotated[bool, typer.Option("--write", help="Change the catalogue.")] = False,
) -> None:
    """Run an expert on sampled training examples, and propose the description that its outcomes warrant."""
    from orchestra.cli import workspace
    from orchestra.cli_domains import writing_chat
    from orchestra.config import load_params
    from orchestra.jsonl import read_jsonl
    from orchestra.ledger import Purse, phase
    from orchestra.rewards.outcome import verify
    from orchestra.tools import describe as measuring
    from orchestra.tools.toolkit import Toolkit
    from orchestra.types import Example

    root = workspace()
    params = load_params(root / "params.yaml")
    file = out or root / "work/describe" / f"{expert}.jsonl"
    toolkit = Toolkit.from_params(params, root)
    purse = toolkit.purse = Purse(file.with_suffix(".ledger.jsonl"), parse_usd(cap_usd, "--cap-usd"), "describe")
    drawn = measuring.sample(read_jsonl(data, Example, fix="run the validate stage"), examples, seed)

    async def measured() -> str:
        try:
            tried = await measuring.run(expert, drawn, toolkit, verify, file)
        finally:
            await toolkit.aclose()
        print("\n".join(measuring.summary(tried)))
        if model is None:
            return measuring.template(tried)
        chat = writing_chat(params.world, root, model, price, purse)
        try:
            with phase("write"):
                return await measuring.written(tried, chat)
        finally:
            await chat.aclose()

    description = asyncio.run(measured())
    catalogue = root / params.world.catalogue
    _, before, now = measuring.with_description(catalogue.read_text(encoding="utf-8"), expert, description)
    print(f"outcomes: {file}\n{expert}:\n- {before.strip()}\n+ {now.strip()}")
    if write:
        measuring.write(catalogue, expert, description)
        print(f"written to {params.world.catalogue}")
