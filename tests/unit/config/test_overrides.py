"""--set: checked edits of params.yaml."""

import errno
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.config.overrides import IN_FORCE, apply, effective, in_force, points, undo
from orchestra.config.renamed import REPLACED
from orchestra.config.schema import load_params, parse_params
from orchestra.errors import ConfigError
from orchestra.files.yaml import parse_yaml
from tests.unit.config.test_schema import NUMBERS, at

ROOT = Path(__file__).parents[3]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(shutil.copy(ROOT / "params.yaml", tmp_path))


def test_values_are_written_and_said(file: Path) -> None:
    before = load_params(file).grpo.seed
    assert apply(file, [f"grpo.seed={before + 1}"]) == [f"grpo.seed: {before} → {before + 1}"]
    assert load_params(file).grpo.seed == before + 1


def test_comments_and_the_other_lines_stay(file: Path) -> None:
    before = file.read_text()
    apply(file, ["sft.seed=17"])
    changed = [(a, b) for a, b in zip(before.splitlines(), file.read_text().splitlines(), strict=True) if a != b]
    assert [b.strip() for _, b in changed] == ["seed: 17"]


def test_what_a_link_leads_to_is_edited_and_the_link_stays(file: Path, tmp_path: Path) -> None:
    kept = file.rename(tmp_path / "kept.yaml")
    file.symlink_to("kept.yaml")
    apply(file, ["sft.seed=17"])
    after = kept.read_text()
    assert file.is_symlink() and load_params(kept).sft.seed == 17
    with in_force(tmp_path, ["sft.seed=18"]):
        assert file.is_symlink() and load_params(kept).sft.seed == 18
    assert file.is_symlink() and kept.read_text() == after


