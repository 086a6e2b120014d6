"""Everything that params.yaml names is looked for before the first stage, and what is missing is one line."""

import copy
import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.config.schema import load_params, parse_params
from orchestra.domains.engine import load_domain
from orchestra.errors import ConfigError, OrchestraError
from tasks.platform.named import check_named

ROOT = Path(__file__).parents[4]
GOOD: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
JUDGE = {"model": "m", "price": "openai/gpt-5", "rubric": "frames"}
WRITER = {"model": "m", "price": "openai/gpt-5", "cap_usd": 1.0}


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """No test here edits a domain, and reading the ten that are shipped takes most of a check."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.platform.named.load_domain", functools.cache(load_domain))
        yield


def edited(**changes: Any) -> dict[str, Any]:
    raw = copy.deepcopy(GOOD)
    for key, value in changes.items():
        section, _, name = key.partition("__")
        raw[section][name] = value
    return raw


def test_the_shipped_parameters_name_what_exists() -> None:
    check_named(load_params(ROOT / "params.yaml"), ROOT, promotes=True)


@pytest.mark.parametrize("profile", ["qwen3-8b", "qwen3-8b-lora", "qwen3-0.6b"])
def test_a_base_of_the_hub_is_wanted_now_where_it_cannot_be_downloaded(profile: str) -> None:
    params = load_params(ROOT / f"models/recipes/{profile}/params.yaml")
    if params.synthesize.extra:
        with pytest.raises(OrchestraError, match=r"synthesize\.extra: .* is not there"):
            check_named(params, ROOT)
    params = params.model_copy(update={"synthesize": params.synthesize.model_copy(update={"extra": []})})
    with pytest.raises(OrchestraError, match="is not on this machine, and downloads are off"):
        check_named(params, ROOT)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"world__domains": ["nowhere"]}, "world.domains: no domain named nowhere — one of: .*ecommerce"),
        ({"world__domains": ["ecommerce", "ecommerce"]}, "world.domains: ecommerce is named twice"),
        ({"world__domains": []}, "synthesize.mix: lookups and changes need a domain"),
        ({"world__catalogue": "data/catalogue/none.yaml"}, "world.catalogue: data/catalogue/none.yaml is not there"),
        ({"world__catalogue": "data/catalogue"}, "world.catalogue: data/catalogue is not there"),
        ({"world__catalogue": "README.md"}, "README.md"),
        ({"world__catalogue": "models/base/embedded/model.safetensors"}, "model.safetensors"),
        ({"world__prices": "data/catalogue/tools.yaml"}, "tools.yaml"),
        ({"world__price_date": "1999-01-01"}, "no price for .* on 1999-01-01"),
        ({"world__judge": JUDGE | {"price": "nobody/nothing"}}, "no price for nobody/nothing"),
        ({"world__judge": JUDGE | {"rubric": "kind"}}, "no rubric named kind"),
        (
            {"grpo__branch": {"at": "word", "words": ["cheapest", "strongst"]}},
            r"grpo\.branch\.words: no thought ends with strongst — did you mean strongest\?",
        ),
        ({"grpo__branch": {"at": "word", "words": ["answer", "zzz"]}}, "no thought ends with zzz — one of: cheapest, "),
        ({"synthesize__price_dates": ["1999-01-01"]}, "no price for .* on 1999-01-01"),
        ({"synthesize__extra": [{"file": "data/extra/none.jsonl"}]}, "synthesize.extra: data/extra/none.jsonl is not"),
        ({"synthesize__preferences": "data/extra/none.jsonl"}, "synthesize.preferences: .* is not there"),
        ({"synthesize__generator": "llm", "synthesize__writer": WRITER | {"price": "a/b"}}, "no price for a/b"),
        ({"synthesize__writer": WRITER | {"solver": "chat:nobody"}}, "writer.solver: no expert named nobody"),
        ({"model__recipe": "models/recipes/none"}, "model.recipe: no folder models/recipes/none"),
        ({"model__recipe": "models/recipes/deepspeed", "model__base": None}, "deepspeed has no config.json"),
        ({"model__base": "models/base/none"}, "models/base/none: no such folder"),
        ({"model__base": "models/recipes/embedded"}, "no safetensors weights"),
        ({"model__base": "owner/name"}, "not pinned to a commit"),
        (
            {"grpo__difficulty_file": "data/extra/none.jsonl", "grpo__difficulty_range": [0, 1]},
            "grpo.difficulty_file: .* is not there",
        ),
        ({"grpo__eval_examples": 4000}, "grpo.eval_examples: of 4000 training examples 4000 are watched, and none is"),
        (
            {"grpo__mix": {"topic": 0.0, "lookup": 1.0}, "synthesize__mix": {"fact": 1.0}},
            "grpo.mix: no training example is of a category in it — give one of these a share: fact",
        ),
        ({"grpo__weights": {"brevity": 0.1}}, "grpo.weights: no reward part has the weight brevity"),
        ({"grpo__constraint": {"usd": {"cheep": 0.1}}}, "no preference is of the kind cheep — one of: .*cheap"),
        ({"evaluate__policies": ["best"]}, "evaluate.policies: no policy named best"),
        ({"evaluate__policies": ["chat:nobody"]}, "evaluate.policies: no expert named nobody"),
        ({"evaluate__baselines": ["always_best"]}, "evaluate.baselines: no baseline named always_best"),
        ({"evaluate__baselines": ["knn_router@far"]}, "no baseline named knn_router@far"),
        ({"evaluate__baselines": ["random"]}, "promote.objective: utility is in units of always_strongest, .* — add"),
        ({"evaluate__wording": "data/none.jsonl"}, "evaluate.wording: data/none.jsonl is not there"),
        ({"evaluate__wording": "data/safety/injections.yaml"}, "evaluate.wording"),
        ({"evaluate__safety": "tests/data/wording/wishes.jsonl"}, "wishes.jsonl"),
        ({"deploy__tls_certificate": "a.pem", "deploy__tls_key": "b.pem"}, "deploy.tls_certificate: a.pem is"),
    ],
)  # fmt: skip
def test_what_is_missing_is_one_line_with_its_key(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(OrchestraError, match=says) as caught:
        check_named(parse_params(edited(**changes)), ROOT)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"promote__min_examples": 99999}, "the gate wants 99999 examples, and evaluate.examples is 1024"),
        ({"synthesize__heldout_examples": 399}, "the gate wants 400 examples, and synthesize.heldout_examples is 399"),
    ],
)
def test_a_gate_that_no_candidate_can_pass_is_told_before_the_training(changes: dict[str, Any], says: str) -> None:
    params = parse_params(edited(**changes))
    with pytest.raises(ConfigError, match=f"promote.min_examples: {says} — lower it, or raise"):
        check_named(params, ROOT, promotes=True)
    check_named(params, ROOT)  # A run that ends before the gate needs no more.


def test_what_is_not_measured_as_it_serves_is_told_before_the_training() -> None:
    params = parse_params(edited(evaluate__by_rule=True))
    with pytest.raises(ConfigError, match=r"^evaluate\.by_rule: a rule overwrites .* orchestra run --until evaluate$"):
        check_named(params, ROOT, promotes=True)
    check_named(params, ROOT)


def test_what_a_model_writes_in_the_flow_may_come_later() -> None:
    writer = WRITER | {"domains": {"bakery": "a bakery"}}
    params = {"world__domains": ["ecommerce", "bakery"], "synthesize__writer": writer}
    check_named(parse_params(edited(**params, synthesize__generator="both")), ROOT)
    with pytest.raises(ConfigError, match="no domain named bakery"):
        check_named(parse_params(edited(**params)), ROOT)


def test_a_base_that_is_trained_from_nothing_needs_no_folder() -> None:
    check_named(parse_params(edited(model__base=None)), ROOT)


def small_catalogue(folder: Path) -> None:
    """The shipped one with a few tools and their prices alone: it is read in every case."""
    folder.mkdir(parents=True)
    shipped, prices = (
        yaml.load((ROOT / f"data/catalogue/{name}.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
        for name in ("tools", "prices")
    )
    shipped["tools"] = dict(list(shipped["tools"].items())[:4])
    used = {tool["price"] for tool in shipped["tools"].values()}
    used |= {shipped["policy_price"], shipped["domain_tool"]["price"]}
    prices["prices"] = [row for row in prices["prices"] if f"{row['provider']}/{row['model']}" in used]
    for name, content in (("tools", shipped), ("prices", prices)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the parameters may name, and much that they may not: folders, bytes, texts, links, an empty file."""
    root = tmp_path_factory.mktemp("workspace")
    small_catalogue(root / "data/catalogue")
    for name in ("data/domains/mock", "data/safety", "models/recipes/embedded", "tests/data/wording"):
        shutil.copytree(ROOT / name, root / name)
    (root / "models/base/embedded").mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(ROOT / "models/base/embedded" / name, root / "models/base/embedded" / name)
    (root / "empty").touch()
    (root / "bytes").write_bytes(bytes(range(256)))
    (root / "list.yaml").write_text("[1, 2]")
    (root / "data/domains/hollow").mkdir()
    (root / "data/domains/link").symlink_to(root / "data/domains/mock")
    (root / "circle").symlink_to(root / "circle")
    return root


