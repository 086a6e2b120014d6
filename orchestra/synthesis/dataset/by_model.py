"""What a model writes for a set in the flow: domains, tasks, harder ones and preferences, under a cap and a cassette.

It comes before the examples by rule: what the model wrote joins them as `synthesize.extra` does, through the same gate.
"""

import asyncio
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

from orchestra.accounting.budget import Budget
from orchestra.config.schema import Extra, Params, Synthesize
from orchestra.config.synthesis import ModelWriting
from orchestra.errors import BudgetError, ServiceError
from orchestra.files.jsonl import write_jsonl
from orchestra.synthesis.dataset.versions import CASSETTE, LEDGER, DatasetVersion, Made, Maker
from orchestra.synthesis.domain_tasks.drafts import DOMAIN_CATEGORIES
from orchestra.synthesis.filters.filters import Solver
from orchestra.synthesis.filters.solver import is_billed, solver_named
from orchestra.synthesis.preferences.templates import PreferenceTemplate
from orchestra.synthesis.writers.domains import write_domain
from orchestra.synthesis.writers.endpoint import writing_chat
from orchestra.synthesis.writers.preferences import written
from orchestra.synthesis.writers.structured import Writer
from orchestra.synthesis.writers.tasks import ModelGenerator
from orchestra.tools.catalogue.catalogue import Catalogue, read_catalogue
from orchestra.tools.replay.cassette import Cassette
from orchestra.tools.toolkit import Toolkit
from orchestra.types import SPLITS, Split
from orchestra.validation.gate.decontamination import Gate

Say = Callable[[str], None]
SHARES = {"rules": 0.0, "both": 0.5, "llm": 1.0}
"""Share of the domain examples that the model writes."""
SETTING = "synthesize.writer.settings"
SPARE = 1.25
"""Tasks asked for, over those wanted: some do not hold."""


def written_first(params: Params, root: Path, say: Say, run: Budget | None = None) -> Params:
    """Have the model write its part; returns the parameters of the set by rule that what it wrote joins.

    With generator rules, the parameters as they are. A later run asks only for what the cassette of the version lacks.
    Raises `BudgetError` at the cap of the version or of the `run`, which books the same; what was written before it is
    kept.
    """
    config, settings = params.synthesize, params.synthesize.writer
    if config.generator == "rules" or settings is None:
        return params
    folder = root / settings.version
    budget = Budget(folder / LEDGER, Decimal(str(settings.cap_usd)), "synthesize", within=run)
    tape = Cassette(folder / CASSETTE, settings.cassette)

    def writer() -> Writer:
        most = settings.max_output_tokens
        chat = writing_chat(params.world, root, settings.model, settings.price, budget, tape, most, SETTING)
        return Writer(chat, max_tokens=most, settings=settings.settings)

    for name, subject in settings.domains.items():
        if not (root / "data/domains" / name).is_dir():
            place, licence = root / "data/domains", settings.licence
            taken = read_catalogue(root / params.world.catalogue).tools
            asyncio.run(write_domain(writer(), name, subject, place, seed=config.seed, licence=licence, taken=taken))
            say(f"data/domains/{name} is written; read it")
    toolkit = Toolkit.from_params(params, root)
    tried_with = toolkit.with_budget(budget, tape) if is_billed(settings.solver, toolkit) else toolkit
    solver = solver_named(settings.solver, params, tried_with, root)
    files = _tasks(params, root, toolkit, settings, writer, solver, say)
    preferences = config.preferences
    if settings.preferences:
        made = asyncio.run(_preferences(writer(), toolkit.catalogue, config, settings))
        preferences = f"{settings.version}/preferences.jsonl"
        say(f"{write_jsonl(root / preferences, made)} preferences by {settings.model}")
    say(f"{settings.model}: {budget.spent_usd:f} USD spent on {settings.version} so far; {tape.summary()}")
    changed = by_rule(config).model_copy(update={"extra": [*config.extra, *files], "preferences": preferences})
    return params.model_copy(update={"synthesize": changed})


def by_rule(config: Synthesize) -> Synthesize:
    """The part of the set that is made by rule: as many examples fewer as the model is to write, the mix adapted."""
    share, domains = SHARES[config.generator], sum(config.mix.get(one, 0.0) for one in DOMAIN_CATEGORIES)
    left = 1 - share * domains
    mix = {one: part * (1 - share if one in DOMAIN_CATEGORIES else 1) / left for one, part in config.mix.items()}
    update = {
        "mix": {one: part for one, part in mix.items() if part},
        "train_examples": config.train_examples - wanted(config, "train"),
        "heldout_examples": config.heldout_examples - wanted(config, "heldout"),
    }
    return config.model_copy(update=update)


def wanted(config: Synthesize, split: Split) -> int:
    """How many examples of a split the model is to write."""
    count = config.train_examples if split == "train" else config.heldout_examples
    return round(SHARES[config.generator] * count * sum(config.mix.get(one, 0.0) for one in DOMAIN_CATEGORIES))


async def _preferences(
    writer: Writer, catalogue: Catalogue, config: Synthesize, settings: ModelWriting
) -> list[PreferenceTemplate]:
    """Those that were not dropped; raises `BudgetError` or `ToolError` when the writing ended early."""
    making = written(writer, catalogue, settings.preferences, config.seed, settings.licence, config.price_spread)
    try:
        return [one async for one in making if isinstance(one, PreferenceTemplate)]
    finally:
        await writer.chat.aclose()


def _tasks(
    params: Params,
    root: Path,
    toolkit: Toolkit,
    settings: ModelWriting,
    writer: Callable[[], Writer],
    solver: Solver | None,
    say: Say,
) -> list[Extra]:
    """The files of what the model wrote and the filters kept, by domain and split."""
    config, names = params.synthesize, params.world.domains
    version, files = DatasetVersion(root / settings.version), list[Extra]()
    for split in SPLITS:
        for number, name in enumerate(names):
            count = wanted(config, split) * (number + 1) // len(names) - wanted(config, split) * number // len(names)
            harder = round(count * config.evolved_share)
            generator = ModelGenerator(writer(), config.seed, settings.licence)
            maker = Maker(version, generator, toolkit, config, Gate.open(root), solver, say)
            if count - harder:
                files += _kept(maker.examples(name, split, round((count - harder) * SPARE)), root, split, say)
            if harder:
                files += _kept(maker.evolved(name, split, round(harder * SPARE)), root, split, say)
    return files


def _kept(made: Made, root: Path, split: Split, say: Say) -> list[Extra]:
    """The file, where it holds any example; raises `BudgetError` or `ServiceError` when the writing ended early."""
    name = str(made.path.relative_to(root))
    for line in made.lines():
        say(f"{name}: {line.strip()}")
    if made.ended is not None:
        fix = "what was written is kept: run again, with a higher writer.cap_usd or budget.run_usd where one ended it"
        raise (BudgetError if "USD are spent" in made.ended else ServiceError)(made.ended, where=name, fix=fix)
    return [Extra.model_construct(file=name, split=split)] if made.card["examples"] else []