def test_a_link_to_where_nothing_can_be_written_is_one_line(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = file.with_name("mine.yaml")
    shutil.move(file, target)
    file.symlink_to(target)

    def denied(path: Path, content: bytes) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("orchestra.files.atomic.write_bytes", denied)
    with pytest.raises(
        ConfigError, match=r"mine\.yaml: cannot be written: Permission denied — .* in place of the link"
    ):
        apply(file, ["sft.seed=17"])


def test_the_same_value_changes_nothing(file: Path) -> None:
    before = file.read_text()
    assert apply(file, [f"sft.seed={load_params(file).sft.seed}"]) == []
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("sft.epoch=3", "no key sft.epoch"),
        ("sft.seed.deep=3", "no key sft.seed.deep"),
        ("nothing=3", "no key nothing"),
        ("=3", "no key"),
        ("sft.epochs", "has no ="),
        ("sft.epochs=three", "sft.epochs"),
        ("sft.epochs=", "sft.epochs"),
        ("sft=3", "sft"),
        ("sft.epochs=[1", "not a YAML value"),
        ("profile=qwen3-8b", "it names a whole file — orchestra run --profile qwen3-8b"),
        (" profile = 'qwen3-8b'", "it names a whole file"),
        ("world.price_date=2020-99-99", "not a YAML value"),
        ("synthesize.mix={arithmetic: 0.5}", "mix adds up"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(file: Path, assignment: str, says: str) -> None:
    before = file.read_text()
    with pytest.raises(ConfigError) as caught:
        apply(file, ["grpo.seed=99", assignment])
    assert says in str(caught.value) and len(str(caught.value).splitlines()) == 1
    assert file.read_text() == before


def test_a_date_is_written_as_the_text_that_dvc_can_keep(file: Path) -> None:
    apply(file, ["world.price_date=2026-05-01", "synthesize.price_dates=[2025-11-15, 2026-05-01]"])
    written = yaml.safe_load(file.read_text())
    assert written["world"]["price_date"] == "2026-05-01"
    assert written["synthesize"]["price_dates"] == ["2025-11-15", "2026-05-01"]
    assert [day.isoformat() for day in load_params(file).synthesize.price_dates] == ["2025-11-15", "2026-05-01"]


def test_for_once_nothing_is_written(file: Path) -> None:
    before = file.read_text()
    assert effective(file, ["synthesize.seed=5"]).synthesize.seed == 5 and file.read_text() == before
    with pytest.raises(ConfigError, match="no key synthesize"):
        effective(file, ["synthesize.sed=5"])


def test_what_a_run_sets_holds_for_that_run_alone(file: Path) -> None:
    before = file.read_text()
    with in_force(file.parent, ["sft.seed=17", "promote.max_cost_usd=null"]) as changed:
        assert [line.split(":")[0] for line in changed] == ["sft.seed", "promote.max_cost_usd"]
        assert load_params(file).sft.seed == 17 and load_params(file).promote.max_cost_usd is None
    assert file.read_text() == before and not (file.parent / IN_FORCE).exists()


def test_what_a_killed_run_set_is_undone_by_the_next(file: Path) -> None:
    before = file.read_text()
    killed = in_force(file.parent, ["sft.seed=17"])
    killed.__enter__()
    with in_force(file.parent, []):
        assert file.read_text() == before


def test_an_empty_value_is_no_null(file: Path) -> None:
    """`--set budget.run_usd=$LIMIT` with an unset variable would take the cap away."""
    before = file.read_text()
    for assignment in ("promote.max_cost_usd=", "promote.max_cost_usd= "):
        with pytest.raises(ConfigError, match=r"has no value — for none, write promote\.max_cost_usd=null"):
            apply(file, [assignment])
    assert file.read_text() == before and apply(file, ["promote.max_cost_usd=null"]) != []


def test_what_a_person_edits_meanwhile_stays(file: Path) -> None:
    old = load_params(file)
    with in_force(file.parent, ["sft.seed=17", "grpo.seed=18"]):
        apply(file, ["grpo.seed=99", "grpo.steps=7"])
    now = load_params(file)
    assert (now.sft.seed, now.grpo.seed, now.grpo.steps) == (old.sft.seed, 99, 7)


@pytest.mark.parametrize("broken", ["<<<<<<< HEAD\n", "grpo: [\n", None])
def test_a_file_that_is_half_edited_or_gone_fails_no_run_and_is_undone_later(
    file: Path, capsys: pytest.CaptureFixture[str], broken: str | None
) -> None:
    before = file.read_text()
    with in_force(file.parent, ["sft.seed=17"]):
        during = file.read_text()
        file.unlink() if broken is None else file.write_text(during + broken)
    assert "stay in params.yaml until the next command: " in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"params\.yaml") as caught:
        undo(file.parent)
    assert len(str(caught.value).splitlines()) == 1
    file.write_text(f"# edited\n{during}")
    undo(file.parent)
    assert file.read_text() == f"# edited\n{before}" and not (file.parent / IN_FORCE).exists()


def test_a_wrong_assignment_leaves_nothing_in_force(file: Path) -> None:
    before = file.read_text()
    with pytest.raises(ConfigError, match=r"sft\.sed"), in_force(file.parent, ["sft.sed=1"]):
        pass
    assert file.read_text() == before


def test_a_key_that_the_file_leaves_out_is_one_of_the_schema(file: Path) -> None:
    before = file.read_text()
    assert apply(file, ["promote.approval=none", "grpo.lora=null"]) == [] and file.read_text() == before
    assert apply(file, ["promote.approval=required"]) == ["promote.approval: none → required"]
    assert apply(file, ["deploy.vllm.device=cpu", "grpo.optimizer=adamw", "grpo.lora.rank=16"])[-1] == (
        "grpo.lora.rank: None → 16"
    )
    held = load_params(file)
    assert (held.promote.approval, held.deploy.vllm.device, held.grpo.lora and held.grpo.lora.rank) == (
        "required", "cpu", 16,
    )  # fmt: skip
    assert set(before.splitlines()) - set(file.read_text().splitlines()) == {"  optimizer: muon"}
    with pytest.raises(ConfigError, match=r"no key promote\.approvall.*did you mean promote\.approval\?"):
        apply(file, ["promote.approvall=required"])
    with pytest.raises(ConfigError, match=r"grpo\.deciding is called grpo\.top_entropy_quantile now — write the new"):
        apply(file, ["grpo.deciding=0.2"])
    for key, instead in REPLACED.items():
        with pytest.raises(ConfigError) as caught:
            apply(file, [f"{key}=1"])
        assert f"{key} is gone; in its place: {instead} — " in str(caught.value)


def test_what_a_run_sets_beyond_the_file_goes_with_that_run(file: Path) -> None:
    before = file.read_text()
    with in_force(file.parent, ["grpo.micro_batch=1", "sft.optimizer=adamw", "sft.lora.rank=8", "sft.lora.alpha=8"]):
        assert load_params(file).sft.lora is not None
        apply(file, ["grpo.learning_rate=0.00002"])
    assert file.read_text() == before.replace("learning_rate: 0.001\n  schedule", "learning_rate: 2.0e-05\n  schedule")


@pytest.mark.parametrize("value", ["0.00005", "1.0e-6", "1.5e-07", "0.0001", "5.0", "1e-4", " 2E-5"])
def test_a_small_number_is_written_as_the_loader_reads_it(file: Path, value: str) -> None:
    apply(file, [f"grpo.learning_rate={value}"])
    assert load_params(file).grpo.learning_rate == float(value)
    held = file.read_text()
    with in_force(file.parent, ["grpo.learning_rate=0.5"]):
        apply(file, ["sft.seed=99"])
    apply(file, ["sft.seed=0"])
    assert file.read_text() == held


def documented() -> Iterator[tuple[str, list[str]]]:
    """Each line of the docs that assigns values, and its assignments."""
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("monitoring/*.md")]:
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            found = [max(one) for one in re.findall(r"""--set (?:'([^']*)'|"([^"]*)"|([^\s`|)'"]+))""", line)]
            if found := [one for one in found if "=" in one and not re.search("…|VALUE", one)]:
                yield f"{page.relative_to(ROOT)}:{number}", found


