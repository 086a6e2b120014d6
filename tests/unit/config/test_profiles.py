"""Profiles: one is in force as params.yaml, and each keeps the user's edits of it."""

import shutil
from decimal import Decimal
from pathlib import Path

import pytest

from orchestra.config.overrides import apply
from orchestra.config.profiles import names, profile_file, put_in_force
from orchestra.config.schema import load_params
from orchestra.errors import ConfigError
from orchestra.synthesis.dataset.generate import generate
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.tools.rate_limits import ProviderLimits
from orchestra.tools.toolkit import Toolkit
from orchestra.tools.worst_case import worst_usd
from orchestra.types import Category, ToolKind

ROOT = Path(__file__).parents[3]
SHIPPED = ["qwen3-0.6b", "qwen3-8b", "qwen3-8b-lora"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    shutil.copytree(ROOT / "models/recipes", tmp_path / "models/recipes")
    return tmp_path


def test_a_profile_comes_into_force_and_the_edits_of_the_other_come_back(root: Path) -> None:
    apply(root / "params.yaml", ["grpo.seed=17"])
    edited = (root / "params.yaml").read_text()
    said = put_in_force(root, "qwen3-0.6b")
    assert (root / "params.yaml").read_bytes() == (root / "models/recipes/qwen3-0.6b/params.yaml").read_bytes()
    assert "embedded is kept in params/embedded.yaml" in said[0] and "profile qwen3-0.6b, from" in said[1]
    apply(root / "params.yaml", ["grpo.steps=3"])
    put_in_force(root, "embedded")
    assert (root / "params.yaml").read_text() == edited
    assert put_in_force(root, "qwen3-0.6b")[1].endswith("from params/qwen3-0.6b.yaml")
    assert load_params(root / "params.yaml").grpo.steps == 3


def test_a_profile_without_edits_leaves_no_copy_and_gets_what_is_shipped_later(root: Path) -> None:
    put_in_force(root, "qwen3-8b")
    put_in_force(root, "embedded")
    assert not (root / "params/qwen3-8b.yaml").exists()
    apply(root / "models/recipes/qwen3-8b/params.yaml", ["grpo.steps=7"])
    put_in_force(root, "qwen3-8b")
    assert load_params(root / "params.yaml").grpo.steps == 7


def test_the_profile_in_force_changes_nothing(root: Path) -> None:
    assert put_in_force(root, "embedded") == []
    assert not (root / "params").exists() and profile_file(root, "embedded") == root / "params.yaml"


def test_a_file_of_the_users_own_is_a_profile(root: Path) -> None:
    (root / "params").mkdir()
    text = (root / "params.yaml").read_text().replace("profile: embedded", "profile: mine")
    (root / "params/mine.yaml").write_text(text)
    assert names(root) == ["embedded", "mine", *SHIPPED]
    put_in_force(root, "mine")
    assert load_params(root / "params.yaml").profile == "mine"


def test_a_link_stays_but_no_profile_is_written_over_another(root: Path, tmp_path: Path) -> None:
    file, mine = root / "params.yaml", tmp_path / "mine.yaml"
    shutil.move(file, mine)
    file.symlink_to(mine)
    put_in_force(root, "qwen3-8b")
    assert file.is_symlink() and load_params(mine).profile == "qwen3-8b"
    shipped = root / "models/recipes/qwen3-8b/params.yaml"
    file.unlink()
    file.symlink_to(shipped)
    put_in_force(root, "embedded")
    assert load_params(file).profile == "embedded" and load_params(shipped).profile == "qwen3-8b"


@pytest.mark.parametrize("spoil", ["grpo: {", "profile: another"])
def test_a_profile_that_is_not_valid_changes_nothing(root: Path, spoil: str) -> None:
    before, file = (root / "params.yaml").read_bytes(), root / "models/recipes/qwen3-8b/params.yaml"
    file.write_text(file.read_text().replace("profile: qwen3-8b", spoil))
    with pytest.raises(ConfigError):
        put_in_force(root, "qwen3-8b")
    assert (root / "params.yaml").read_bytes() == before and not (root / "params").exists()


def test_an_unknown_profile_is_one_line_with_those_there_are(root: Path) -> None:
    with pytest.raises(ConfigError, match="no profile qwen4 — one of: embedded, qwen3-0") as caught:
        put_in_force(root, "qwen4")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_names_what_exists(name: str) -> None:
    params = load_params(ROOT / f"models/recipes/{name}/params.yaml")
    world = params.world
    catalogue = Catalogue.load(ROOT / world.catalogue, ROOT / world.prices, world.price_date)
    assert params.profile == name and (ROOT / params.model.recipe / "config.json").is_file()
    assert all((ROOT / "data/domains" / domain / "tools.yaml").is_file() for domain in world.domains)
    assert params.model.base is not None and params.model.revision is not None
    assert catalogue.all_simulated == (name == "qwen3-0.6b")
    assert params.rollout.max_turns >= 8 and params.synthesize.evolved_share > 0


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3-8b-lora"])
def test_the_cap_of_an_episode_allows_a_call_of_the_most_expensive_expert(name: str) -> None:
    """A call that the cap forbids ends its episode as wrong, so that training would learn what the cap says."""
    params = load_params(ROOT / f"models/recipes/{name}/params.yaml")
    catalogue = Catalogue.load(ROOT / params.world.catalogue, ROOT / params.world.prices, params.world.price_date)
    attempts, most, cap = ProviderLimits().attempts, params.synthesize.price_spread, params.rollout.budget_usd
    worst = {
        expert: worst_usd(catalogue.spec(expert, price_factor=most), catalogue.entry(expert), 8000, attempts)
        for expert in catalogue.names(ToolKind.EXPERT)
    }
    assert cap is not None and max(worst.values()) < Decimal(str(cap)) < 3 * max(worst.values())


@pytest.mark.parametrize("file", ["params.yaml", *(f"models/recipes/{name}/params.yaml" for name in SHIPPED)])
def test_a_profile_shows_when_to_answer_alone_and_when_to_ask_the_user(file: str) -> None:
    params = load_params(ROOT / file)
    smaller = params.synthesize.model_copy(update={"train_examples": 256, "heldout_examples": 64})
    params = params.model_copy(update={"synthesize": smaller})
    for examples in generate(params, Toolkit.from_params(params, ROOT)).examples.values():
        assert any(example.category is Category.DIRECT for example in examples)
        assert any(example.user is not None for example in examples)
