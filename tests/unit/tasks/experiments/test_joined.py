"""A seed that was measured elsewhere stands in the table as it would in its own run, or is refused with the reason."""

from pathlib import Path

import pytest

from orchestra.config.schema import Params, load_params
from orchestra.errors import DataError
from orchestra.evaluation.claims.arms import BASE, OURS, OUTCOME, SFT
from orchestra.evaluation.claims.measures import SeedResult
from orchestra.evaluation.outcomes import Outcome
from orchestra.evaluation.probes.trials import ProbeResults, Trial
from orchestra.evaluation.report import TRAINED
from tasks.experiments.joined import SeedFile, SeedSetting, completed, load, save, setting
from tests.support.worlds import example

ROOT = Path(__file__).parents[4]
SETTING = SeedSetting(split="test", examples="e", training_data="t", world="w", probe_examples=9, recipe="r")


def outcomes(cost_usd: float) -> tuple[Outcome, ...]:
    return tuple(
        Outcome(example_id=f"e{n}", solved=n % 2 == 0, cost_usd=cost_usd, latency_s=1.0, calls={"gpt-5": n})
        for n in range(3)
    )


RULES, UNTRAINED = {"random": outcomes(0.5)}, {BASE.name: outcomes(0.25)}
PROBES = ProbeResults(
    trials=(Trial(probe="price", variant="low", example_id="e0", tool="gpt-5", outcome=outcomes(1)[0]),)
)


def arms(seed: int = 3) -> dict[str, SeedResult]:
    """As a run has them."""
    own = {SFT.name: outcomes(0.1), OUTCOME.name: outcomes(0.2), OURS.name: outcomes(0.3)}
    beside = {**UNTRAINED, SFT.name: own[SFT.name], OUTCOME.name: own[OUTCOME.name]}
    return {
        name: SeedResult(
            seed=seed, minutes=2.0, dollars=7.0, probes=PROBES,
            outcomes={**RULES, **(beside if name == OURS.name else {}), TRAINED: rows},
        )
        for name, rows in own.items()
    }  # fmt: skip


def saved(folder: Path) -> Path:
    return save(folder, SeedFile(setting=SETTING, commit="c" * 40, seed=3, arms=arms()))


def test_a_seed_comes_back_as_its_own_run_had_it(tmp_path: Path) -> None:
    file = saved(tmp_path)
    assert file == tmp_path / "seeds/test-3.json.gz"
    found = load(file, SETTING, [0, 1])
    assert completed(found, RULES, UNTRAINED) == arms() and list(found.arms) == list(arms())
    again = file.read_bytes()
    assert saved(tmp_path).read_bytes() == again, "the same results make the same file"
    assert all(set(one.outcomes) == {TRAINED} for one in found.arms.values()), "rules are not kept"


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("split", "dev"),
        ("examples", "x"),
        ("training_data", "x"),
        ("world", "x"),
        ("probe_examples", 8),
        ("recipe", "x"),
    ],
)
def test_a_seed_of_another_setting_is_refused_by_name(tmp_path: Path, part: str, value: object) -> None:
    with pytest.raises(DataError, match=part.replace("_", " ")):
        load(saved(tmp_path), SETTING.model_copy(update={part: value}), [])


def test_a_seed_stands_in_a_table_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="seed 3 is there already"):
        load(saved(tmp_path), SETTING, [3])


@pytest.mark.parametrize("content", [b"", b"not gzip", "cut"])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes | str) -> None:
    file = saved(tmp_path)
    file.write_bytes(file.read_bytes()[:-20] if isinstance(content, str) else content)
    with pytest.raises(DataError, match="not the result of a seed"):
        load(file, SETTING, [])
    with pytest.raises(DataError, match="not the result of a seed"):
        load(tmp_path / "missing", SETTING, [])


def test_a_seed_of_before_the_world_was_kept_is_refused_by_name(tmp_path: Path) -> None:
    older = SETTING.model_dump_json(exclude={"training_data", "world"})
    file = save(
        tmp_path, SeedFile(setting=SeedSetting.model_validate_json(older), commit="c" * 40, seed=3, arms=arms())
    )
    with pytest.raises(DataError, match="another training data, world"):
        load(file, SETTING, [])


PARAMS = load_params(ROOT / "params.yaml")


def changed(section: str, **changes: object) -> Params:
    return PARAMS.model_copy(update={section: getattr(PARAMS, section).model_copy(update=changes)})


@pytest.fixture
def training(tmp_path: Path) -> Path:
    file = tmp_path / "train.jsonl"
    file.write_text("one")
    return file


def test_training_seeds_share_a_setting_and_other_training_does_not(training: Path) -> None:
    def of(params: Params) -> SeedSetting:
        return setting(ROOT, params, "test", [example("e0"), example("e1")], training, 9)

    first = of(PARAMS)
    assert of(changed("sft", seed=4)) == of(changed("grpo", seed=4)) == first
    assert of(changed("grpo", steps=PARAMS.grpo.steps + 1)).recipe != first.recipe
    training.write_text("another")
    assert of(PARAMS).training_data != first.training_data


def test_examples_of_the_same_names_are_not_the_same_examples(training: Path) -> None:
    one, two = example("e0"), example("e1")
    asked = one.model_copy(update={"instruction": "another request"})
    found = {
        setting(ROOT, PARAMS, "test", measured, training, 9).examples
        for measured in ([one, two], [two, one], [asked, two])
    }
    assert len(found) == 3


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("synthesize", {"seed": 8}),
        ("synthesize", {"price_spread": 1.0}),
        ("world", {"domains": ["ecommerce"]}),
        ("world", {"price_date": "2026-08-06"}),
        ("evaluate", {"wording": None}),
        ("evaluate", {"seed": 9}),
    ],
)
def test_another_world_is_another_setting(section: str, changes: dict[str, object], training: Path) -> None:
    ours, other = (
        setting(ROOT, one, "heldout", [example("e0")], training, 9) for one in (PARAMS, changed(section, **changes))
    )
    assert ours.world != other.world and ours.recipe == other.recipe
