"""A seed that was measured elsewhere stands in the table as it would in its own run, or is refused with the reason."""

from pathlib import Path

import pytest

from orchestra.config.schema import load_params
from orchestra.errors import DataError
from orchestra.evaluation.claims.arms import BASE, OURS, OUTCOME, SFT
from orchestra.evaluation.claims.measures import SeedResult
from orchestra.evaluation.outcomes import Outcome
from orchestra.evaluation.probes.trials import ProbeResults, Trial
from orchestra.evaluation.report import TRAINED
from tasks.experiments.joined import SeedFile, SeedSetting, completed, load, save, setting

ROOT = Path(__file__).parents[4]
SETTING = SeedSetting(split="test", examples="e", probe_examples=9, recipe="r")


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
    ("part", "value"), [("split", "dev"), ("examples", "x"), ("probe_examples", 8), ("recipe", "x")]
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


def test_training_seeds_share_a_setting_and_other_training_does_not() -> None:
    params = load_params(ROOT / "params.yaml")
    seeded = params.model_copy(
        update={"sft": params.sft.model_copy(update={"seed": 4}), "grpo": params.grpo.model_copy(update={"seed": 4})}
    )
    longer = params.model_copy(update={"grpo": params.grpo.model_copy(update={"steps": params.grpo.steps + 1})})
    first = setting(ROOT, params, "test", ["e0", "e1"], 9)
    assert setting(ROOT, seeded, "test", ["e0", "e1"], 9) == first
    assert setting(ROOT, longer, "test", ["e0", "e1"], 9).recipe != first.recipe
    assert setting(ROOT, params, "test", ["e1", "e0"], 9).examples != first.examples
