"""`orchestra synthesize`: make examples. `orchestra data`: import, export and count them."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestra.cli.common import (
    RunnerOption,
    can_be_written,
    hand_over,
    refuse_unused,
    tell_beside_run,
    workspace,
)
from orchestra.cli.data.writer import (
    Cap,
    Licence,
    MaxOutputTokens,
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

app = typer.Typer(help="Import and export data, and describe a file.", no_args_is_help=True)


Format = Literal["general-thought", "questions", "toolscale", "corpus"]
NAMES = {"general-thought": "GeneralThought-430K", "toolscale": "nvidia/ToolScale", "corpus": "corpus"}
"""The source where none is named."""
LICENCES = {"toolscale": "other", "corpus": "Apache-2.0"}
"""The licence of rows that state none, where the data set has one."""
OF_FORMATS = {
    **dict.fromkeys(("question", "answer", "id_", "licence_field", "topic"), ("questions",)),
    "tools": ("toolscale",),
    **dict.fromkeys(("judged", "lenient"), ("general-thought", "questions", "toolscale")),
}
"""Options of an import that only these formats read."""


@app.command("import")
def import_(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="JSON lines, Parquet, JSON, CSV or TSV.")],
    format_: Annotated[Format, typer.Option("--format", help="The schema of the files.")],
    to: Annotated[
        Path, typer.Option(callback=can_be_written, help="The file of examples to write: data/extra/NAME.jsonl.")
    ],
    source: Annotated[
        str | None, typer.Option(help="The data set's name; default: the format's. --format questions needs it.")
    ] = None,
    licence: Annotated[str | None, typer.Option(help="The licence of rows that state none.")] = None,
    split: Annotated[Split, typer.Option(help="The split whose wording of preferences is used.")] = "train",
    question: Annotated[str, typer.Option(metavar="FIELD", help="The field of the question.")] = "question",
    answer: Annotated[str, typer.Option(metavar="FIELD", help="The field of the answer.")] = "answer",
    id_: Annotated[
        str | None, typer.Option("--id", metavar="FIELD", help="The field of the id; default: the row's number.")
    ] = None,
    licence_field: Annotated[str | None, typer.Option(metavar="FIELD", help="The field of a row's licence.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="FIELD", help="The field of the topic.")] = None,
    judged: Annotated[
        bool, typer.Option("--judged", help="Accept answers that only a judge can check; implied by world.judge.")
    ] = False,
    tools: Annotated[Path | None, typer.Option(help="ToolScale's tools, as an OpenAI tools array (JSON).")] = None,
    lenient: Annotated[bool, typer.Option("--lenient", help="Refuse unreadable rows and continue.")] = False,
) -> None:
    """Make examples from outside data, through the data gate (licences, contamination). Exit code 2 if none is made."""
    from orchestra.config.schema import load_params
    from orchestra.synthesis.dataset.shards import rooted
    from orchestra.synthesis.imports.corpus import corpus_questions, records
    from orchestra.synthesis.imports.importer import ExampleImporter
    from orchestra.synthesis.imports.intake import beside, take
    from orchestra.synthesis.imports.questions import GENERAL_THOUGHT, UNKNOWN, Fields, Questions
    from orchestra.synthesis.imports.toolscale import ToolScale, read_tools
    from orchestra.tools.catalogue.catalogue import Catalogue
    from orchestra.validation.card import lines
    from orchestra.validation.gate.decontamination import Gate

    unread = [option for option, formats in OF_FORMATS.items() if format_ not in formats]
    refuse_unused(context, unread, f"with --format {format_}")
    here = Path.cwd()
    root = workspace()
    # From here on the workspace is where we are; what is written names no path of this machine.
    files, to = [Path(os.path.relpath(here / file)) for file in files], here / to
    tools = here / tools if tools is not None else None
    tell_beside_run(root, to)
    params = rooted(load_params(root / "params.yaml"), root)
    world = params.world
    catalogue = Catalogue.load(root / world.catalogue, root / world.prices, world.price_date)
    importer = ExampleImporter(catalogue, params.synthesize, split)
    gate = Gate.open(root)
    name, terms = source or NAMES.get(format_), licence or LICENCES.get(format_, UNKNOWN)
    if name is None:
        fix = f"--format {format_} needs it: it begins the examples' ids"
        raise ConfigError("the data set has no name", where="--source", fix=fix)
    match format_:
        case "toolscale":
            known, here_too = read_tools(tools) if tools else {}, frozenset(world.domains)
            loader = ToolScale(terms, name, known, judged or world.judge is not None, here_too, lenient)
            rows = loader.load(files, importer)
        case "corpus":
            rows = corpus_questions(files, importer, name, terms)
        case _:
            own = Fields(question, answer, id_, licence_field, topic=topic)
            fields = GENERAL_THOUGHT if format_ == "general-thought" else own
            judging = judged or world.judge is not None
            rows = Questions(fields, name, terms, judging, lenient, gate.licences).load(files, importer)
    documents = records(files, name) if format_ == "corpus" else None
    card = take(rows, gate, to, _say, known=importer.entry, documents=documents)
    print(plain("\n".join(lines(card))))
    if (count := card["verifiers"].get("judge")) and world.judge is None:
        print(
            f"{count} of them only a judge can check, and none is configured: name one in world.judge to train on them"
        )
    if not card["examples"]:
        rows_read = sum(sum(by_source.values()) for by_source in card["refused"].values())
        fix = f"see {os.path.relpath(beside(to, 'refused'), here)} for the reasons"
        raise DataError(f"none of {rows_read} rows became an example", where=", ".join(map(str, files)), fix=fix)


@app.command()
def measure(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Examples, e.g. data/validated/train.jsonl.")],
    to: Annotated[
        Path, typer.Option(callback=can_be_written, help="The file to write, with difficulties: data/extra/NAME.jsonl.")
    ],
    solver: Annotated[
        str, typer.Option(help="known (the solution, with mistakes), a checkpoint's folder, or chat:EXPERT.")
    ] = "known",
    tries: Annotated[int, typer.Option(min=1, help="Number of tries per example.")] = 8,
    cap_usd: Annotated[
        str, typer.Option(metavar="USD", help="The most dollars for real experts, of all such commands together.")
    ] = "1",
) -> None:
    """Measure how often a solver solves each example; after a kill, the same command continues."""
    from dataclasses import replace

    from orchestra.cli.data.solver import identity, named, open_solver
    from orchestra.config.schema import load_params
    from orchestra.synthesis.filters.solver import is_billed
    from orchestra.synthesis.imports import difficulty as measuring
    from orchestra.synthesis.imports.export import stream
    from orchestra.system.workspace import Screen
    from orchestra.validation.card import Tally, lines

    here, root, screen = Path.cwd(), workspace(), Screen()
    file, to, params = here / file, here / to, load_params(root / "params.yaml")
    if not file.is_file():
        raise DataError("no such file", where=str(file), fix="name a file of examples")
    tell_beside_run(root, to)
    name, toolkit = named(solver, here), measuring.toolkit_for(file, params, root)
    if is_billed(name, toolkit):
        toolkit = toolkit.with_budget(*paid_by(context, root / "work/measure", cap_usd, "auto"))
    with open_solver(name, params, toolkit, root, screen) as found:
        if found is None:
            raise ConfigError("no solver is named", where="--solver", fix="known, or a checkpoint's folder")
        measuring.measure(file, to, replace(found, tries=tries), identity(name, params), screen)
    print("\n".join(lines({"difficulties": Tally.of(stream(to)).counts()["difficulties"]})))


def _say(text: str) -> None:
    print(plain(text), file=sys.stderr, flush=True)


@app.command()
def preferences(
    context: typer.Context,
    out: Annotated[
        Path, typer.Option(callback=can_be_written, help="The file to write, JSON lines: data/extra/preferences.jsonl.")
    ],
    count: Annotated[int, typer.Option(min=5, help="Number of preferences; every fifth is held out.")] = 200,
    model: Annotated[str | None, typer.Option(help="The model that writes them; default: by rule.")] = None,
    price: Annotated[
        str | None, typer.Option(metavar="PROVIDER/MODEL", help="The model's row in the price book.")
    ] = None,
    version: VersionFolder = None,
    cap_usd: Cap = "1",
    cassette: Recording = "auto",
    max_output_tokens: MaxOutputTokens = MAX_OUTPUT_TOKENS,
    seed: Annotated[int, typer.Option(help="The seed of every random draw.")] = 0,
    licence: Licence = "Apache-2.0",
) -> None:
    """Write sentences that state a preference, for `synthesize.preferences`."""
    import asyncio

    from orchestra.config.schema import load_params
    from orchestra.files.jsonl import write_jsonl
    from orchestra.synthesis.preferences import grammar
    from orchestra.synthesis.writers.preferences import collected
    from orchestra.tools.catalogue.catalogue import Catalogue

    here, root = Path.cwd(), workspace()
    params, out = load_params(root / "params.yaml"), here / out
    tell_beside_run(root, out)
    lines: list[str] = []
    if model is None:
        unused = ["price", "version", "cap_usd", "cassette", "max_output_tokens", "licence"]
        refuse_unused(context, unused, "without --model", "name one: --model NAME, or leave it out")
        made = grammar.wishes(count, seed)
    elif price is None:
        raise ConfigError(
            "the model's price is unknown", where="--model", fix="name its row of the price book: --price"
        )
    else:
        world = params.world
        catalogue = Catalogue.load(root / world.catalogue, root / world.prices, world.price_date)
        folder = version_folder(here, version)
        writer = paid_writer(context, params, root, model, price, folder, cap_usd, cassette, max_output_tokens)
        spread = params.synthesize.price_spread
        made, lines = asyncio.run(collected(writer, catalogue, count, seed, licence, spread))
    out.parent.mkdir(parents=True, exist_ok=True)
    print("\n".join([*lines, f"{write_jsonl(out, made)} preferences in {os.path.relpath(out, here)}"]))


@app.command("export")
def export_(
    file: Annotated[Path, typer.Argument(help="Examples, e.g. data/validated/train.jsonl.")],
    to: Annotated[Path, typer.Argument(callback=can_be_written, help="The file to write: .jsonl or .parquet.")],
) -> None:
    """Write examples in the schema of nvidia/ToolScale; importing the file gives the same examples."""
    from orchestra.synthesis.imports.export import export

    print(f"{export(file, to)} examples in {to}")


@app.command("card")
def card_(
    files: Annotated[list[Path], typer.Argument(help="Examples, e.g. data/validated/train.jsonl.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count examples by category, domain, source, licence, generator and seed."""
    from orchestra.synthesis.imports.export import stream
    from orchestra.validation.card import Tally, lines

    counts = Tally.of(example for file in files for example in stream(file)).counts()
    print(json.dumps(counts, indent=2) if as_json else plain("\n".join(lines(counts))))


