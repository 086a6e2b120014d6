"""Examples from elsewhere in a set: filtered like the generated ones, spread among them, and validated with them."""

import itertools
import json
import random
import shutil
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from orchestra.accounting.ledger import total
from orchestra.cli.app import app
from orchestra.config.retraining import BudgetLimits
from orchestra.config.schema import Params, load_params, parse_params
from orchestra.errors import BudgetError, ConfigError, DataError
from orchestra.files.examples import read_examples
from orchestra.files.jsonl import read_jsonl, read_lines, write_jsonl
from orchestra.provenance import GENERATOR
from orchestra.synthesis.dataset.shards import dataset_fingerprint
from orchestra.synthesis.dataset.workers import synthesize
from orchestra.synthesis.imports.answers import wrong_answers
from orchestra.synthesis.imports.intake import beside
from orchestra.tools.catalogue.catalogue import Catalogue
from orchestra.types import SPLITS, Category, Charge, Example, Verifier
from tests.support.endpoint import answer, serving
from tests.support.worlds import ROOT, example

REAL = {
    "catalogue": "data/catalogue/real.yaml", "prices": "data/catalogue/prices.yaml", "price_date": "2026-08-06",
}  # fmt: skip


UNKNOWN = Verifier(kind="exact", answer="Tesk")


