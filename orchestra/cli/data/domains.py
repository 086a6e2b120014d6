"""`orchestra domains`: write, extend and check domains and their examples, by rule or by a model."""

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestra.cli.common import refuse_unused, tell_beside_run, workspace
from orchestra.cli.data.writer import (
    Cap,
    Licence,
    MaxOutputTokens,
    Model,
    PriceKey,
    Recording,
    VersionFolder,
    paid_by,
    paid_writer,
    version_folder,
)
from orchestra.config.synthesis import MAX_OUTPUT_TOKENS
from orchestra.errors import ConfigError, DataError
from orchestra.text import plain
from orchestra.types import Split

if TYPE_CHECKING:
    from orchestra.config.schema import Params
    from orchestra.rollout.users import UserSimulator

app = typer.Typer(help="Write, extend and check domains and their examples.")


Count = Annotated[int, typer.Option(min=1, help="The number to make.")]


@app.command()
def subjects(
    context: typer.Context,
    model: Model,
    price: PriceKey,
    count: Count = 5,
    version: VersionFolder = None,
    cap_usd: Cap = "1",
    cassette: Recording = "auto",
    max_output_tokens: MaxOutputTokens = MAX_OUTPUT_TOKENS,
    seed: Annotated[int, typer.Option(help="The seed of every random draw.")] = 0,
) -> None:
    """Ask a model for subjects of new domains."""
    from orchestra.synthesis.writers.domains import propose_subjects

    here = Path.cwd()
    root, params = _open()
    folder = version_folder(here, version)
    writer = paid_writer(context, params, root, model, price, folder, cap_usd, cassette, max_output_tokens)
    taken = [place.name for place in (root / "data/domains").iterdir()]
    for one in asyncio.run(propose_subjects(writer, count, taken, seed)):
        print(plain(f"{one.name}: {one.subject}"))


@app.command()
def write(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The domain.")],
    subject: Annotated[str, typer.Option(help="The users, the records and the changes of the domain, in words.")],
    model: Model,
    price: PriceKey,
    version: VersionFolder = None,
    cap_usd: Cap = "1",
    cassette: Recording = "auto",
    max_output_tokens: MaxOutputTokens = MAX_OUTPUT_TOKENS,
    seed: Annotated[int, typer.Option(help="The seed of every random draw.")] = 0,
    licence: Licence = "Apache-2.0",
) -> None:
    """Ask a model to write data/domains/NAME; after two repairs, refused parts are dropped."""
    from orchestra.synthesis.writers.domains import write_domain
    from orchestra.tools.catalogue.catalogue import read_catalogue

    here = Path.cwd()
    root, params = _open()
    tell_beside_run(root, root / "data/domains" / name)
    folder = version_folder(here, version)
    writer = paid_writer(context, params, root, model, price, folder, cap_usd, cassette, max_output_tokens)
    taken = read_catalogue(root / params.world.catalogue).tools
    domain = asyncio.run(
        write_domain(writer, name, subject, root / "data/domains", seed=seed, licence=licence, taken=taken)
    )
    print(f"data/domains/{name}: {len(domain.tables)} tables, {len(domain.tools)} tools, {len(domain.intents)} intents")
    print(f"read it, then add {name} to world.domains in params.yaml")


@app.command()
def check(name: Annotated[str, typer.Argument(help="The domain.")]) -> None:
    """Load a domain as an episode does, and check that it is plausible. Changes nothing."""
    from orchestra.domains.engine import load_domain
    from orchestra.synthesis.writers.plausible import check_domain
    from orchestra.tools.catalogue.catalogue import read_catalogue

    root, params = _open()
    there = sorted(folder.name for folder in (root / "data/domains").iterdir() if folder.is_dir())
    if name not in there:
        raise ConfigError(f"no domain named {name:.60}", where="data/domains", fix=f"name one of: {', '.join(there)}")
    domain = load_domain(root / "data/domains" / name)
    try:
        check_domain(domain, read_catalogue(root / params.world.catalogue).tools)
    except DataError as error:
        fix = "docs/how-to/write-a-domain.md says what is plausible"
        raise DataError(error.what, where=error.where or f"data/domains/{name}", fix=error.fix or fix) from None
    print(f"{name}: {len(domain.tables)} tables, {len(domain.tools)} tools, {len(domain.intents)} intents, sound")


