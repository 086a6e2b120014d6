"""The validate stage: good rows pass, bad rows are quarantined with the reason, bad data stops the flow."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestra.errors import DataError, OrchestraError
from orchestra.validation import survey
from tasks import synthesize, validate
from tasks.platform import expectations
from tasks.platform.expectations import Checked
from tasks.platform.rules import suites
from tasks.platform.stage import Stage
from tests.support.worlds import ROOT

MIX = {"arithmetic": 0.2, "fact": 0.2, "two_hop": 0.2, "topic": 0.4}
WRITER = {"model": "m", "price": "openai/gpt-5-mini", "cap_usd": 1.0}
TRAIN, HELDOUT = 80, 20


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which synthesize has run."""
    root = tmp_path_factory.mktemp("project")
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    params["synthesize"] |= {"train_examples": TRAIN, "heldout_examples": HELDOUT, "mix": MIX}
    params["world"]["domains"] = []
    (root / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    shutil.copytree(ROOT / "data/catalogue", root / "data/catalogue")
    shutil.copy(ROOT / "data/licences.yaml", root / "data")
    synthesize.main(Stage.open("synthesize", root))
    return root


@pytest.fixture
def project(generated: Path, tmp_path: Path) -> Path:
    root = tmp_path / "project"
    shutil.copytree(generated, root)
    return root


@pytest.fixture(scope="module")
def validated(generated: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A project whose good data was validated, and the report."""
    root = Path(shutil.copytree(generated, tmp_path_factory.mktemp("validated") / "project"))
    return root, run(root, drawn=True)


def run(root: Path, max_quarantined: float = 0.02, *, drawn: bool = False) -> dict[str, Any]:
    """Run the stage; the report it wrote. Its plots take most of the time, and are `drawn` where they are looked at."""
    stage = Stage.open("validate", root)
    limit = stage.params.validate_.model_copy(update={"max_quarantined": max_quarantined})
    stage.params = stage.params.model_copy(update={"validate_": limit})
    try:
        with pytest.MonkeyPatch.context() as patch:
            if not drawn:
                patch.setattr(validate, "plots", _no_plots)
            validate.main(stage)
    finally:
        report: dict[str, Any] = json.loads((root / "reports/validate.json").read_text(encoding="utf-8"))
    return report


def _no_plots(*_: object) -> list[object]:
    return []


def test_the_limit_is_the_decimal_that_was_written() -> None:
    def said(rows: int, limit: float) -> str | None:
        return validate.refusal(Checked({f"train:{row}": ["leak"] for row in range(rows)}, ()), 100, limit)

    assert said(29, 0.29) is None and said(57, 0.57) is None
    assert said(30, 0.29) == "30 of 100 rows refused, more than 29%: leak (30)"
    assert said(1, 0.005) == "1 of 100 rows refused, more than 0.5%: leak (1)"


def lines(root: Path, name: str) -> list[str]:
    return (root / name).read_text(encoding="utf-8").splitlines()


def edit(root: Path, number: int, change: Callable[[dict[str, Any]], object], split: str = "train") -> None:
    """Change one row of the generated data, counted from 1."""
    path = root / f"data/generated/{split}.jsonl"
    rows = path.read_text(encoding="utf-8").splitlines()
    row = json.loads(rows[number - 1])
    change(row)
    rows[number - 1] = json.dumps(row)
    path.write_text("".join(line + "\n" for line in rows), encoding="utf-8")


def find(root: Path, category: str, split: str = "train") -> int:
    rows = lines(root, f"data/generated/{split}.jsonl")
    return next(n for n, line in enumerate(rows, start=1) if json.loads(line)["category"] == category)


def test_good_data_passes_whole_with_data_docs(validated: tuple[Path, dict[str, Any]]) -> None:
    project, report = validated
    assert report["rows"] == TRAIN + HELDOUT and report["quarantined"] == 0 and report["expectations_failed"] == 0
    for split in ("train", "heldout"):
        assert lines(project, f"data/validated/{split}.jsonl") == lines(project, f"data/generated/{split}.jsonl")
    assert lines(project, "data/quarantine/rows.jsonl") == []
    assert "examples" in (project / "reports/data_docs/index.html").read_text(encoding="utf-8")
    for suite in ("examples", "balance", "answers", "corpus"):
        assert list((project / "reports/data_docs/validations" / suite).rglob("*.html"))
    assert report["warnings"] == 0


def test_data_for_real_experts_passes(tmp_path: Path) -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    params["synthesize"] |= {"train_examples": 20, "heldout_examples": 10, "mix": {"arithmetic": 0.5, "fact": 0.5}}
    params["world"] |= {"domains": [], "catalogue": "data/catalogue/real.yaml", "price_date": "2026-08-06"}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    shutil.copytree(ROOT / "data/catalogue", tmp_path / "data/catalogue")
    shutil.copy(ROOT / "data/licences.yaml", tmp_path / "data")
    synthesize.main(Stage.open("synthesize", tmp_path))
    assert lines(tmp_path, "data/generated/answers.jsonl")
    assert run(tmp_path)["quarantined"] == 0
    assert len(lines(tmp_path, "data/validated/train.jsonl")) == 20


def test_the_page_shows_the_data_by_itself(validated: tuple[Path, dict[str, Any]]) -> None:
    project, _ = validated
    page = (project / "reports/data.html").read_text(encoding="utf-8")
    assert "Passed</span>" in page and f"{TRAIN + HELDOUT} of {TRAIN + HELDOUT} rows passed" in page
    assert "the experts in this data are simulated" in page.lower()
    kinds: dict[tuple[str, str], set[str]] = {}
    for split in ("train", "heldout"):
        for row in map(json.loads, lines(project, f"data/validated/{split}.jsonl")):
            kinds.setdefault((split, row["category"]), set()).add(row["preference"]["kind"])
    assert page.count("data:image/svg+xml;base64,") >= 9
    assert len(kinds) == 2 * len(MIX) and page.count("<article>") == sum(min(2, len(found)) for found in kinds.values())
    shown = json.loads(lines(project, "data/generated/train.jsonl")[find(project, "arithmetic") - 1])
    for text in (shown["instruction"], shown["id"], shown["toolbox"][0]["name"]):
        assert text in page
    assert "calculator(" in page and "P: outcome" in page
    assert 'src="http' not in page and "href=" not in page and str(project) not in page


def test_every_bad_row_is_quarantined_with_its_reason(project: Path) -> None:
    used: set[int] = set()

    def spoil(category: str, change: Callable[[dict[str, Any]], object]) -> int:
        rows = lines(project, "data/generated/train.jsonl")
        number = next(n for n, x in enumerate(rows, start=1) if n not in used and json.loads(x)["category"] == category)
        used.add(number)
        edit(project, number, change)
        return number

    other_id = json.loads(lines(project, "data/generated/heldout.jsonl")[0])["id"]
    held_entity = json.loads(lines(project, "data/generated/heldout.jsonl")[0])["entities"]
    spoiled = {
        spoil("fact", lambda r: r["preference"].update(compute=2)): "not an example: preference.compute",
        spoil("fact", lambda r: r.update(colour="red")): "not an example: colour",
        spoil("fact", lambda r: r.update(instruction=" ")): "the instruction is empty or too long",
        spoil("topic", lambda r: r.update(id=other_id)): "the id is not unique",
        spoil("topic", lambda r: r.update(entities=held_entity)): "leak: also held out",
        spoil("topic", lambda r: r.update(entities=[])): "about no entity",
        spoil("topic", lambda r: r.update(toolbox=[])): "no tools or too many",
        spoil(
            "topic", lambda r: r.update(instruction="who ate Opal?")
        ): "known solution: no simulated expert has heard",
        spoil("arithmetic", lambda r: r["verifier"].update(answer="many")): "answer: the expected answer",
        spoil("arithmetic", lambda r: r["verifier"].update(answer="1")): "known solution: the answer is not in",
        spoil("two_hop", lambda r: r["verifier"]["golden_calls"][0].update(name="find")): "toolbox: find",
        spoil("two_hop", lambda r: r["preference"].update(tools={"gpt-9": 0.1})): "toolbox: the preference",
        spoil(
            "topic", lambda r: [t.update(call_usd="0") for t in r["toolbox"] if t["kind"] == "expert"]
        ): "an expert costs nothing",
        spoil(
            "topic", lambda r: r["toolbox"].extend([r["toolbox"][0] | {"name": "twin"}] * 2)
        ): "toolbox: two tools have one name: twin",
    }
    report = run(project, max_quarantined=0.5)
    rows = [json.loads(line) for line in lines(project, "data/quarantine/rows.jsonl")]
    found = {row["line"]: row["reasons"] for row in rows if row["file"].endswith("train.jsonl")}
    for number, reason in spoiled.items():
        assert any(said.startswith(reason) for said in found[number]), (reason, found[number])
    assert set(found) == set(spoiled)
    # Two rows claim one id: neither can be trusted.
    assert [row["line"] for row in rows if row["file"].endswith("heldout.jsonl")] == [1]
    assert report["quarantined"] == len(spoiled) + 1
    assert len(lines(project, "data/validated/train.jsonl")) == TRAIN - len(spoiled)
    assert sum(json.loads((project / "data/quarantine/reasons.json").read_text()).values()) == report["quarantined"]


def test_the_gate_quarantines_what_overlaps_a_benchmark_or_has_no_licence(
    validated: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    good, before = validated
    project = Path(shutil.copytree(good, tmp_path / "project"))
    assert before["gate"]["note"].startswith("contamination was checked against nothing")
    protected = json.loads(lines(project, "data/generated/train.jsonl")[find(project, "fact") - 1])
    (project / "data/protected").mkdir()
    (project / "data/protected/hle.jsonl").write_text(json.dumps({"question": protected["instruction"]}) + "\n")
    topic = find(project, "topic")
    edit(project, topic, lambda row: row["provenance"].update(licence="CC-BY-NC-4.0"))
    report = run(project, max_quarantined=0.5)
    rows = [json.loads(line) for line in lines(project, "data/quarantine/rows.jsonl")]
    reasons = {row["line"]: row["reasons"] for row in rows if row["file"].endswith("train.jsonl")}
    assert reasons[find(project, "fact")] == ["gate: it overlaps hle"]
    assert reasons[topic] == ["gate: the licence CC-BY-NC-4.0 is not on the list"]
    assert report["gate"]["checked_against"] == {"hle": 1}
    assert protected["id"] in report["gate"]["ids"]["it overlaps hle"] and report["quarantined"] == len(rows)
    assert len(lines(project, "data/validated/train.jsonl")) == TRAIN - len(reasons)


def test_a_line_that_is_no_json_is_quarantined_and_no_crash(project: Path) -> None:
    path = project / "data/generated/train.jsonl"
    path.write_bytes(path.read_bytes() + b'{"id": "trai\n\n{"id": "\xff"}\n')
    report = run(project, max_quarantined=0.03)
    assert report["quarantined"] == 3 and report["reasons"].pop("not an example: not UTF-8") == 1
    assert all(reason.startswith("not an example: Invalid JSON") for reason in report["reasons"])
    assert len(lines(project, "data/validated/train.jsonl")) == TRAIN


def test_above_the_threshold_the_flow_stops_with_the_reasons_and_nothing_goes_on(project: Path) -> None:
    for number in range(1, 11):
        edit(project, number, lambda row: row.pop("toolbox"))
    with pytest.raises(DataError) as error:
        run(project)
    assert "10 of 100 rows refused, more than 2%: not an example: toolbox: Field required (10)" in str(error.value)
    assert "\n" not in str(error.value) and "data/quarantine/rows.jsonl" in str(error.value)
    assert not (project / "data/validated").exists()
    assert len(lines(project, "data/quarantine/rows.jsonl")) == 10
    assert (project / "reports/data_docs/index.html").is_file()


def test_what_a_model_wrote_need_not_be_made_by_rule_too(project: Path) -> None:
    params = yaml.safe_load((project / "params.yaml").read_text(encoding="utf-8"))
    params["synthesize"] |= {
        "generator": "llm",
        "writer": WRITER,
        "mix": {name: 0.8 * part for name, part in MIX.items()} | {"lookup": 0.2},
    }
    (project / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    assert run(project)["refused_as_a_whole"] == []


def test_sets_out_of_balance_or_not_disjoint_stop_the_flow_and_the_page_says_so(project: Path) -> None:
    path = project / "data/generated/train.jsonl"
    kept = [line for line in lines(project, "data/generated/train.jsonl") if json.loads(line)["category"] == "topic"]
    path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    held = json.loads(lines(project, "data/generated/heldout.jsonl")[0])["entities"]
    for number in range(1, 5):
        edit(project, number, lambda row: row.update(entities=held))
    refused = "refused as a whole: the splits are not disjoint; the train set does not follow synthesize.mix"
    with pytest.raises(DataError, match=re.escape(refused)) as error:
        run(project, max_quarantined=0.5)
    assert "reports/data.html" in str(error.value) and not (project / "data/validated").exists()
    page = (project / "reports/data.html").read_text(encoding="utf-8")
    assert "Refused</span>" in page and refused in page
    assert "<code>train:1</code> leak: also held out: " in page


def test_a_warning_is_shown_and_refuses_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    number = find(project, "topic")
    edit(project, number, lambda r: [t.update(call_usd="50") for t in r["toolbox"] if t["kind"] == "expert"])
    report = run(project)
    warning = f"a very expensive expert: train:{number} (50) (1)"
    assert warning in report["warned_of"] and report["quarantined"] == 0
    assert len(lines(project, "data/validated/train.jsonl")) == TRAIN
    assert f"validate: warning: {warning}" in capsys.readouterr().out
    assert warning in (project / "reports/data.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_any_number_of_processes_writes_the_same(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = ["data/validated/train.jsonl", "data/quarantine/rows.jsonl", "reports/data.html", "reports/validate.json"]
    edit(project, 3, lambda row: row.update(instruction=" "))

    def outputs() -> list[bytes]:
        return [(project / name).read_bytes() for name in written]

    validate.main(Stage.open("validate", project), workers=1)
    alone = outputs()
    monkeypatch.setattr(survey, "LINES", 9)
    validate.main(Stage.open("validate", project), workers=2)
    assert outputs() == alone


def test_an_expectation_that_raises_is_not_a_finding_about_the_data(project: Path) -> None:
    import pandas as pd

    rules = [rule for rule in suites(MIX, {}, [])["examples"] if rule.column == "tools"]
    frame = pd.DataFrame({"row": ["train:1"], "tools": ["many"]})
    with pytest.raises(OrchestraError, match=r"on tools could not run: .*the data are not at fault") as error:
        expectations.check({"examples": frame}, {"examples": rules}, project / "docs")
    assert not isinstance(error.value, DataError)


def test_missing_and_empty_input(project: Path) -> None:
    (project / "data/generated/heldout.jsonl").unlink()
    with pytest.raises(DataError, match=r"heldout\.jsonl: no such file — run the synthesize stage"):
        validate.main(Stage.open("validate", project))
    for split in ("train", "heldout"):
        (project / f"data/generated/{split}.jsonl").write_text("")
    with pytest.raises(DataError, match="no examples at all"):
        validate.main(Stage.open("validate", project))


def test_what_the_data_says_is_no_markup_on_any_page(project: Path) -> None:
    """Pages are read in a browser: what a row holds, refused or not, is shown as it is and never runs."""
    evil, image = "<script>alert(1)</script>", "<img src=x onerror=alert(2)>"

    def spoil(row: dict[str, Any]) -> None:
        row.update(instruction=f"{evil} {image} {{{{ 7*7 }}}} ${{row}}", entities=[f"{image}1"])
        row["provenance"].update(source=evil)
        row["preference"].update(kind=image, words=evil)

    for category in ("fact", "topic", "arithmetic"):
        edit(project, find(project, category), spoil)
    for number in (1, 2):
        edit(project, number, lambda row: row.update(id=f"{evil}&amp;"))
    report = run(project, max_quarantined=1, drawn=True)
    assert report["quarantined"] >= 2
    pages = [project / "reports/data.html", *(project / "reports/data_docs").rglob("*.html")]
    text = "".join(file.read_text(encoding="utf-8") for file in pages)
    assert (
        evil not in text
        and image not in text
        and "onerror=alert" not in text.replace("&lt;img src=x onerror=alert", "")
    )
    assert "&lt;script&gt;alert(1)" in text and "{{ 7*7 }}" in text
    # What is written besides says it exactly.
    rows = [json.loads(line) for line in lines(project, "data/quarantine/rows.jsonl")]
    assert any(f"({evil}&amp;)" in reason for row in rows for reason in row["reasons"])
