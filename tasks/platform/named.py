"""Checks before the first stage that everything named in the parameters exists."""

import difflib
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import orchestra.rewards.parts  # noqa: F401  (registers the reward parts)
from orchestra.config.schema import Params
from orchestra.domains.engine import load_domain
from orchestra.errors import ConfigError
from orchestra.evaluation.baselines.base import STRONGEST
from orchestra.evaluation.probes.run import read_wording
from orchestra.evaluation.safety import read_cases
from orchestra.files.base_model import base_folder, is_hub_name
from orchestra.rewards.registry import unknown_weights
from orchestra.rewards.rubrics import rubric
from orchestra.rollout.policies.chat import PREFIX
from orchestra.synthesis.preferences.sentences import NEUTRAL, WEIGHTS, WORDS
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.training.choices import CHOICES
from orchestra.training.teacher import choice_words
from orchestra.types import Category, ToolKind
from tasks.evaluate import check_names
from tasks.grpo import check_preferences
from tasks.judge import check_as_served

FROM_DOMAINS = (Category.LOOKUP, Category.CHANGE)
"""Categories whose examples come from a domain."""


def check_named(params: Params, root: Path, *, promotes: bool = False) -> None:
    """Raises `ConfigError` or `DataError` of one line for the first thing that the parameters name and that is not
    there, or cannot be read. Nothing is downloaded, and no model is loaded.

    `promotes`: the run goes to the promotion gate, which must get as many examples as it wants, of what will serve.
    """
    for key, file in _files(params):
        if not (root / file).is_file():
            raise ConfigError(f"{file} is not there", where=key, fix="make it, or name another in params.yaml")
    catalogue = _catalogue(params, root)
    _domains(params, root)
    _model(params, root)
    check_names(params, root)
    _experts(params, catalogue)
    if params.promote.objective == "utility" and STRONGEST not in params.evaluate.baselines:
        what = f"utility is in units of {STRONGEST}, which is not evaluated"
        raise ConfigError(what, where="promote.objective", fix=f"add {STRONGEST} to evaluate.baselines")
    if params.evaluate.safety is not None:
        read_cases(root / params.evaluate.safety)
    if params.evaluate.wording is not None:
        if not (root / params.evaluate.wording).is_dir():
            fix = "name a folder with wishes.jsonl and questions.jsonl"
            raise ConfigError(f"{params.evaluate.wording} is not there", where="evaluate.wording", fix=fix)
        read_wording(root / params.evaluate.wording)
    check_reward(params)
    _trained_on(params)
    if promotes:
        check_as_served(params)
        _evidence(params)


def _files(params: Params) -> Iterator[tuple[str, str]]:
    """Every file by the key that names it."""
    made, grpo, evaluate = params.synthesize, params.grpo, params.evaluate
    named = [
        ("world.catalogue", params.world.catalogue), ("world.prices", params.world.prices),
        ("synthesize.preferences", made.preferences), ("grpo.difficulty_file", grpo.difficulty_file),
        ("evaluate.safety", evaluate.safety),
        ("deploy.tls_certificate", params.deploy.tls_certificate), ("deploy.tls_key", params.deploy.tls_key),
        *(("synthesize.extra", extra.file) for extra in made.extra),
    ]  # fmt: skip
    yield from ((key, file) for key, file in named if file is not None)


def _catalogue(params: Params, root: Path) -> Catalogue:
    """The catalogue, once every price that a stage looks up is there."""
    world, made = params.world, params.synthesize
    catalogue = Catalogue.load(root / world.catalogue, root / world.prices, world.price_date)
    assert catalogue.book is not None
    for day in made.price_dates:
        catalogue.on(day)
    today = date.fromisoformat(world.price_date)
    if world.judge is not None:
        rubric(world.judge.rubric)
        catalogue.book.at(world.judge.price, today)
    if made.writer is not None and made.generator != "rules":
        catalogue.book.at(made.writer.price, today)
    return catalogue