def synthesize(
    examples: Annotated[
        int | None, typer.Option(min=2, help="Number of training and held-out examples; default: params.yaml.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(callback=can_be_written, help="The folder to write; default: data/generated.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes; default: one per core.")] = None,
    seed: Annotated[int | None, typer.Option(help="Use this seed instead of synthesize.seed.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="For this command only; params.yaml stays as it is."),
    ] = None,
    runner: RunnerOption = None,
) -> None:
    """Make any number of examples on all cores; after a kill, the same command continues."""
    from orchestra.config.overrides import effective
    from orchestra.config.schema import params_file
    from orchestra.synthesis.dataset import workers as pool
    from orchestra.synthesis.dataset.shards import sized
    from orchestra.system.environment import cores
    from orchestra.system.workspace import Screen, locked

    here, root = Path.cwd(), workspace()
    folder = root / "data/generated" if out is None else here / out
    assignments = [*(set_ or []), *([] if seed is None else [f"synthesize.seed={seed}"])]
    if runner is not None:
        if workers is not None:
            raise ConfigError(
                "--workers and --runner exclude each other",
                where="synthesize",
                fix="give one of them, such as --runner processes:2",
            )
        os.environ["ORCHESTRA_TASK_RUNNER"] = runner
        hand_over("flows", "synthesize", out=folder, set=assignments, examples=examples)
    params = effective(params_file(root), assignments)
    params = params if examples is None else sized(params, examples)
    total = params.synthesize.train_examples + params.synthesize.heldout_examples
    screen, began, said = Screen(), time.monotonic(), 0.0

    def progress(done: int) -> None:
        nonlocal said
        if done == total or time.monotonic() - said > 0.5:
            said = time.monotonic()
            screen(f"synthesize: {done}/{total} examples ({100 * done // total}%), {said - began:.0f} s")

    with locked(root):
        pool.synthesize(params, root, folder, workers=workers or cores(), on_progress=progress, say=screen)
    screen(f"synthesize: {folder} holds them")