def workspace(root: Path, domains: list[str], world: Mapping[str, str] | None = None, **section: Any) -> Params:
    """A project of its own with these settings of synthesize, and nothing made yet."""
    raw = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    raw["world"] |= {"domains": domains, **(world or {})}
    raw["synthesize"] |= section
    raw["validate"]["max_quarantined"] = 0.0
    (root / "params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    for part in ("catalogue", *(f"domains/{name}" for name in domains)):
        shutil.copytree(ROOT / "data" / part, root / "data" / part)
    for name in ("data/licences.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, root / name)
    (root / "data/extra").mkdir()
    return load_params(root / "params.yaml")


def thoughts(file: Path, count: int) -> None:
    """Questions in the published schema of GeneralThought, with short, numeric and one-letter answers."""
    answers = ["$\\boxed{120}$", "Gravity.", "B", "Yes", "Marie Kormo", "0.25"]
    rows = [
        {
            "question_id": str(number),
            "question": f"What does the made-up register of Kelmin hold at place {number}?",
            "reference_answer": answers[number % len(answers)],
            "prev_messages": None,
            "task": ["Mathematics", None, "Physics of Orbits"][number % 3],
            "question_license": "MIT",
            "question_source": "Invented/Sums",
        }
        for number in range(count)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def orchestra(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["data", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_evolved_and_imported_examples_come_through_both_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real stages, from a file in GeneralThought's schema to data/validated."""
    from tasks import synthesize as synthesize_stage
    from tasks import validate as validate_stage
    from tasks.platform.stage import Stage

    extra = [{"file": "data/extra/gt.jsonl", "split": "train"}]
    mix = {"topic": 0.4, "lookup": 0.3, "change": 0.3}
    workspace(tmp_path, ["ecommerce"], mix=mix, train_examples=60, heldout_examples=20, evolved_share=0.4, extra=extra)
    monkeypatch.chdir(tmp_path)
    thoughts(tmp_path / "gt.jsonl", 30)
    assert "examples: 30" in orchestra("import", "gt.jsonl", "--format", "general-thought", "--to", extra[0]["file"])
    synthesize_stage.main(Stage.open("synthesize", tmp_path))
    card = json.loads((tmp_path / "data/generated/card.json").read_text(encoding="utf-8"))
    taken = card["extra"][extra[0]["file"]]
    assert taken["examples"] >= 20 and taken["split"] == "train" and taken["licences"] == {"MIT": taken["examples"]}
    assert taken["examples"] + sum(sum(n.values()) for n in taken["refused"].values()) == 30
    assert set(taken["refused"]) <= {"no expert of the toolbox knows the answer"}
    assert card["evolved"] == {"train": 14, "heldout": 4} and card["with_a_user"]["train"] > 0
    said = capsys.readouterr().out
    assert f"data/extra/gt.jsonl: {taken['examples']} train examples" in said
    assert f"{60 + taken['examples']} training and 20 held-out examples" in said, "as many as the files have"
    validate_stage.main(Stage.open("validate", tmp_path))
    found = {split: read_examples(tmp_path / f"data/validated/{split}.jsonl") for split in SPLITS}
    assert {split: len(examples) for split, examples in found.items()} == {
        "train": 60 + taken["examples"],
        "heldout": 20,
    }
    for split, examples in found.items():
        harder = [one for one in examples if one.provenance.generator == GENERATOR and one.provenance.parent]
        assert len(harder) == card["evolved"][split]
        ids = {one.id for one in examples}
        assert all(set(str(one.provenance.parent).split("+")) <= ids for one in harder)
    imported = [n for n, one in enumerate(found["train"]) if one.provenance.source.startswith("GeneralThought")]
    assert len(imported) == taken["examples"] and {one.user is None for one in found["train"]} == {True, False}
    # Spread among the others: whatever is watched has its share of them.
    assert imported[0] < 6 and imported[-1] >= len(found["train"]) - 6
    assert max(b - a for a, b in itertools.pairwise(imported)) <= 1 + -(-60 // taken["examples"])


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Params]:
    """A set without domains, made in no time."""
    yield workspace(
        tmp_path, [], mix={"arithmetic": 1.0}, train_examples=12, heldout_examples=4,
        extra=[{"file": "data/extra/a.jsonl"}, {"file": "data/extra/b.jsonl", "split": "heldout"}],
    )  # fmt: skip


def sums(*names: str, **update: Any) -> list[Example]:
    """Right answers to sums that no set has, each about itself."""
    call = [{"name": "calculator", "arguments": {"expression": "37*24"}}]
    return [
        example(name, instruction=f"what is 37*24 for {name}?", golden_calls=call).model_copy(
            update={"entities": (name,), **update}
        )
        for name in names
    ]


def made(root: Path, params: Params, say: Any = lambda _: None, **options: Any) -> dict[str, Any]:
    return synthesize(params, root, root / "set", say=say, **options)


def test_each_reason_is_said_and_written(tmp_path: Path, small: Params) -> None:
    good, twin = sums("x1", "x2")
    bad = good.provenance.model_copy(update={"licence": "secret"})
    a = [
        # Nothing is remembered of what the gate refuses: the next one asks the same.
        *sums("x5", instruction=good.instruction, entities=good.entities, provenance=bad),
        good,
        twin.model_copy(update={"id": "train-000003"}),
        *sums("x3", instruction=good.instruction.upper()),
        *sums("x4", entities=("held",)),
        *sums("x6", verifier=good.verifier.model_copy(update={"kind": "judge"})),
        *sums("x7", verifier=good.verifier.model_copy(update={"answer": "889"})),
        *sums("x8", kind="domain", domain="toolscale-finance"),
    ]
    write_jsonl(tmp_path / "data/extra/a.jsonl", a)
    write_jsonl(tmp_path / "data/extra/b.jsonl", sums("h1", entities=("held",)))
    said: list[str] = []
    card = made(tmp_path, small, said.append)["extra"]
    assert {why for why in card["data/extra/a.jsonl"]["refused"]} == {
        "another example has its id",
        "asked before",
        "what it asks or is about is in the heldout set",
        "the licence secret is not on the list",
        "only a judge can check its answer, and none is configured",
        "the answer is not in the last observation",
        "the domain toolscale-finance is not in world.domains: put its folder into data/domains and name it there",
    }
    assert [line for line in said if line.startswith("data/extra/a.jsonl: 1 train examples, 7 refused: ")]
    rows = [json.loads(line) for line in read_lines(tmp_path / "set/refused.jsonl")]
    assert {row["row"] for row in rows} >= {"train-000003", "x3", "x4", "x6", "x7", "x8"} and len(rows) == 7
    sets = {split: read_examples(tmp_path / f"set/{split}.jsonl") for split in SPLITS}
    assert [len(sets[split]) for split in SPLITS] == [13, 5]
    assert good in sets["train"] and sets["heldout"].count(sums("h1", entities=("held",))[0]) == 1


def test_any_number_of_shards_is_joined_in_the_same_way(tmp_path: Path, small: Params) -> None:
    write_jsonl(tmp_path / "data/extra/a.jsonl", sums("x1", "x2", "x3"))
    write_jsonl(tmp_path / "data/extra/b.jsonl", sums("h1"))
    made(tmp_path, small, shard_size=8)
    places = [n for n, one in enumerate(read_examples(tmp_path / "set/train.jsonl")) if one.id.startswith("x")]
    assert places == [4, 9, 14]
    before = [(tmp_path / f"set/{split}.jsonl").read_bytes() for split in SPLITS]
    made(tmp_path, small, shard_size=8)
    assert [(tmp_path / f"set/{split}.jsonl").read_bytes() for split in SPLITS] == before


def test_a_file_that_gives_nothing_or_is_missing_stops_the_stage(tmp_path: Path, small: Params) -> None:
    with pytest.raises(ConfigError, match=r"data/extra/a.jsonl: no such file — put it there \(orchestra data import"):
        made(tmp_path, small)
    write_jsonl(tmp_path / "data/extra/a.jsonl", sums("x1", kind="domain", domain="toolscale-finance"))
    write_jsonl(tmp_path / "data/extra/b.jsonl", sums("h1"))
    with pytest.raises(DataError, match=r"a.jsonl: nothing of it can be used, 1 refused: the domain toolscale-finance"):
        made(tmp_path, small)
    assert not (tmp_path / "set").exists()
    write_jsonl(tmp_path / "data/extra/a.jsonl", sums("x1", category=Category.TOPIC, topic="math", verifier=UNKNOWN))
    with pytest.raises(DataError, match=r"has heard of the question \(1\) — put a.answers.jsonl, which"):
        made(tmp_path, small)
    (tmp_path / "data/extra/b.jsonl").write_text('{"id": "x"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"b.jsonl:1: field kind"):
        made(tmp_path, small)


def test_the_fingerprint_is_over_extra_files_and_what_is_beside_them(tmp_path: Path, small: Params) -> None:
    for name in ("a", "b"):
        write_jsonl(tmp_path / f"data/extra/{name}.jsonl", sums(name))
    prints = [dataset_fingerprint(small, tmp_path)]
    write_jsonl(tmp_path / "data/extra/a.jsonl", sums("a", "c"))
    prints.append(dataset_fingerprint(small, tmp_path))
    (tmp_path / "data/extra/a.answers.jsonl").touch()
    prints.append(dataset_fingerprint(small, tmp_path))
    assert len(set(prints)) == 3


def test_records_beside_a_file_are_found_by_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = workspace(
        tmp_path, [], mix={"fact": 1.0}, train_examples=6, heldout_examples=2, extra=[{"file": "data/extra/f.jsonl"}]
    )
    records = [{"id": f"f{n}", "title": f"Norvik{n}", "text": f"The year of Norvik{n} is 19{n:02}."} for n in range(3)]
    (tmp_path / "facts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert "examples: 3" in orchestra("import", "facts.jsonl", "--format", "corpus", "--to", "data/extra/f.jsonl")
    card = made(tmp_path, params)["extra"]["data/extra/f.jsonl"]
    assert card["examples"] == 3 and len(read_lines(tmp_path / "set/corpus.jsonl")) > 3
    (tmp_path / "data/extra/f.corpus.jsonl").unlink()
    with pytest.raises(DataError, match="nothing of it can be used"):
        made(tmp_path, params)


def test_two_corpora_may_number_their_records_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = [{"file": f"data/extra/{name}.jsonl"} for name in "fg"]
    params = workspace(tmp_path, [], mix={"fact": 1.0}, train_examples=6, heldout_examples=2, extra=extra)
    monkeypatch.chdir(tmp_path)

    def imported(name: str, source: str, place: str) -> None:
        record = {"id": "1", "title": place, "text": f"The year of {place} is 1911."}
        (tmp_path / "facts.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
        orchestra(
            *("import", "facts.jsonl", "--format", "corpus", "--to", f"data/extra/{name}.jsonl", "--source", source)
        )

    imported("f", "first", "Norvik")
    imported("g", "first", "Sorvik")
    said = r"extra/g.corpus.jsonl: another record has the id 'first-1', too, in data/extra/f.corpus.jsonl — import one"
    with pytest.raises(DataError, match=said):
        made(tmp_path, params)
    imported("g", "second", "Sorvik")
    made(tmp_path, params)
    with (tmp_path / "data/extra/g.corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write((tmp_path / "data/extra/f.corpus.jsonl").read_text(encoding="utf-8"))
    card = made(tmp_path, params)["extra"]
    assert [one["examples"] for one in card.values()] == [1, 1]
    ids = [json.loads(line)["id"] for line in read_lines(tmp_path / "set/corpus.jsonl")]
    assert ids.count("first-1") == 1, "one record of both files is there once"


def test_records_written_by_hand_without_a_last_line_end_stay_apart(tmp_path: Path, small: Params) -> None:
    for name, split in (("a", "train"), ("b", "heldout")):
        file = tmp_path / f"data/extra/{name}.jsonl"
        write_jsonl(file, sums(f"{split}1"))
        record = json.dumps({"id": name, "title": name, "text": f"{name} is far."})
        beside(file, "corpus").write_text(record, encoding="utf-8")
        file.write_bytes(file.read_bytes().removesuffix(b"\n"))
    made(tmp_path, small)
    assert [json.loads(line)["id"] for line in read_lines(tmp_path / "set/corpus.jsonl")][-2:] == ["a", "b"]


def test_a_published_domain_is_usable_once_its_folder_is_there_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {
        "id": "77",
        "user_scenario": {
            "instructions": {"task_instructions": "Brin pays the fine; how much is it?", "domain": "Mock"}
        },
        "evaluation_criteria": {
            "actions": [{"name": "pay_fine", "arguments": {"reader": "Brin"}}],
            "communicate_info": ["7"],
        },
    }
    params = workspace(
        tmp_path, [], mix={"arithmetic": 1.0}, train_examples=6, heldout_examples=2,
        extra=[{"file": "data/extra/ts.jsonl"}],
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ts.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    with (tmp_path / "data/licences.yaml").open("a", encoding="utf-8") as file:
        file.write("  - {id: other, sources: [nvidia/ToolScale]}\n")
    orchestra("import", "ts.jsonl", "--format", "toolscale", "--to", "data/extra/ts.jsonl")
    with pytest.raises(DataError, match=r"the domain toolscale-mock is not in world\.domains: put its folder into"):
        made(tmp_path, params)
    folder = tmp_path / "data/domains/toolscale-mock"
    shutil.copytree(ROOT / "data/domains/mock", folder)
    # Nothing is generated of a domain without intents: it is there for the examples that ask about it.
    (folder / "intents.yaml").write_text("split_by: []\nintents: []\n", encoding="utf-8")
    world = params.world.model_copy(update={"domains": ["toolscale-mock"]})
    assert made(tmp_path, params.model_copy(update={"world": world}))["extra"]["data/extra/ts.jsonl"]["examples"] == 1


def test_real_experts_that_try_extra_examples_are_under_the_cap_and_paid_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tasks.platform.stage import Stage
    from tasks.synthesize import main as stage_main

    params = workspace(
        tmp_path, [], REAL, mix={"arithmetic": 1.0}, train_examples=12, heldout_examples=4, solver="known",
        extra=[{"file": "data/extra/q.jsonl"}],
    )  # fmt: skip
    (tmp_path / "models").symlink_to(ROOT / "models")
    experts = Catalogue.load(ROOT / REAL["catalogue"], ROOT / REAL["prices"], REAL["price_date"])
    asked = [
        example(
            f"q{place}", instruction=f"which number stands at place {place}?", answer="42", kind="numeric",
            category=Category.TOPIC, toolbox=[experts.spec("gpt-5-mini")],
        ).model_copy(update={"entities": (f"place {place}",)})
        for place in range(4)
    ]  # fmt: skip
    write_jsonl(tmp_path / "data/extra/q.jsonl", asked)
    run, kept = tmp_path / "run.jsonl", tmp_path / "work/extra/ledger.jsonl"
    said = answer("42") | {"usage": {"prompt_tokens": 100, "completion_tokens": 16_000}}  # 3.2 cents

    def capped(usd: str) -> Params:
        return params.model_copy(update={"budget": BudgetLimits(run_usd=Decimal(usd))})

    with serving(lambda _: (200, said, 0)) as double:
        monkeypatch.setenv("OPENAI_BASE_URL", double.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
        with pytest.raises(BudgetError, match=r"of 0\.2 USD are spent"):
            made(tmp_path, capped("0.2"))
        before = len(double.asked)
        assert before > 0 and total(read_jsonl(kept, Charge)) <= Decimal("0.2")
        monkeypatch.setenv("ORCHESTRA_LEDGER", str(run))
        with pytest.raises(BudgetError, match=r"run\.jsonl: .*of 0\.3 USD are spent"):
            stage_main(Stage.open("synthesize", tmp_path, capped("0.3")))
        assert 0 < total(read_jsonl(run, Charge)) <= Decimal("0.3")
        stage_main(Stage.open("synthesize", tmp_path, capped("9")))
        tries, spent = len(double.asked), total(read_jsonl(run, Charge))
        assert 20 <= tries <= 32 and spent >= Decimal("0.032") * (tries - before)
        assert f"spent in this run: {spent:.4f} USD" in capsys.readouterr().out
        stage_main(Stage.open("synthesize", tmp_path, capped("9")))
        assert len(double.asked) == tries
    assert {one.id for one in asked} <= {one.id for one in read_examples(tmp_path / "data/generated/train.jsonl")}


@pytest.mark.parametrize("file", ["data/imported/x.jsonl", "data/extra/../x.jsonl", "data/extra/x.parquet"])
def test_an_extra_file_lies_where_the_stage_depends_on_it(file: str) -> None:
    raw = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    raw["synthesize"]["extra"] = [{"file": file}]
    with pytest.raises(ConfigError, match=r"synthesize\.extra\.0\.file"):
        parse_params(raw)


@pytest.mark.parametrize("answer", ["120", "0.25", "-3", "Gravity", "Marie Kormo", "B", "yes", "True", "5 km", "Ä"])
def test_wrong_answers_are_plausible_and_wrong(answer: str) -> None:
    wrong = wrong_answers(answer, random.Random(0))
    assert 1 <= len(wrong) <= 3 and len({*wrong, answer}) == len(wrong) + 1
    assert all(len(one.split()) == len(answer.split()) for one in wrong)
    assert all(any(c.isdigit() for c in one) == any(c.isdigit() for c in answer) for one in wrong)
    assert wrong == wrong_answers(answer, random.Random(0))


def test_more_digits_than_python_converts_have_wrong_answers() -> None:
    wrong = wrong_answers("7" * 4400, random.Random(0))
    assert len({*wrong, "7" * 4400}) == 4 and all(one.isdecimal() for one in wrong)