NAMES = [
    "mock", "hollow", "link", "ecommerce", "data", "empty", "bytes", "list.yaml", "circle", "data/catalogue",
    "data/catalogue/tools.yaml", "data/catalogue/prices.yaml", "data/safety/injections.yaml", "models/base/embedded",
    "tests/data/wording/wishes.jsonl", "models/recipes/embedded", "models/base/embedded/config.json", "grpo", "sft",
    "chat:mock", "random", "oracle", "cascade@0.5", "random@1", "always_strongest", "1999-01-01", "2025-11-15",
]  # fmt: skip
KEYS = [
    "world__catalogue", "world__prices", "world__price_date", "model__recipe", "model__base", "evaluate__wording",
    "evaluate__safety", "world__domains", "evaluate__policies", "evaluate__baselines",
]  # fmt: skip
LISTS = ("world__domains", "evaluate__policies", "evaluate__baselines")
names = st.sampled_from(NAMES) | st.from_regex(r"[a-z0-9][a-z0-9._/@-]{0,12}", fullmatch=True)
changes = st.dictionaries(st.sampled_from(KEYS), st.lists(names, min_size=1, max_size=3), min_size=1, max_size=2)


def assert_named(changed: dict[str, list[str]], root: Path) -> None:
    """Taken, or refused in one line; never anything else."""
    values = {key: value if key in LISTS else value[0] for key, value in changed.items()}
    try:
        check_named(parse_params(edited(**{"world__domains": ["mock"], **values})), root)
    except OrchestraError as error:
        assert len(str(error).splitlines()) == 1


@settings(max_examples=100)
@given(changes)
def test_whatever_is_named_is_taken_or_refused_in_one_line(workspace: Path, changed: dict[str, list[str]]) -> None:
    assert_named(changed, workspace)


@pytest.mark.slow
@settings(max_examples=3000)
@given(changes)
def test_thousands_of_names_are_taken_or_refused(workspace: Path, changed: dict[str, list[str]]) -> None:
    assert_named(changed, workspace)