@app.command()
def examples(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The domain.")],
    count: Count = 100,
    evolve: Annotated[bool, typer.Option("--evolve", help="Make harder examples from those of the version.")] = False,
    split: Annotated[Split, typer.Option(help="The split whose entities they are about.")] = "train",
    version: VersionFolder = None,
    model: Annotated[str | None, typer.Option(help="The model that writes; default: by rule.")] = None,
    price: Annotated[
        str | None, typer.Option(metavar="PROVIDER/MODEL", help="The model's row in the price book.")
    ] = None,
    cap_usd: Cap = "1",
    cassette: Recording = "auto",
    max_output_tokens: MaxOutputTokens = MAX_OUTPUT_TOKENS,
    solver: Annotated[
        str, typer.Option(help="known (the solution, with mistakes), none, a checkpoint's folder, or chat:EXPERT.")
    ] = "known",
    model_user: Annotated[bool, typer.Option("--model-user", help="The model also plays the users.")] = False,
    seed: Annotated[int, typer.Option(help="The seed of every random draw.")] = 0,
    licence: Licence = "Apache-2.0",
) -> None:
    """Make examples of a domain, by rule or by a model, filter them, and add them to a data-set version."""
    from orchestra.cli.data.solver import named, open_solver
    from orchestra.rollout.users import ModelUser
    from orchestra.synthesis.dataset.versions import DatasetVersion, Maker
    from orchestra.synthesis.filters.solver import is_billed
    from orchestra.synthesis.writers.endpoint import writing_chat
    from orchestra.synthesis.writers.generator import Generator, OfflineGenerator
    from orchestra.synthesis.writers.structured import Writer
    from orchestra.synthesis.writers.tasks import ModelGenerator
    from orchestra.tools.toolkit import Toolkit
    from orchestra.types import Component
    from orchestra.validation.gate.decontamination import Gate

    here = Path.cwd()
    root, params = _open()
    folder = version_folder(here, version)
    if model is None:
        unused = ["price", "max_output_tokens", "licence"]
        refuse_unused(context, unused, "without --model", "name one: --model NAME, or leave it out")
    # A domain that training does not use yet may have examples all the same.
    world = params.world.model_copy(update={"domains": [name]})
    toolkit = Toolkit.from_params(params.model_copy(update={"world": world}), root)
    generator: Generator = OfflineGenerator(seed)
    user: UserSimulator | None = None
    tried_with, billed = toolkit, is_billed(solver, toolkit)
    if model is None and not billed:
        refuse_unused(context, ["cap_usd", "cassette"], "where no model is asked", "add --model NAME, or leave it out")
    else:
        budget, tape = paid_by(context, folder, cap_usd, cassette)
        tried_with = toolkit.with_budget(budget, tape) if billed else toolkit
    if model is not None:
        paid = writing_chat(params.world, root, model, price, budget, tape, max_output_tokens)
        generator = ModelGenerator(Writer(paid, max_tokens=max_output_tokens), seed, licence)
        user = ModelUser(paid.of(Component.USER)) if model_user else None
    elif model_user:
        raise ConfigError("no model is named to play the users", where="--model-user", fix="name one with --model")
    with open_solver(named(solver, here), params, tried_with, root, _say, user) as tried_by:
        maker = Maker(DatasetVersion(folder), generator, toolkit, params.synthesize, Gate.open(root), tried_by, _say)
        made = maker.evolved(name, split, count) if evolve else maker.examples(name, split, count)
    print(plain("\n".join([*made.lines(), f"in {os.path.relpath(folder, here)}"])))
    if made.ended is not None:
        raise typer.Exit(2)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _open() -> tuple[Path, "Params"]:
    from orchestra.config.schema import load_params
    from orchestra.synthesis.dataset.shards import rooted

    root = workspace()
    return root, rooted(load_params(root / "params.yaml"), root)