def test_every_documented_assignment_is_taken() -> None:
    lines = dict(documented())
    assert len(lines) > 15
    for where, assignments in lines.items():
        for point in points(assignments):
            try:
                effective(ROOT / "params.yaml", point)
            except ConfigError as error:
                pytest.fail(f"{where}: {error}")


def test_every_combination_of_values() -> None:
    assert points(["a.b=1,2", "c=[1,2],[3]"]) == [
        ["a.b=1", "c=[1,2]"],
        ["a.b=1", "c=[3]"],
        ["a.b=2", "c=[1,2]"],
        ["a.b=2", "c=[3]"],
    ]
    nested = "synthesize.extra=[{file: a.jsonl},{file: b.jsonl, split: train}]"
    assert points([nested]) == [[nested]]
    assert points([f"{nested},[]"]) == [[nested], ["synthesize.extra=[]"]]
    with pytest.raises(ConfigError, match="has no ="):
        points(["a"])


DOTTED = [".".join(map(str, path)) for path in NUMBERS if all(isinstance(part, str) for part in path)]
TYPELESS = st.one_of(
    st.sampled_from(["true", "false", "True", "yes", "no", "on", "off", "-0", "-0.0", "-0.0e5", "0x1F", "0o17", "017"]),
    st.sampled_from(["12:30", "1:59:59", "1_000", "1__0.5", "'1'", '"0.5"', "1,5", "1 2", "٣", "½", "1d", "1e", "ten"]),
    st.sampled_from([".inf", "-.inf", ".nan", "1.0e+999", "-1.0e-999", "[1, true]", "{a: 1}", "!!int 5", "!!float 1"]),
    st.sampled_from(["2026-01-01", "2026-01-01 10:00:00", "''", "~x", "*a", "|", "1\n2", "\x00", "\ud800"]),
)


@settings(max_examples=400, deadline=None)
@given(path=st.sampled_from(NUMBERS), value=TYPELESS)
def test_a_number_is_set_by_a_plain_number_only(path: tuple[Any, ...], value: str) -> None:
    with pytest.raises((ConfigError, ValueError)) as caught:
        parse_params(at(path, parse_yaml(value)))
    assert str(caught.value)


@settings(max_examples=25, deadline=None)
@given(dotted=st.sampled_from(DOTTED), value=TYPELESS)
def test_set_says_so_in_one_line(dotted: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        effective(ROOT / "params.yaml", [f"{dotted}={value}"])
    assert len(str(caught.value).splitlines()) == 1


@settings(max_examples=25, deadline=None)
@given(dotted=st.sampled_from(DOTTED), value=st.floats(0, 1) | st.integers(0, 3))
def test_an_assignment_changes_its_key_and_no_other(dotted: str, value: float) -> None:
    """What is set is what is held, type and all, and every other key is as it was."""
    text = repr(value) if "e" not in repr(value) else f"{value:.17f}"
    try:
        held = effective(ROOT / "params.yaml", [f"{dotted}={text}"])
    except ConfigError:
        return
    assert held == parse_params(at(tuple(dotted.split(".")), float(text) if isinstance(value, float) else value))


@pytest.mark.parametrize("name", ["on", "off", "yes", "no", "null", "12", "1.5"])
def test_a_text_that_looks_otherwise_is_written_in_quotes(file: Path, name: str) -> None:
    apply(file, [f"world.catalogue='{name}'"])
    assert load_params(file).world.catalogue == name


def test_a_file_that_shares_values_is_not_changed_in_two_places(file: Path) -> None:
    shared = file.read_text().replace("  epochs: 1\n", "  epochs: &one 1\n", 1)
    shared = re.sub(r"(\ngrpo:\n)  seed: \d+\n", r"\1  seed: *one\n", shared, count=1)
    file.write_text(shared)
    apply(file, ["sft.epochs=2"])
    assert (load_params(file).sft.epochs, load_params(file).grpo.seed) == (2, 1)