def _domains(params: Params, root: Path) -> None:
    """Every domain is there, whole and once; those that a model writes in the flow may come later."""
    world, made = params.world, params.synthesize
    written = set(made.writer.domains) if made.writer is not None and made.generator != "rules" else set()
    if twice := sorted({name for name in world.domains if world.domains.count(name) > 1}):
        raise ConfigError(f"{twice[0]} is named twice", where="world.domains", fix="name each domain once")
    folder = root / "data/domains"
    for name in world.domains:
        if not (folder / name).is_dir() and name not in written:
            there = sorted(one.name for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []
            fix = f"one of: {', '.join(there)}" if there else f"git checkout {folder.relative_to(root)}"
            raise ConfigError(f"no domain named {name}", where="world.domains", fix=fix)
        if name not in written:
            load_domain(folder / name)
    if not world.domains and any(made.mix.get(category, 0) > 0 for category in FROM_DOMAINS):
        raise ConfigError("lookups and changes need a domain", where="synthesize.mix", fix="name one in world.domains")


def _model(params: Params, root: Path) -> None:
    """The recipe and a base on this machine; a base of the hub is pinned, and here or allowed to be downloaded."""
    from huggingface_hub.constants import is_offline_mode

    model = params.model
    recipe, fix = root / model.recipe, "name a folder of models/recipes"
    if not recipe.is_dir():
        raise ConfigError(f"no folder {model.recipe}", where="model.recipe", fix=fix)
    if model.base is None:
        for name in ("config.json", "tokenizer.json"):
            if not (recipe / name).is_file():
                raise ConfigError(f"{model.recipe} has no {name}", where="model.recipe", fix=fix)
    elif not is_hub_name(model.base, root) or model.revision is None or is_offline_mode():
        base_folder(model.base, model.revision, root)


def _experts(params: Params, catalogue: Catalogue) -> None:
    """Every expert that a policy or a solver is made of is in the catalogue."""
    made, experts = params.synthesize, catalogue.names(ToolKind.EXPERT)
    named = [("evaluate.policies", name) for name in params.evaluate.policies]
    named += [] if made.writer is None else [("synthesize.writer.solver", made.writer.solver)]
    for key, name in named:
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in experts:
            what = f"no expert named {name.removeprefix(PREFIX)}"
            raise ConfigError(what, where=key, fix=f"one of: {', '.join(experts)}")


def check_reward(params: Params) -> None:
    """Weights are of reward parts, limits on dollars of preferences that exist, and words to branch at the teacher's;
    the reward has its properties for every kind of preference."""
    grpo, made = params.grpo, params.synthesize
    if unknown := unknown_weights(NEUTRAL, grpo):
        fix = "name the weight of a part in orchestra/rewards/parts.py"
        raise ConfigError(f"no reward part has the weight {unknown[0]}", where="grpo.weights", fix=fix)
    kinds = {*WEIGHTS, *WORDS}
    limited = set() if grpo.constraint is None else set(grpo.constraint.usd)
    # Sentences and examples from elsewhere may be of further kinds.
    if made.preferences is None and not made.extra and limited - kinds:
        what = f"no preference is of the kind {min(limited - kinds)}"
        raise ConfigError(what, where="grpo.constraint.usd", fix=f"one of: {', '.join(sorted(kinds))}")
    for word in grpo.branch.words if grpo.branch is not None else ():
        if word.split()[-1] not in {*CHOICES, *choice_words()}:
            near = difflib.get_close_matches(word, CHOICES, 1)
            fix = f"did you mean {near[0]}?" if near else f"one of: {', '.join(CHOICES)}"
            raise ConfigError(f"no thought ends with {word}", where="grpo.branch.words", fix=fix)
    check_preferences(grpo)


def _trained_on(params: Params) -> None:
    """Examples are left beside the watched ones, and some are of a category that GRPO takes; sets from elsewhere may
    add both."""
    made, grpo = params.synthesize, params.grpo
    if made.extra:
        return
    if grpo.eval_examples >= made.train_examples:
        what = f"of {made.train_examples} training examples {grpo.eval_examples} are watched, and none is left"
        raise ConfigError(what, where="grpo.eval_examples", fix="lower it, or raise synthesize.train_examples")
    if grpo.mix and not any(share > 0 and made.mix.get(category, 0) > 0 for category, share in grpo.mix.items()):
        fix = f"give one of these a share: {', '.join(one for one, share in made.mix.items() if share > 0)}"
        raise ConfigError("no training example is of a category in it", where="grpo.mix", fix=fix)


def _evidence(params: Params) -> None:
    """The gate would refuse any candidate for too few examples; sets from elsewhere may add held-out ones."""
    wanted, made = params.promote.min_examples, params.synthesize
    counts = {"evaluate.examples": params.evaluate.examples}
    if not made.extra:
        counts["synthesize.heldout_examples"] = made.heldout_examples
    for key, count in counts.items():
        if count < wanted:
            what = f"the gate wants {wanted} examples, and {key} is {count}"
            raise ConfigError(what, where="promote.min_examples", fix=f"lower it, or raise {key}")
